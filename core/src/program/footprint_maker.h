// What footprints are put together from: storages made, shared and let go, work and transfers.
// What each code does is written with it in footprint.cpp.
#pragma once

#include "meshwright/engine/footprint.h"

namespace mw {

class FootprintMaker {
 public:
  FootprintMaker(const RankView& rank, const Instruction& instruction, Asks asks, Footprint& made)
      : rank_(rank),
        program_(rank.program()),
        i_(instruction),
        memory_(has(asks, Asks::memory)),
        scratch_(has(asks, Asks::scratch)),
        work_(has(asks, Asks::work)),
        made_(made) {
    made_.memory.clear();
    made_.work.clear();
    made_.host_copy = {};
    made_.transfers.clear();
    made_.awaits = made_.begins = -1;
    made_.between_stages = false;
    made_.measured = true;
  }

 protected:
  using Event = MemoryEvent::Kind;
  static bool has(Asks asks, Asks part) {
    return (static_cast<int>(asks) & static_cast<int>(part)) != 0;
  }
  // A load's own scratches have the numbers before this: of tokens and labels, which it may have to
  // read in two ranges of rows.
  static constexpr int pass_scratch = 4;
  static Holder slot_holder(int slot) { return {Holder::Kind::slot, slot}; }
  static Holder scratch_holder(int number) { return {Holder::Kind::scratch, number}; }
  double touched(int slot) const { return static_cast<double>(rank_.bytes(slot)); }
  const Bucket& bucket() const { return program_.buckets[i_.bucket]; }

  // --- Memory ---

  void remember(MemoryEvent event) {
    if (!memory_) return;
    made_.memory.push_back(event);
  }
  void make(Holder holder, std::int64_t bytes, Category category = Category::activations) {
    remember({Event::make, holder, {}, bytes, category});
  }
  void share(int slot, Holder of, std::int64_t bytes) {
    remember({Event::share, slot_holder(slot), of, bytes});
  }
  void release(Holder holder, std::int64_t bytes = 0, Category category = Category::activations) {
    remember({Event::release, holder, {}, bytes, category});
  }
  void fresh(int slot, Category category = Category::activations) {
    make(slot_holder(slot), rank_.bytes(slot), category);
  }
  // Memory that lives inside the instruction only.
  void pass(std::int64_t bytes, Category category = Category::activations) {
    if (bytes <= 0) return;
    make(scratch_holder(pass_scratch), bytes, category);
    release(scratch_holder(pass_scratch));
  }
  // Buffers of the step: made by one instruction, let go by another.
  void step(bool begins, std::int64_t bytes) {
    const Holder holder{Holder::Kind::step, 0};
    begins ? make(holder, bytes, Category::buffers) : release(holder, bytes, Category::buffers);
  }
  // The slot's own new storage, or that of the slot which it overwrites.
  void yield(int slot, bool in_place) {
    const int of = program_.slots[slot].alias_of;
    in_place&& of >= 0 ? share(slot, slot_holder(of), rank_.bytes(slot)) : fresh(slot);
  }
  // What is whole is made by whoever is first to ask for it, and may have views of its own.
  // Of slots that come and go.
  bool on_demand(int slot) const {
    const FlatSlots& flat = program_.buckets[program_.slots[slot].bucket].flat;
    return slot == flat.parameters || slot == flat.gradients || slot == flat.directions ||
           slot == flat.on_device;
  }
  // A persistent slot, or a view of one, is about to be written: it is made if it comes and goes.
  void open(int view) {
    const int slot = program_.root(view);
    const Slot& s = program_.slots[slot];
    if (!s.transient) return;
    const Event how = on_demand(slot) ? Event::ensure : Event::make;
    remember({how, holder_of(slot), {}, rank_.bytes(slot), s.category});
  }
  Holder holder_of(int slot) const {
    return on_demand(slot) ? slot_holder(slot) : Holder{Holder::Kind::step, 0};
  }

  // --- Work and transfers ---

  void works(LocalWork work) {
    if (work_) made_.work.push_back(work);
  }
  // `slot`: of the device, or -1.
  void host_copy(bool leaves, int slot, int host) {
    if (work_) made_.host_copy = {rank_.bytes(host), leaves, slot, host};
  }
  void copies(double bytes) { works({.calls = 1, .bytes = bytes}); }
  void transfer(Collective op, const RankSet& set, std::int64_t payload, std::int64_t wire) {
    if (!work_) return;
    Transfer made;
    made.op = op;
    made.set = set;
    made.ways = program_.ways(set);
    made.payload = payload;
    made.wire = wire;
    made.phase = i_.phase;
    made_.transfers.push_back(std::move(made));
  }
  void transfer(Collective op, const RankSet& set, std::int64_t payload) {
    transfer(op, set, payload, wire_bytes(op, payload, program_.ways(set)));
  }

  // --- Buckets and the optimizer (footprint_step.cpp) ---

  void start_lasting();
  void hooked(bool begins);
  void totals();
  void update();
  void direction();
  void whole();
  void apply();

  const RankView& rank_;
  const Program& program_;
  const Instruction& i_;
  const bool memory_, scratch_, work_;
  Footprint& made_;
};

}  // namespace mw
