// Computes the footprint of an instruction: a function for each code says which storages it makes,
// shares and lets go, its work and its transfers.
#include "meshwright/engine/footprint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "meshwright/engine/program_facts.h"
#include "meshwright/inputs.h"
#include "meshwright/optimizer.h"
#include "program/input_cut.h"
#include "program/update_steps.h"

namespace mw {

class FootprintMaker {
 public:
  FootprintMaker(const RankView& rank, const Instruction& instruction, FootprintParts asks,
                 Footprint& made)
      : rank_(rank),
        program_(rank.program()),
        i_(instruction),
        memory_(has(asks, FootprintParts::memory)),
        scratch_(has(asks, FootprintParts::scratch)),
        work_(has(asks, FootprintParts::work)),
        made_(made) {
    made_.memory.clear();
    made_.work.clear();
    made_.host_copy = {};
    made_.transfers.clear();
    made_.awaits = made_.begins = made_.on_host = -1;
    made_.between_stages = false;
    made_.measured = true;
    made_.estimated = 0;
  }

 protected:
  using Event = MemoryEvent::Kind;
  static bool has(FootprintParts asks, FootprintParts part) {
    return (static_cast<int>(asks) & static_cast<int>(part)) != 0;
  }
  // Numbers of an instruction's scratches. A load has those below 4 for itself: for tokens and
  // labels, which it may have to read in two ranges of rows.
  static constexpr int pass_scratch = 4, kernel_scratch = 5;
  static Holder slot_holder(int slot) { return {Holder::Kind::slot, slot}; }
  static Holder scratch_holder(int number) { return {Holder::Kind::scratch, number}; }
  double touched(int slot) const { return static_cast<double>(rank_.bytes(slot)); }
  const Bucket& bucket() const { return program_.buckets[i_.bucket]; }

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
  // Memory that lives inside the instruction only, and what a kernel takes beside it.
  void pass(std::int64_t bytes, std::int64_t scratch = 0) {
    if (bytes > 0) make(scratch_holder(pass_scratch), bytes);
    if (scratch > 0) make(scratch_holder(kernel_scratch), scratch, Category::scratch);
    if (bytes > 0) release(scratch_holder(pass_scratch));
    if (scratch > 0) release(scratch_holder(kernel_scratch));
  }
  // Buffers of the step: made by one instruction, let go by another.
  void step(bool begins, std::int64_t bytes) {
    const Holder holder{Holder::Kind::step, 0};
    begins ? make(holder, bytes, Category::buffers) : release(holder, bytes, Category::buffers);
  }
  // Gives the slot a new storage, or, in place, that of the slot which it overwrites.
  void yield(int slot, bool in_place) {
    const int of = program_.slots[slot].alias_of;
    in_place&& of >= 0 ? share(slot, slot_holder(of), rank_.bytes(slot)) : fresh(slot);
  }
  // Whether the first to ask for a transient flat slot makes it; other transient slots are made by
  // the instruction that writes them.
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

  void works(LocalWork work) {
    if (work_) made_.work.push_back(work);
  }
  // A copy between `slot` on the device and `host`; `leaves`: to host memory.
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

  void start_lasting();
  void hooked(bool begins);
  void totals();
  void update();
  void sums();
  std::int64_t room_of_update(const UpdateSteps& steps) const;
  void direction();
  void whole();
  void gram();
  void gram_step();
  void apply();
  void outer_gradient();

  const RankView& rank_;
  const Program& program_;
  const Instruction& i_;
  const bool memory_, scratch_, work_;
  Footprint& made_;
};

const char* name_of(Update update) {
  static constexpr std::array names{"none", "direction",      "whole",      "apply", "sums",
                                    "swap", "outer_gradient", "outer_step", "gram",  "gram step"};
  return names[static_cast<std::size_t>(update)];
}

const char* name_of(Code code) {
  static constexpr std::array names{"load",   "compute",    "move",        "start", "wait",
                                    "seed",   "alias",      "add",         "copy",  "begin_sum",
                                    "settle", "hook_start", "hook_finish", "totals"};
  static_assert(names.size() == static_cast<std::size_t>(last_code) + 1);
  return names.at(static_cast<std::size_t>(code));
}

namespace {

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
    case Code::alias:  // bytes for a walk that begins here and does not know the source
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
// but of one row. Values of is_read_in_rows() are read by themselves.
void CodeFootprint::load() {
  const std::int64_t sequence = program_.graph->size("seq");
  Few<Range, 2> read;
  double bytes = 0;
  for (int slot : i_.outputs) {
    const Slot& s = program_.slots[slot];
    bytes += touched(slot);
    const DataValue kind = data_value_of(s.name);
    if (is_read_in_rows(kind)) {
      const InputCut cut = input_cut(rank_, slot);
      const Holder rows = scratch_holder(static_cast<int>(2 * i_.outputs.size()) + slot);
      make(rows, cut.bytes_read(), Category::buffers);
      cut.copies ? fresh(slot, Category::buffers) : share(slot, rows, 0);
      if (cut.copies) release(rows);
      continue;
    }
    const DataCut cut = rank_.data_cut(slot);
    if (kind == DataValue::positions) {
      const bool joined = cut.columns.size() > 1;  // of several runs of positions
      if (joined) make(scratch_holder(pass_scratch), rank_.bytes(slot), Category::buffers);
      fresh(slot, Category::buffers);
      if (joined) release(scratch_holder(pass_scratch));
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
  if (to.persistent) {
    open(i_.outputs[0]);
  } else {
    fresh(i_.outputs[0], to.memory == Memory::host ? Category::host : Category::activations);
  }
  if (from.memory == to.memory) {
    const double both = touched(i_.inputs[0]) + bytes;
    to.memory == Memory::host ? works({.calls = 1, .host = both}) : copies(both);
    if (to.memory == Memory::host) made_.on_host = i_.inputs[0];
  } else {  // device to host or back, beside what the rank computes
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
  for (int part = i_.part(); part <= i_.part() + i_.ring_alike; ++part) {
    const Cost& cost = rank_.cost(i_.op, i_.piece, part);
    const bool gemm = cost.flops > 0;
    works({.gemms = gemm ? 1 : 0,
           .calls = gemm ? 0 : 1,
           .flops = cost.executed,
           .bytes = cost.bytes});
  }
}

void CodeFootprint::compute_memory() {
  // Bytes of gradients that are made on their own, then added: by the executor, or by the kernel
  // itself.
  std::int64_t apart = 0, within = 0;
  for (std::size_t k = 0; k < i_.grad_inputs.size(); ++k) {
    const int slot = i_.grad_inputs[k];
    if (slot < 0) continue;
    if (!program_.slots[slot].persistent) {
      const bool part = program_.sliced_at(i_, slot) >= 0;
      if (part) {
        apart += rank_.bytes_of_slice(i_, slot);
      } else if (i_.accumulate[k] && program_.graph->traits(i_.op).gradients_apart) {
        within += rank_.bytes(slot);
      }
      continue;
    }
    open(slot);
    if (program_.gradient_dtype != program_.dtype && rank_.contributes(i_.contributing[k]))
      apart += rank_.bytes_of_slice(i_, slot) / bytes_of(program_.gradient_dtype) *
               bytes_of(program_.dtype);
  }
  if (i_.piece == Piece::forward) {
    const auto makes = [&](int slot) { return i_.part() == 0 || program_.slots[slot].slices > 1; };
    for (std::size_t k = 0; k < i_.outputs.size(); ++k) {
      if (makes(i_.outputs[k])) {
        yield(i_.outputs[k], i_.in_place && k == 0);
      } else if (program_.slicing_of(i_) != nullptr) {
        apart += rank_.bytes(i_.outputs[k]);
      }
    }
    for (int slot : i_.saved) {
      if (makes(slot)) fresh(slot);
    }
  } else {
    for (std::size_t k = 0; k < i_.grad_inputs.size(); ++k) {
      const int slot = i_.grad_inputs[k];
      if (slot < 0 || program_.slots[slot].persistent || i_.accumulate[k]) continue;
      yield(slot, i_.in_place);
    }
  }
  if (!scratch_) return;
  const Scratch workspace = rank_.workspace(i_.op, i_.piece, i_.part(), i_.ring_alike);
  made_.measured = workspace.measured;
  made_.estimated = workspace.estimated;
  pass(apart + rank_.copied_operands(i_), workspace.bytes + within);
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
  // The receive of a shift: it sends no bytes of this rank.
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
  if (i_.outputs.empty()) return;  // a send has no output
  if (size.output_is_source) {
    share(i_.outputs[0], slot_holder(i_.inputs[0]), size.result);
  } else {
    make(slot_holder(i_.outputs[0]), size.result);
  }
  if (!size.output_is_held) release(pending);
}

Footprint footprint_of_ring(const RankView& rank, const Instruction& ring, FootprintParts asks) {
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
    all.estimated = std::max(all.estimated, made.estimated);
  }
  return all;
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

Footprint footprint(const RankView& rank, const Instruction& instruction, FootprintParts asks) {
  Footprint made;
  footprint(rank, instruction, asks, made);
  return made;
}

void footprint(const RankView& rank, const Instruction& instruction, FootprintParts asks,
               Footprint& made) {
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

// A collective between persistent slots.
void FootprintMaker::start_lasting() {
  const int from = i_.inputs[0], to = i_.outputs[0];
  if (to != from) open(to);
  transfer(collective_of(i_.move.kind), {i_.move.atoms, i_.move.stages},
           std::max(rank_.bytes(from), rank_.bytes(to)));
}

void FootprintMaker::hooked(bool begins) {
  const bool gathers = i_.serves == Serves::parameters;
  const ReductionCost cost = gathers ? rank_.gather(i_.bucket) : rank_.reduction(i_.bucket);
  if (gathers && begins) open(i_.outputs[0]);
  const ReductionCost::Phase& phase = begins ? cost.start : cost.finish;
  if (begins) step(true, cost.held);
  pass(0, phase.workspace);
  if (!begins) step(false, cost.held);
  works({.gemms = phase.flops > 0 ? 1 : 0,
         .calls = phase.flops > 0 ? 0 : 1,
         .flops = phase.flops,
         .bytes = static_cast<double>(phase.touched)});
  for (const ReductionCost::Call& call : phase.calls)
    transfer(call.op, {i_.move.atoms, i_.move.stages}, call.bytes);
}

// Every rank reads its gradients for the norm. On CPUs, gradients below 4 bytes are widened for it,
// piece by piece.
void FootprintMaker::totals() {
  std::int64_t widened = 0;
  double bytes = 0;
  const int gradients = static_cast<int>(i_.inputs.size()) - 1;
  for (int k = 1; k <= gradients; ++k) {
    const int slot = i_.inputs[k];
    const int item = bytes_of(program_.slots[slot].dtype);
    if (item < 4 && rank_.scratch() == nullptr)
      widened = std::max(widened, 4 * std::min(rank_.bytes(slot) / item, cast_at_a_time));
    bytes += touched(slot);
  }
  // The loss, the squared norm, the wish to stop, and the squared norm of each replica.
  const int replicas = program_.outer ? program_.replicas() : 0;
  const std::int64_t numbers = (3 + replicas) * static_cast<std::int64_t>(sizeof(double));
  pass(numbers, widened);
  works({.calls = gradients, .bytes = bytes});
  if (program_.mesh.size() > 1) {
    transfer(Collective::all_reduce, {world_atoms(program_.mesh), {}}, numbers);
  }
}

void FootprintMaker::update() {
  switch (i_.update) {
    case Update::none:
      break;
    case Update::direction:
      direction();
      break;
    case Update::whole:
      whole();
      break;
    case Update::gram:
      gram();
      break;
    case Update::gram_step:
      gram_step();
      break;
    case Update::sums:
      sums();
      break;
    case Update::swap:
      pass(0, touched(i_.outputs[0]));
      copies(2 * (touched(i_.outputs[0]) + touched(i_.outputs[1])));
      break;
    case Update::outer_gradient:
      outer_gradient();
      break;
    case Update::apply:
    case Update::outer_step:
      apply();
      break;
  }
}

// The anchor and the parameters are read; a difference in another dtype is made piece by piece.
void FootprintMaker::outer_gradient() {
  const UpdateSteps steps = update_steps(rank_, i_, rank_.scratch() != nullptr);
  const int to = i_.outputs[0], wide = bytes_of(program_.optimizer_dtype);
  if (program_.slots[to].transient) open(to);
  pass(0, steps.casts ? wide * steps.at_a_time : 0);
  copies(touched(to) + static_cast<double>(2 * wide * steps.elements));
}

// Parameters, states and gradients are read, and what the op allocates for a piece is let go.
void FootprintMaker::sums() {
  const UpdateSteps steps = update_steps(rank_, i_, rank_.scratch() != nullptr);
  fresh(i_.outputs[0]);
  pass(0, room_of_update(steps));
  const auto states = static_cast<double>(bucket().flat.states.size());
  copies(static_cast<double>(steps.elements) *
         ((states + 1) * bytes_of(program_.optimizer_dtype) + bytes_of(program_.gradient_dtype)));
}

// What the op of an update of elements takes for a piece: what it allocates, and if it reads sums,
// the cast gradient and numbers of rows and columns that are brought to the elements.
std::int64_t FootprintMaker::room_of_update(const UpdateSteps& steps) const {
  const UpdateRule* const rule = rule_of_update(program_, i_);
  const bool sums = rule != nullptr && !rule->sums.empty();
  int tensors = steps.temporaries + (sums && steps.casts ? 1 : 0);
  if (sums && bucket().rule->of_matrices()) {
    tensors += static_cast<int>(bucket().rule->of_matrix.size());
    for (const UpdateSum& sum : bucket().rule->sums) tensors += sum.each ? 1 : 0;
    if (i_.update == Update::sums && !bucket().shard_atoms.empty()) ++tensors;  // a whole parameter
  }
  std::int64_t at_a_time = steps.at_a_time;
  if (sums) {  // one parameter after the other
    at_a_time = 0;
    for (std::size_t n = 0; n < bucket().parameters.size(); ++n)
      at_a_time = std::max(at_a_time, updated_part(rank_, i_.bucket, n).elements.size);
    at_a_time = std::min(at_a_time, steps.at_a_time);
  }
  return bytes_of(program_.optimizer_dtype) * at_a_time * tensors;
}

// Gradients and states are read, states and directions written.
void FootprintMaker::direction() {
  const int to = i_.outputs[0];
  const UpdateSteps steps = update_steps(rank_, i_, rank_.scratch() != nullptr);
  if (program_.slots[to].persistent) {
    open(to);
  } else {
    steps.casts ? fresh(to) : share(to, slot_holder(i_.inputs[0]), 0);
  }
  const auto elements = static_cast<double>(steps.elements);
  copies(elements * bytes_of(program_.gradient_dtype) +
         static_cast<double>(2 * bucket().flat.states.size() + 1) * elements *
             bytes_of(program_.optimizer_dtype));
}

void FootprintMaker::whole() {
  const MatrixUpdate update = matrix_update(rank_, i_);
  if (!takes_part(rank_, i_)) {
    if (i_.owner < 0) return;
    fresh(i_.outputs[0]);
    return works({.calls = 1, .bytes = static_cast<double>(rank_.bytes(i_.outputs[0]))});
  }
  const MatrixOp::Cost cost = bucket().rule->whole->cost(
      update.stacked, update.rows, update.columns, bytes_of(program_.optimizer_dtype));
  const int from = i_.inputs[0], to = i_.outputs[0];
  if (cost.in_place) {
    share(to, slot_holder(from), 0);
  } else {
    fresh(to);
  }
  pass(0, cost.workspace);
  works({.gemms = cost.gemms, .flops = cost.flops});
}

// A rank that does not take part adds zeros.
void FootprintMaker::gram() {
  fresh(i_.outputs[0]);
  if (!takes_part(rank_, i_))
    return works({.calls = 1, .bytes = static_cast<double>(rank_.bytes(i_.outputs[0]))});
  const MatrixParts part = matrix_parts(rank_, i_.parameter);
  works({.gemms = 1,
         .flops = 2.0 * static_cast<double>(part.stacked * part.rows * part.columns * part.n())});
}

void FootprintMaker::gram_step() {
  const int from = i_.inputs[0], to = i_.outputs[0];
  if (!takes_part(rank_, i_)) return share(to, slot_holder(from), 0);
  const MatrixParts part = matrix_parts(rank_, i_.parameter);
  const MatrixOp::Cost cost = bucket().rule->whole->gram_step_cost(
      part.stacked, part.n(), part.others(), bytes_of(program_.optimizer_dtype));
  cost.in_place ? share(to, slot_holder(from), 0) : fresh(to);
  pass(0, cost.workspace);
  works({.gemms = cost.gemms, .flops = cost.flops});
}

// Parameters and states are read and written, gradients read.
void FootprintMaker::apply() {
  const UpdateSteps steps = update_steps(rank_, i_, rank_.scratch() != nullptr);
  const bool outer = i_.update == Update::outer_step;
  const FlatSlots& flat = bucket().flat;
  // An outer step also writes the anchor to the parameters.
  const std::size_t states = outer               ? flat.outer_states.size() + 1
                             : i_.parameter >= 0 ? 0
                                                 : flat.states.size();
  const int gradient = bytes_of(program_.slots[i_.inputs[0]].dtype);
  if (i_.parameter >= 0 && steps.elements > 0) pass(matrix_update(rank_, i_).apart);
  const UpdateRule* const rule = rule_of_update(program_, i_);
  const bool casts_apart = rule != nullptr && rule->sums.empty() && steps.casts;
  if (!steps.host)
    pass(casts_apart ? bytes_of(program_.optimizer_dtype) * steps.at_a_time : 0,
         room_of_update(steps));
  const double moved =
      static_cast<double>(steps.elements) *
      static_cast<double>(2 * (states + 1) * bytes_of(program_.optimizer_dtype) + gradient);
  if (!steps.host) {
    copies(moved);
    return;
  }
  if (bucket().updated_on_host()) {
    made_.on_host = i_.inputs[0];
    const double cast = i_.outputs.size() > 1 ? touched(i_.outputs[1]) : 0;
    works({.calls = 1, .host = moved + cast});
    return;
  }
  const int both_ways = steps.fetches_parameters ? 2 * bytes_of(program_.dtype) : 0;
  works({.calls = 1,
         .host = moved,
         .link = static_cast<double>(steps.elements * (gradient + both_ways))});
}

}  // namespace mw
