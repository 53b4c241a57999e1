// Runs the timeline of a rank's program: for each segment its instructions. Moves post collectives
// and write what arrived into its slot; buckets are reduced and gathered whole, and the step's
// totals are summed.
#include "run/executor.h"

#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "meshwright/engine/host.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// A kernel's, an op's or the ledger's own words, and where they were said.
Error failed(const Instruction& i, int microbatch, Problem said) {
  said.stage = Stage::run;
  said.message = fmt::format("{} (in the {} of {}, microbatch {})", said.message, name_of(i.piece),
                             i.label, microbatch);
  return Error(std::move(said));
}

}  // namespace

Executor::Executor(const Program& program, int rank, at::Device device, CommunicatorSource& source,
                   Ledger& ledger, const StepInput& input, const Executor* first)
    : program_(program),
      graph_(*program.graph),
      rank_(rank),
      at_(program.mesh.coordinates(rank)),
      real_(scalar_type(program.dtype)),
      device_(device),
      source_(source),
      ledger_(ledger),
      input_(input),
      kept_(first == nullptr ? std::make_shared<Kept>() : first->kept_),
      sizes_(program, at_),
      storage_(sizes_.of_kind(0), device, ledger, first == nullptr ? nullptr : &first->storage_),
      groups_(kept_->groups),
      hook_of_bucket_(kept_->hooks),
      scaler_(first == nullptr ? std::make_shared<LossScaler>(input.loss_scale) : first->scaler_),
      clock_(device),
      account_(device, ledger),
      copies_(device, ledger) {
  number_rows();
  find_updates();
  if (first == nullptr) make_hooks();
}

Executor::~Executor() = default;

void Executor::add_program(const Program& program) {
  others_.push_back(
      std::make_unique<Executor>(program, rank_, device_, source_, ledger_, input_, this));
}

void Executor::evaluate_by(const Program& program, const StepInput& input) {
  evaluator_ = std::make_unique<Executor>(program, rank_, device_, source_, ledger_, input, this);
}

double Executor::evaluate(std::int64_t batch) {
  await_updates();
  return evaluator_->own_step(batch, 0).loss;
}

void Executor::watch(Watcher* watcher) {
  watcher_ = watcher;
  for (const auto& other : others_) other->watch(watcher);
}

void Executor::leave_out_not_finite() {
  leaves_out_ = true;
  for (const auto& other : others_) other->leave_out_not_finite();
}

StepOutcome Executor::step(std::int64_t index, double lr) {
  const int which = input_.which ? input_.which(index) : 0;
  return which == 0 ? own_step(index, lr) : others_.at(which - 1)->own_step(index, lr);
}

Communicator& Executor::group(const RankSet& set, int stream) {
  const std::string on = stream < 0 ? "" : program_.streams.at(static_cast<std::size_t>(stream));
  auto& communicator = groups_[{set, on}];
  if (!communicator) {
    const std::vector<int> ranks = program_.ranks_of(set, rank_);
    const auto index = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    communicator = make_communicator(source_, program_.name_of(set), ranks, static_cast<int>(index),
                                     &ledger_, on);
  }
  return *communicator;
}

at::TensorOptions Executor::options(int slot) const {
  return at::TensorOptions().dtype(scalar_type(program_.slots[slot].dtype)).device(device_);
}

StepOutcome Executor::own_step(std::int64_t index, double lr) {
  const at::NoGradGuard no_grad;
  // Nothing here is differentiated by torch but what AutogradOp asks for: its layers between a call
  // and its kernel would be a fifth of the instructions of a small step.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  step_ = index;
  outcome_ = {};
  outcome_.lr = lr;
  if (!input_.forward_only && scaler_->begin(index)) make_hooks();
  const bool traced =
      std::find(input_.traced.begin(), input_.traced.end(), index) != input_.traced.end();
  if (traced && input_.account) watcher_ = account_.begin(watcher_);
  if (watcher_ != nullptr) watcher_->begin(*this, index);
  outcome_.began = seconds_now();
  clock_.begin();
  run_marks_.clear();
  instruction_marks_.clear();
  instruction_work_.clear();
  work_.clear();
  for (std::size_t r = 0; r < program_.timeline.size(); ++r) {
    const SegmentRun& part = program_.timeline[r];
    run_lanes(part, traced);
    for (int lane = 0; lane < lanes_of(part); ++lane) {
      const int microbatch = microbatch_of(part, lane);
      if (last_run_[r].at(static_cast<std::size_t>(lane))) microbatches_[microbatch].rows.clear();
      if (watcher_ != nullptr) watcher_->ran(microbatch);
    }
  }
  if (copies_.any()) copies_.finish();
  microbatches_.clear();
  if (!input_.forward_only) leave_updates();
  if (watcher_ != nullptr) {
    const Ledger::OfNextStep next(ledger_);
    watcher_->ended();
  }
  if (account_.runs()) watcher_ = account_.end(outcome_);
  read_times();
  return std::move(outcome_);
}

void Executor::read_times() {
  clock_.end();
  for (std::size_t r = 0; r < outcome_.runs.size(); ++r) {
    outcome_.runs[r].start = clock_.seconds(run_marks_[2 * r]);
    outcome_.runs[r].end = clock_.seconds(run_marks_[2 * r + 1]);
  }
  for (std::size_t n = 0; n < outcome_.instructions.size(); ++n) {
    InstructionTime& time = outcome_.instructions[n];
    time.start = clock_.seconds(instruction_marks_[2 * n]);
    time.end = clock_.seconds(instruction_marks_[2 * n + 1]);
    outcome_.moments[n].time = time.end;
    if (!instruction_work_.empty()) read_parts(n);
  }
  for (const Work& w : work_) {
    ledger_.worked(w.op->kind(), name_of(w.piece), w.flops,
                   clock_.seconds(w.to) - clock_.seconds(w.from));
  }
}

void Executor::read_parts(std::size_t n) {
  InstructionTime& time = outcome_.instructions[n];
  time.parts = account_.parts()[n];
  if (const int work = instruction_work_[n]; work >= 0) {
    const auto& [op, piece, flops, from, to] = work_[static_cast<std::size_t>(work)];
    time.parts.kernel = clock_.seconds(to) - clock_.seconds(from);
  } else if (time.parts.sent < 0) {
    time.parts.sent = time.end - time.start;
  }
}

// Runs the code of one entry of the timeline. A lane's time is from its first instruction to its
// last one: marks are made where the braid turns from one lane to another.
void Executor::run_lanes(const SegmentRun& part, bool traced) {
  const std::vector<Instruction>& code = program_.segments[part.segment].code;
  const std::size_t first = outcome_.runs.size();
  const int begin = clock_.mark();
  for (int lane = 0; lane < lanes_of(part); ++lane) {
    outcome_.runs.push_back({part.segment, microbatch_of(part, lane), 0, 0, lane});
    run_marks_.insert(run_marks_.end(), {begin, begin});
  }
  std::vector<bool> began(static_cast<std::size_t>(lanes_of(part)), false);
  for (std::size_t n = 0; n < code.size(); ++n) {
    const auto lane = static_cast<std::size_t>(code[n].lane);
    const bool turns = n + 1 == code.size() || code[n + 1].lane != code[n].lane;
    if (!began[lane] && n > 0) run_marks_[2 * (first + lane)] = clock_.mark();
    began[lane] = true;
    if (traced) {
      run_traced(part, n);
    } else {
      run(code[n], microbatch_of(part, code[n].lane));
    }
    if (turns) run_marks_[2 * (first + lane) + 1] = clock_.mark();
  }
}

void Executor::run_traced(const SegmentRun& part, std::size_t index) {
  const Instruction& i = program_.segments[part.segment].code[index];
  InstructionTime time;
  time.segment = part.segment;
  time.index = static_cast<int>(index);
  time.microbatch = microbatch_of(part, i.lane);
  if (!i.ring) {
    run_traced(i, time);
    return;
  }
  for (const Instruction& each : steps_of(i)) {
    ++time.inner;
    run_traced(each, time);
  }
}

void Executor::run_traced(const Instruction& i, InstructionTime time) {
  const std::size_t work = work_.size();
  if (account_.runs()) account_.before(i);
  const int from = clock_.mark();
  run(i, time.microbatch);
  const int to = clock_.mark();
  if (account_.runs()) {
    account_.after(i);
    instruction_work_.push_back(work_.size() > work ? static_cast<int>(work) : -1);
  } else if (outcome_.instructions.size() >= most_instructions_recorded) {
    return;
  }
  instruction_marks_.insert(instruction_marks_.end(), {from, to});
  MemoryMoment moment;
  for (int c = 0; c < category_count; ++c)
    moment.bytes[c] = ledger_.memory(static_cast<Category>(c)).bytes;
  outcome_.instructions.push_back(time);
  outcome_.moments.push_back(moment);
}

void Executor::touch(const Instruction& i, const Microbatch& m) {
  // A transfer follows what it reads (start_lasting), and the rank waits for neither.
  const bool follows = i.code == Code::start && between_lasting(program_, i);
  const auto followed = [&](int slot) {
    if (slot == i.inputs[0]) return true;
    const at::Tensor &source = tensor(m, i.inputs[0]), &other = tensor(m, slot);
    return copies_.brings(source) && other.defined() && other.is_alias_of(source);
  };
  for_each_slot(i, [&](int slot) {
    if (!follows || !followed(slot)) copies_.touch(tensor(m, slot));
  });
  for (int slot : i.release) copies_.touch(tensor(m, slot));
}

// What each code does. It sees all of the executor, whose header need not know of a new code.
struct Executor::Codes {
  Executor& e;
  const Instruction& i;
  Microbatch& m;
  const int microbatch;

  void run() {
    switch (i.code) {
      case Code::load:
        return load();
      case Code::compute:
        return i.update == Update::none ? compute() : e.update(i, m);
      case Code::move:
      case Code::start:
      case Code::hook_start:
        return e.start(i, m, microbatch);
      case Code::wait:
      case Code::hook_finish:
        return e.wait(i, m, microbatch);
      case Code::seed:
        m.slots[i.outputs[0]] = at::full({}, e.scaler_->scale(), e.options(i.outputs[0]));
        return;
      case Code::alias:  // of a flat slot: its parameter's part of it
        m.slots[i.outputs[0]] = i.parameter >= 0
                                    ? e.storage_.slice(i.parameter, e.storage_[i.inputs[0]])
                                    : e.tensor(m, i.inputs[0]);
        return;
      case Code::add:
        return add();
      case Code::copy:
        return copy();
      case Code::begin_sum:
        if (i.contributing.empty() || i.contributing[0].empty() ||
            !e.sizes_.of_kind(0).contributes(i.contributing[0])) {
          for (int slot : i.outputs) e.storage_.begin_sum(slot);
        }
        return;
      case Code::settle:
        e.storage_.settle(i.outputs[0]);
        return;
      case Code::totals:
        return e.totals(i);
    }
  }

  void compute() {
    try {
      e.compute(i, m, microbatch);
    } catch (const Error& error) {
      throw failed(i, microbatch, error.problems().front());
    } catch (const std::exception& error) {
      throw failed(i, microbatch, problem_of(error));
    }
  }

  void add() {
    if (!i.contributing.empty() && !e.sizes_.of_kind(0).contributes(i.contributing[0])) return;
    if (e.lasts(i.outputs[0])) {
      e.storage_.add(i.outputs[0], e.tensor(m, i.inputs[0]));
    } else {
      m.slots[i.outputs[0]].add_(e.tensor(m, i.inputs[0]));
    }
  }

  void copy() {
    const Slot &from = e.program_.slots[i.inputs[0]], &to = e.program_.slots[i.outputs[0]];
    const at::Tensor& source = e.tensor(m, i.inputs[0]);
    if (to.transient && to.memory != from.memory) {
      const Ledger::Scope scope(e.ledger_, to.category);
      e.storage_.put(i.outputs[0], e.copies_.to_device(source, to.name, from.persistent));
    } else if (from.transient && to.memory == Memory::host) {
      e.copies_.back(e.storage_[i.outputs[0]], source, from.name);
    } else if (to.persistent && to.memory != from.memory) {
      e.copies_.copy(e.storage_[i.outputs[0]], source,
                     to.memory == Memory::host ? from.name : to.name);
    } else if (to.persistent) {
      const at::Tensor& target = e.storage_.open(i.outputs[0]);
      if (to.memory == Memory::host && e.copies_.any()) {
        const HostWait waits("a cast in host memory");
        e.copies_.land();  // the tensor that is cast may still be on its way from the device
      }
      target.copy_(source, /*non_blocking=*/to.memory == Memory::device);
    } else if (from.memory == to.memory) {
      m.slots[i.outputs[0]] =
          from.dtype == to.dtype
              ? source.clone()
              : source.to(source.options().dtype(scalar_type(to.dtype)), /*non_blocking=*/false,
                          /*copy=*/true, at::MemoryFormat::Contiguous);
    } else {
      const bool host = to.memory == Memory::host;
      const Ledger::Scope scope(e.ledger_, host ? Category::host : Category::activations);
      const std::string name = fmt::format("{} of microbatch {}", i.label, microbatch);
      m.slots[i.outputs[0]] =
          host ? e.copies_.to_host(source, name) : e.copies_.to_device(source, name);
    }
  }

  // Rows of the microbatch's data. An op may take tokens in other rows than another op the labels.
  struct SampledRows {
    Range range;
    at::Tensor tokens, labels;
  };

  void load() {
    Ledger::Scope scope(e.ledger_, Category::buffers);
    const std::int64_t sequence = e.graph_.size("seq");
    const auto cpu = at::TensorOptions().dtype(at::kLong);
    std::vector<SampledRows> sampled;
    for (int slot : i.outputs) {
      const Slot& s = e.program_.slots[slot];
      const DataCut cut = m.sizes->data_cut(slot);
      at::Tensor data;
      if (s.name == "positions") {
        std::vector<at::Tensor> runs;
        for (const Range& run : cut.columns) {
          runs.push_back(at::arange(run.offset, run.offset + run.size, cpu));
        }
        data = runs.size() == 1 ? runs[0] : at::cat(runs);
      } else if (s.name == "tokens" || s.name == "labels") {
        auto rows = std::find_if(sampled.begin(), sampled.end(),
                                 [&](const SampledRows& of) { return cut.of_rows(of.range); });
        if (rows == sampled.end()) {
          rows = sampled.insert(rows, {cut.rows, at::empty({cut.rows.size, sequence}, cpu),
                                       at::empty({cut.rows.size, sequence}, cpu)});
          e.input_.data->sample_rows(
              e.input_.first_sample(e.step_) + e.program_.first_row(microbatch) + cut.rows.offset,
              rows->tokens, rows->labels);
        }
        data = in_runs(s.name == "labels" ? rows->labels : rows->tokens, 1, cut.columns);
        if (cut.copies) data = data.contiguous();
      } else {  // a model file's mistake
        throw std::logic_error("the model asks for the data value \"" + s.name +
                               "\"; there are tokens, labels and positions");
      }
      m.slots[slot] =
          e.copies_.brought(data, fmt::format("{} of microbatch {}", s.name, microbatch));
    }
  }
};

const std::vector<Instruction>& Executor::steps_of(const Instruction& ring) {
  const auto [known, missing] = rings_.try_emplace(&ring);
  if (missing) known->second = ring_steps(program_, ring);
  return known->second;
}

void Executor::run(const Instruction& i, int microbatch) {
  if (i.ring) {
    for (const Instruction& each : steps_of(i)) run(each, microbatch);
    return;
  }
  if (completes_update(program_, i) && !goes_on(i)) return;
  Microbatch& m = microbatches_[microbatch];
  if (m.slots.empty()) {
    m.slots.resize(program_.slots.size());
    m.sizes = &sizes_.of(microbatch);
  }
  if (copies_.any()) touch(i, m);
  const Ledger::Scope scope(ledger_, Category::activations);
  Codes{*this, i, m, microbatch}.run();
  if (ledger_.over_limit()) {  // an accelerator's allocator cannot throw where it is asked
    throw Error(Stage::run, "memory.exceeded", "memory",
                fmt::format("Rank {} is out of its memory limit: {} bytes in use with {}.", rank_,
                            ledger_.peak_bytes(), i.label),
                ledger_.limit_hint());
  }
  if (watcher_ != nullptr &&
      (i.code == Code::move || i.code == Code::wait || i.code == Code::copy) &&
      !i.outputs.empty() && !lasts(i.outputs[0]) && program_.slots[i.outputs[0]].slices == 1) {
    if (i.code == Code::copy) {  // it may read what is on its way to host memory
      const HostWait waits("check = true");
      copies_.land();
    }
    watcher_->moved(i, i.outputs[0], microbatch, tensor(m, i.outputs[0]));
  }
  for (int slot : i.release) {
    if (lasts(slot)) {
      storage_.drop(slot);
    } else {
      m.slots[slot].reset();
    }
  }
}

const MoveSteps& Executor::steps(const Instruction& i, const Microbatch& m) {
  const auto [known, missing] = steps_.try_emplace({&i, m.sizes});
  if (missing) known->second = m.sizes->steps(i);
  return known->second;
}

void Executor::start(const Instruction& i, Microbatch& m, int microbatch) {
  const auto begun = [&](Underway move) {
    (outlasts_step(program_, i) ? kept_->gathers[i.bucket] : underway_[underway(i, microbatch)]) =
        std::move(move);
  };
  using MoveKind = Move::Kind;
  if (i.code == Code::hook_start) return begun(start_hook(i));
  if (between_lasting(program_, i)) return begun(start_lasting(i));
  if (i.move.kind == MoveKind::send || i.move.kind == MoveKind::recv)
    return begun(start_transfer(i, m, microbatch));
  if (i.move.kind == MoveKind::shift) return begun(start_shift(i, m, microbatch));
  if (i.move.exchanges_rows()) return begun(start_exchange(i, m));
  const MoveSteps& steps = this->steps(i, m);
  if (i.code == Code::move) {
    m.slots[i.outputs[0]] = local_move(i.move, steps, tensor(m, i.inputs[0]));
  } else {
    begun(start_move(i.move, steps, tensor(m, i.inputs[0]),
                     group({i.move.atoms, {}}, i.move.stream), {i.phase, &i.label}));
  }
}

void Executor::wait(const Instruction& i, Microbatch& m, int microbatch) {
  if (outlasts_step(program_, i)) {
    if (const auto gather = kept_->gathers.find(i.bucket); gather != kept_->gathers.end()) {
      gather->second.finish();
      kept_->gathers.erase(gather);
    }
    return;
  }
  const auto move = underway_.find(underway(i, microbatch));
  if (move == underway_.end()) {
    if (i.again && !i.outputs.empty() && tensor(m, i.outputs[0]).defined()) return;
    const Slots& slots = i.outputs.empty() ? i.inputs : i.outputs;
    throw std::logic_error(
        fmt::format("{} of {} waits for transfer {} of {}, which was never begun", name_of(i.code),
                    i.label, i.pending, slots.empty() ? "no slot" : program_.slots[slots[0]].name));
  }
  const at::Tensor done = move->second.finish();
  if (done.defined()) m.slots[i.outputs[0]] = done;
  underway_.erase(move);
}

Underway Executor::start_transfer(const Instruction& i, Microbatch& m, int microbatch) {
  Communicator& stages = group({i.move.atoms, {}});
  const int tag = i.move.tag * program_.microbatches + microbatch;
  if (i.move.kind == Move::Kind::send) {
    const at::Tensor out = tensor(m, i.inputs[0]);
    return {stages.send(out, i.move.peer, tag, {i.phase, &i.label}), [] { return at::Tensor(); }};
  }
  at::Tensor in = at::empty(steps(i, m).arrived.shape, options(i.outputs[0]));
  return {stages.recv(in, i.move.peer, tag, {i.phase, &i.label}), [in] { return in; }};
}

Underway Executor::start_shift(const Instruction& i, Microbatch& m, int microbatch) {
  Communicator& ring = group({i.move.atoms, {}});
  const int ways = ring.ways(), me = ring.index();
  const int tag = (i.pending * i.ring_steps + i.ring_step) * program_.microbatches + microbatch;
  const Purpose purpose{i.phase, &i.label};
  const at::Tensor out = tensor(m, i.inputs[0]).contiguous();
  at::Tensor in = at::empty(steps(i, m).arrived.shape, options(i.outputs[0]));
  const auto sent = std::make_shared<Pending>(ring.send(out, (me + 1) % ways, tag, purpose));
  return {ring.recv(in, (me + ways - 1) % ways, tag, purpose), [in, out, sent] {
            sent->wait();
            return in;
          }};
}

at::Tensor Executor::redistribute(const at::Tensor& tensor, const Dims& dims, const Layout& from,
                                  const Layout& to, std::int64_t batch) {
  at::Tensor moved = tensor;
  Layout now = from;
  static const std::string label = "gather for comparison";
  for (const Move& move : moves(from, to, program_.mesh)) {
    const Layout next = after(now, move);
    const MoveSteps steps = move_steps(move, dims, moved.sizes().vec(), now, next, program_.mesh,
                                       at_, [&](Dim dim) { return program_.size(dim, batch); });
    if (communicates(move.kind)) {
      moved = start_move(move, steps, moved, group({move.atoms, {}}), {"verify", &label}).finish();
    } else {
      moved = local_move(move, steps, moved);
    }
    now = next;
  }
  return moved;
}

void Executor::make_hooks() {
  Ledger::Scope scope(ledger_, Category::buffers);
  hook_of_bucket_.clear();
  const auto options =
      at::TensorOptions().device(device_).dtype(scalar_type(program_.gradient_dtype));
  for (const Bucket& bucket : program_.buckets) {
    hook_of_bucket_.push_back(
        bucket.hook ? bucket.hook->make(shape_of(program_, bucket, at_), options) : nullptr);
  }
}

Underway Executor::start_lasting(const Instruction& i) {
  const at::Tensor& source = storage_[i.inputs[0]];
  Communicator& ranks = group({i.move.atoms, i.move.stages}, i.move.stream);
  const Purpose purpose{i.phase, &i.label};
  const at::Tensor& target = storage_.open(i.outputs[0]);
  const auto nothing = [] { return at::Tensor(); };
  // Where the source is still on its way from host memory, the transfer follows it there, and what
  // the rank computes goes on beside both.
  std::optional<c10::StreamGuard> guard;
  if (copies_.brings(source)) guard.emplace(copies_.stream_of(source));
  return {i.move.kind == Move::Kind::all_reduce ? ranks.all_reduce(target, Reduction::sum, purpose)
          : i.move.kind == Move::Kind::reduce_scatter
              ? ranks.reduce_scatter(target, source, Reduction::sum, purpose)
              : ranks.all_gather(target, source, purpose),
          nothing};
}

Underway Executor::start_hook(const Instruction& i) {
  const Ledger::Scope scope(ledger_, Category::buffers);
  hook_of_bucket_[i.bucket]->start(storage_[i.inputs[0]],
                                   group({i.move.atoms, i.move.stages}, i.move.stream),
                                   {i.phase, &i.label});
  return {{}, [this, &i] {
            const Ledger::Scope again(ledger_, Category::buffers);
            hook_of_bucket_[i.bucket]->finish();
            return at::Tensor();
          }};
}

at::Tensor Executor::whole(int bucket, bool gradients) {
  await_updates();
  const Bucket& b = program_.buckets[bucket];
  const at::Tensor& parameters = storage_[b.flat.parameters];
  if (!gradients && parameters.defined()) return parameters;
  const HostWait waits("a gather outside of steps");
  at::Tensor part = storage_[gradients ? b.flat.reduced : b.flat.stored].to(device_);
  if (b.shard_atoms.empty()) return part;
  Communicator& ranks = group({b.shard_atoms, {}});
  at::Tensor all = at::empty({part.numel() * ranks.ways()}, part.options());
  static const std::string label = "gather for comparison";
  ranks.all_gather(all, part.contiguous(), {"verify", &label}).wait();
  return all;
}

at::Tensor Executor::slice(int parameter, const at::Tensor& whole) const {
  return storage_.slice(parameter, whole);
}

}  // namespace mw
