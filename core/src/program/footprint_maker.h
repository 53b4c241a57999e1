// How a footprint is made: one function for each kind of instruction (footprint.h says what comes out).
#pragma once

#include "program/footprint.h"

namespace mw {

class FootprintMaker {
 public:
  FootprintMaker(const RankView& rank, const Instruction& instruction, StateBytes state,
                 bool scratch)
      : rank_(rank), program_(rank.program()), i_(instruction), state_(state), scratch_(scratch) {}

  Footprint run();

 private:
  using Event = MemoryEvent::Kind;
  // A load's own scratches have the numbers before this.
  static constexpr int pass_scratch = 2;
  static Holder slot_holder(int slot) { return {Holder::Kind::slot, slot}; }
  static Holder scratch_holder(int number) { return {Holder::Kind::scratch, number}; }
  double touched(int slot) const { return static_cast<double>(rank_.bytes(slot)); }
  const Bucket& bucket() const { return program_.buckets[i_.bucket]; }

  // --- Memory ---

  void make(Holder holder, std::int64_t bytes, Category category = Category::activations) {
    made_.memory.push_back({Event::make, holder, {}, bytes, category});
  }
  void ensure(Holder holder, std::int64_t bytes, Category category) {
    made_.memory.push_back({Event::ensure, holder, {}, bytes, category});
  }
  void share(int slot, Holder of, std::int64_t bytes) {
    made_.memory.push_back({Event::share, slot_holder(slot), of, bytes});
  }
  void release(Holder holder, std::int64_t bytes = 0, Category category = Category::activations) {
    made_.memory.push_back({Event::release, holder, {}, bytes, category});
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
  // Gradients of which a rank stores a shard are written to a whole tensor first.
  void written(int gradient_slot) {
    const int b = rank_.bucket_of(gradient_slot);
    if (b < 0 || program_.buckets[b].parted < Parted::gradients) return;
    ensure({Holder::Kind::gradients, b}, rank_.flat(b).gradients, Category::buffers);
  }

  // --- Work and transfers ---

  void copies(double bytes) { made_.work.push_back({.calls = 1, .bytes = bytes}); }
  void transfer(Collective op, const RankSet& set, std::int64_t payload, std::int64_t wire) {
    Transfer made;
    made.op = op;
    made.set = set;
    made.ways = program_.ways(set);
    made.payload = payload;
    made.wire = wire;
    made.key = {program_.name_of(set), name_of(op), i_.phase};
    made_.transfers.push_back(std::move(made));
  }
  void transfer(Collective op, const RankSet& set, std::int64_t payload) {
    transfer(op, set, payload, wire_bytes(op, payload, program_.ways(set)));
  }

  // --- What microbatches run ---

  void load();
  void copy();
  void compute();
  void start();
  bool between_stages() const;
  bool brings_counts() const;
  void wait();

  // --- Buckets and the optimizer ---

  void reduction();
  void shard_reduction();
  void gather();
  void totals();
  void direct();
  void update_matrix();
  void update();

  const RankView& rank_;
  const Program& program_;
  const Instruction& i_;
  const StateBytes state_;
  const bool scratch_;
  Footprint made_;
};

}  // namespace mw
