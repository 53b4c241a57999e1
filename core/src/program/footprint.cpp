// Says what an instruction of a microbatch allocates, frees, sends and computes on one rank.
#include "meshwright/engine/footprint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "meshwright/engine/ring.h"
#include "program/footprint_maker.h"

namespace mw {

const char* name_of(Code code) {
  static constexpr std::array names{"load",   "compute",    "move",        "start", "wait",
                                    "seed",   "alias",      "add",         "copy",  "begin_sum",
                                    "settle", "hook_start", "hook_finish", "totals"};
  static_assert(names.size() == static_cast<std::size_t>(Code::totals) + 1);
  return names.at(static_cast<std::size_t>(code));
}

namespace {

// A footprint by the instruction's code.
class CodeFootprint : public FootprintMaker {
 public:
  using FootprintMaker::FootprintMaker;
  void run();

 private:
  void load();
  void copy();
  void compute();
  void compute_memory();
  void start();
  void wait();
  bool between_stages() const;
};

void CodeFootprint::run() {
  switch (i_.code) {
    case Code::load:
      load();
      break;
    case Code::compute:
      i_.update == Update::none ? compute() : update();
      break;
    case Code::move:
      fresh(i_.outputs[0]);
      copies(2 * static_cast<double>(rank_.size_of(i_).copied));
      break;
    case Code::start:
      start();
      break;
    case Code::wait:
      wait();
      break;
    case Code::seed:
      fresh(i_.outputs[0]);
      copies(0);
      break;
    case Code::alias:  // where a walk begins here, nothing is known of who handed it on
      share(i_.outputs[0], slot_holder(i_.inputs[0]),
            program_.slots[i_.inputs[0]].persistent ? 0 : rank_.bytes(i_.outputs[0]));
      break;
    case Code::add:
      open(i_.outputs[0]);
      copies(2 * touched(i_.outputs[0]) + touched(i_.inputs[0]));
      break;
    case Code::copy:
      copy();
      break;
    case Code::begin_sum:
      break;
    case Code::settle:
      open(i_.outputs[0]);
      break;
    case Code::hook_start:
      made_.begins = i_.pending;
      hooked(true);
      break;
    case Code::hook_finish:
      made_.awaits = i_.pending;
      hooked(false);
      break;
    case Code::totals:
      totals();
      break;
  }
  if (memory_) {
    for (int slot : i_.release) {
      const Slot& s = program_.slots[slot];
      if (s.persistent) release(holder_of(slot), rank_.bytes(slot), s.category);
    }
  }
}

// Tokens and labels of the same rows are read together, then cut to the rank's columns: a copy,
// but of one row.
void CodeFootprint::load() {
  const std::int64_t sequence = program_.graph->size("seq");
  Few<Range, 2> read;
  double bytes = 0;
  for (int slot : i_.outputs) {
    const Slot& s = program_.slots[slot];
    bytes += touched(slot);
    const DataCut cut = rank_.data_cut(slot);
    if (s.name == "positions") {
      if (cut.columns.size() > 1) pass(rank_.bytes(slot));  // joined from its runs
      fresh(slot, Category::buffers);
      continue;
    }
    const auto same = [&](const Range& rows) { return cut.of_rows(rows); };
    const auto known =
        static_cast<int>(std::find_if(read.begin(), read.end(), same) - read.begin());
    if (known == static_cast<int>(read.size())) {
      for (int k = 0; k < 2; ++k)
        make(scratch_holder(2 * known + k), cut.rows.size * sequence * 8, Category::buffers);
      read.push_back(cut.rows);
    }
    if (cut.copies) {
      fresh(slot, Category::buffers);
    } else {
      share(slot, scratch_holder(2 * known + (s.name == "labels" ? 1 : 0)), 0);
    }
  }
  copies(2 * bytes);
}

void CodeFootprint::copy() {
  const Slot &from = program_.slots[i_.inputs[0]], &to = program_.slots[i_.outputs[0]];
  const double bytes = touched(i_.outputs[0]);
  if (to.transient && to.memory != from.memory) {
    // A shard of parameters, for a gather. Where the host's memory is the rank's, it is there.
    host_copy(false, i_.outputs[0], i_.inputs[0]);
    return;
  }
  if (to.persistent) {
    open(i_.outputs[0]);
  } else {
    fresh(i_.outputs[0], to.memory == Memory::host ? Category::host : Category::activations);
  }
  if (from.memory == to.memory) {
    copies(touched(i_.inputs[0]) + bytes);
  } else if (to.persistent) {
    works({.calls = 1, .link = bytes, .one_memory = 2 * bytes});
  } else {
    works({.calls = 1, .one_memory = 2 * bytes});
    const bool leaves = to.memory == Memory::host;
    const int in = i_.inputs[0], out = i_.outputs[0];
    host_copy(leaves, leaves ? in : out, leaves ? out : in);
  }
}

void CodeFootprint::compute() {
  if (!rank_.runs(i_)) return;
  if (memory_) compute_memory();
  if (!work_) return;
  for (int step = i_.ring_step; step <= i_.ring_step + i_.ring_alike; ++step) {
    const Cost& cost = rank_.cost(i_.op, i_.piece, step);
    const bool gemm = cost.flops > 0;
    works({.gemms = gemm ? 1 : 0,
           .calls = gemm ? 0 : 1,
           .flops = cost.executed,
           .bytes = cost.bytes});
  }
}

void CodeFootprint::compute_memory() {
  std::int64_t apart = 0;  // gradients that are made on their own, then added
  for (std::size_t k = 0; k < i_.grad_inputs.size(); ++k) {
    const int slot = i_.grad_inputs[k];
    if (slot < 0) continue;
    if (!program_.slots[slot].persistent) {
      if (i_.accumulate[k] && program_.graph->traits(i_.op).gradients_apart)
        apart += rank_.bytes(slot);
      continue;
    }
    open(slot);
    if (program_.gradient_dtype != program_.dtype && rank_.contributes(i_.contributing[k]))
      apart += rank_.bytes(slot) / bytes_of(program_.gradient_dtype) * bytes_of(program_.dtype);
  }
  if (i_.piece == Piece::forward && i_.ring_step == 0) {
    for (std::size_t k = 0; k < i_.outputs.size(); ++k) yield(i_.outputs[k], i_.in_place && k == 0);
    for (int slot : i_.saved) fresh(slot);
  } else if (i_.piece != Piece::forward) {
    for (std::size_t k = 0; k < i_.grad_inputs.size(); ++k) {
      const int slot = i_.grad_inputs[k];
      if (slot < 0 || program_.slots[slot].persistent || i_.accumulate[k]) continue;
      yield(slot, i_.in_place);
    }
  }
  if (!scratch_) return;
  const Scratch workspace = rank_.workspace(i_.op, i_.piece, i_.ring_step, i_.ring_alike);
  made_.measured = workspace.measured;
  pass(workspace.bytes + apart);
}

void CodeFootprint::start() {
  made_.begins = i_.pending;
  if (between_lasting(program_, i_)) {
    start_lasting();
    return;
  }
  const MoveSize size = rank_.size_of(i_);
  make({Holder::Kind::pending, i_.pending}, size.held);
  made_.between_stages = between_stages();
  copies(made_.between_stages ? 0 : 2 * static_cast<double>(size.copied - size.finish));
  const RankSet set{i_.move.atoms, {}, i_.move.exchanges_rows()};
  if (i_.move.brings_counts) {  // how many rows of each group are to come
    const Dim group = program_.graph->sparse.dims.front();
    const Layout& source = program_.slots[i_.inputs[0]].layout;
    const std::int64_t bytes =
        8 * local_range(group, program_.graph->size(group), source, program_.mesh, rank_.at()).size;
    const int ways = program_.ways(set);
    transfer(Collective::all_to_all, set, bytes, bytes * (ways - 1) / ways);
  }
  transfer(collective_of(i_.move.kind), set, size.payload, size.wire);
  // What comes in from the other side: no bytes of this rank's.
  if (i_.move.kind == Move::Kind::shift) transfer(Collective::recv, set, 0, 0);
}

bool CodeFootprint::between_stages() const {
  return i_.move.kind == Move::Kind::send || i_.move.kind == Move::Kind::recv;
}

void CodeFootprint::wait() {
  if (between_lasting(program_, i_)) {
    made_.awaits = i_.pending;
    return;
  }
  const MoveSize size = rank_.size_of(i_);
  const Holder pending{Holder::Kind::pending, i_.pending};
  made_.between_stages = between_stages();
  if (!made_.between_stages) {
    made_.awaits = i_.pending;
    copies(2 * static_cast<double>(size.finish));
  }
  if (size.output_is_held || i_.outputs.empty()) release(pending);
  if (i_.outputs.empty()) return;  // a send
  if (size.output_is_source) {
    share(i_.outputs[0], slot_holder(i_.inputs[0]), size.result);
  } else {
    make(slot_holder(i_.outputs[0]), size.result);
  }
  if (!size.output_is_held) release(pending);
}

}  // namespace

double Footprint::executed() const {
  double flops = 0;
  for (const LocalWork& each : work) flops += each.flops;
  return flops;
}

CommunicationKey key_of(const Transfer& transfer, const Program& program) {
  return {program.name_of(transfer.set), name_of(transfer.op), transfer.phase};
}

std::size_t TransferKeys::number(const Transfer& transfer) {
  for (const Known& known : known_) {
    if (known.op == transfer.op && known.phase == transfer.phase && known.set == transfer.set)
      return known.number;
  }
  CommunicationKey key = key_of(transfer, program_);
  const auto found = std::find(keys_.begin(), keys_.end(), key);
  const auto number = static_cast<std::size_t>(found - keys_.begin());
  if (found == keys_.end()) keys_.push_back(std::move(key));
  known_.push_back({transfer.op, transfer.set, transfer.phase, number});
  return number;
}

namespace {

Footprint footprint_of_ring(const RankView& rank, const Instruction& ring, Asks asks) {
  Footprint all;
  for (const Instruction& i : ring_kinds(rank.program(), ring)) {
    Footprint made = footprint(rank, i, asks);
    all.memory.insert(all.memory.end(), made.memory.begin(), made.memory.end());
    for (const int slot : i.release)
      all.memory.push_back({MemoryEvent::Kind::release, {Holder::Kind::slot, slot}, {}, 0});
    const int times = i.code == Code::compute ? 1 : 1 + i.ring_alike;
    for (int k = 0; k < times; ++k)
      all.work.insert(all.work.end(), made.work.begin(), made.work.end());
    for (Transfer& transfer : made.transfers) {
      transfer.times = times;
      all.transfers.push_back(std::move(transfer));
    }
    all.measured = all.measured && made.measured;
  }
  return all;
}

}  // namespace

Footprint footprint(const RankView& rank, const Instruction& instruction, Asks asks) {
  Footprint made;
  footprint(rank, instruction, asks, made);
  return made;
}

void footprint(const RankView& rank, const Instruction& instruction, Asks asks, Footprint& made) {
  if (instruction.ring) {
    made = footprint_of_ring(rank, instruction, asks);
  } else {
    CodeFootprint(rank, instruction, asks, made).run();
  }
}

bool sends_nothing(const Instruction& instruction) {
  if (instruction.ring) return false;
  switch (instruction.code) {
    case Code::start:
    case Code::hook_start:
    case Code::hook_finish:
    case Code::totals:
      return false;
    case Code::load:
    case Code::compute:
    case Code::move:
    case Code::seed:
    case Code::alias:
    case Code::add:
    case Code::copy:
    case Code::wait:
    case Code::begin_sum:
    case Code::settle:
      break;
  }
  return true;
}

}  // namespace mw
