// Runs the timeline of a rank's program: for each segment its instructions, as they were lowered.
#include "run/executor.h"

#include <ATen/core/grad_mode.h>
#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>

#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/error.h"
#include "meshwright/inputs.h"

namespace mw {

Executor::Executor(const Program& program, int rank, at::Device device, CommunicatorSource& source,
                   Ledger& ledger, const RunSetup& setup, const std::atomic<bool>* stop,
                   const Executor* first, bool forward_only)
    : program_(program),
      graph_(*program.graph),
      rank_(rank),
      at_(program.mesh.coordinates(rank)),
      device_(device),
      source_(source),
      ledger_(ledger),
      setup_(setup),
      stop_(stop),
      forward_only_(forward_only),
      kept_(first == nullptr ? std::make_shared<Kept>(setup.loss_scale) : first->kept_),
      sizes_(program, at_),
      storage_(sizes_.of_kind(0), device, ledger, first == nullptr ? nullptr : &first->storage_),
      lowering_(sizes_, device, ledger),
      microbatches_(static_cast<std::size_t>(program.microbatches) + 1),
      updates_(lowering_.updates()),
      clock_(device),
      account_(device, ledger),
      copies_(device, ledger) {
  find_runs();
  find_expert_loads();
  if (first != nullptr) return;
  kept_->left.made.resize(program.buckets.size());
  make_hooks();
}

void Executor::add_program(const Program& program) {
  others_.push_back(
      std::make_unique<Executor>(program, rank_, device_, source_, ledger_, setup_, stop_, this));
}

void Executor::add_outer(const Program& program, const OuterEvent& event) {
  outer_.push_back({event, std::make_unique<Executor>(program, rank_, device_, source_, ledger_,
                                                      setup_, stop_, this)});
}

void Executor::evaluate_by(const Program& program, const RunSetup& setup) {
  evaluator_ = std::make_unique<Executor>(program, rank_, device_, source_, ledger_, setup, stop_,
                                          this, true);
}

StepOutcome Executor::evaluate(std::int64_t batch) {
  await_parameters();
  return evaluator_->own_step(batch, 0);
}

void Executor::watch(Watcher* watcher) {
  if (watcher == nullptr)
    throw Error(Stage::run, "plugin.fault", "observers", "watch() was given no watcher",
                "give it one that lives until unwatch(), or until the run ends");
  const comm::RankCalls* const calls = comm::RankCalls::current();
  watchers_.push_back(
      {watcher, calls == nullptr ? comm::RankCalls::PluginCall{} : calls->plugin_call()});
  for (const auto& other : others_) other->watch(watcher);
}

// In a handler of what it threw.
void Executor::throw_of_watcher(const Watching& one) const {
  const std::string& observer = one.observer.callee;
  const std::string shown = fmt::format("{} was shown a tensor of step {}",
                                        observer.empty() ? "a watcher" : observer, step_);
  try {
    throw;
  } catch (const Stopped&) {
    throw;
  } catch (const Aborted&) {  // by another rank, for which the observer's collective waited
    throw;
  } catch (const WaitedInVain&) {
    throw;
  } catch (const Error& error) {
    if (observer.empty()) throw;
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems)
      problem.message = fmt::format("{}, and threw: {}", shown, problem.message);
    throw Error(std::move(problems));
  } catch (...) {
    throw Error(Stage::run, "plugin.fault", "observers",
                fmt::format("{}, and threw: {}", shown, thrown_text()), "mend the observer");
  }
}

void Executor::unwatch(Watcher* watcher) {
  std::erase_if(watchers_, [&](const Watching& one) { return one.watcher == watcher; });
  for (const auto& other : others_) other->unwatch(watcher);
}

StepOutcome Executor::step(std::int64_t index, double lr) {
  const int which = setup_.which_plan(index);
  StepOutcome outcome =
      which == 0 ? own_step(index, lr) : others_.at(which - 1)->own_step(index, lr);
  if (program_.outer && !outcome.not_finite) take_outer_steps(index);
  return outcome;
}

void Executor::take_outer_steps(std::int64_t step) {
  for (const OuterEvent& event : outer_events(*program_.outer, step)) {
    await_parameters();
    const auto due = std::find_if(outer_.begin(), outer_.end(), [&](const OuterProgram& one) {
      return one.event.same_kind(event);
    });
    due->executor->step_ = step;
    due->executor->outer_step(event.count);
  }
}

void Executor::outer_step(std::int64_t count) {
  const at::NoGradGuard no_grad;
  outer_count_ = count;
  outcome_ = {};
  clock_.begin();
  run_marks_.clear();
  instruction_marks_.clear();
  work_.clear();
  for (const TimelineRun& part : timeline_) run_part(part, false);
  if (copies_.any()) copies_.finish();
  clock_.end();
}

Executor::UpdateNumbers Executor::numbers_of_outer_step() const {
  const OuterSteps& outer = *program_.outer;
  return {outer.optimizer ? outer.optimizer->lr() : 0, outer_count_, 1.0 / program_.replicas(),
          false};
}

at::TensorOptions Executor::options(int slot) const {
  return at::TensorOptions().dtype(scalar_type(program_.slots[slot].dtype)).device(device_);
}

StepOutcome Executor::own_step(std::int64_t index, double lr) {
  const at::NoGradGuard no_grad;
  // Torch differentiates nothing here but what AutogradOp asks for. Its layers between a call and
  // the kernel would be a fifth of the instructions of a small step.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  step_ = index;
  outcome_ = {};
  outcome_.lr = lr;
  samples_ = setup_.data->samples_of_step(
      setup_.first_sample(step_),
      setup_.row_groups.empty() ? program_.groups_of_rows() : setup_.row_groups,
      graph_.size("seq"));
  if (program_.replicas() > 1) samples_ = by_replica(samples_);
  outcome_.labels = labels_of_step();
  outcome_.update_left_out = !forward_only_ && outcome_.labels == 0;
  if (!forward_only_ && kept_->scaler.begin(index)) make_hooks();
  const bool traced =
      std::find(setup_.trace.begin(), setup_.trace.end(), index) != setup_.trace.end();
  if (traced && setup_.account) account_.begin(outcome_);
  show([&](Watcher& watcher) { watcher.begin(*this, index); });
  outcome_.began = seconds_now();
  clock_.begin();
  run_marks_.clear();
  instruction_marks_.clear();
  work_.clear();
  for (const TimelineRun& part : timeline_) {
    run_part(part, traced);
    for (const Microbatch* microbatch : part.lanes)
      show([&](Watcher& watcher) { watcher.ran(microbatch->number); });
  }
  if (copies_.any()) copies_.finish();
  for (Microbatch& m : microbatches_) {
    for (at::Tensor& slot : m.slots) slot.reset();
    for (Rows& rows : m.rows) rows.known = false;
  }
  if (!forward_only_) leave_updates();
  show([&](Watcher& watcher) {
    const Ledger::OfNextStep next(ledger_);
    watcher.ended();
  });
  if (account_.runs()) account_.end();
  read_times();
  return std::move(outcome_);
}

// Gives each replica adjacent samples of the step, however microbatches cut them. A microbatch has
// the rows of all replicas, one replica's after the other's.
std::vector<std::int64_t> Executor::by_replica(const std::vector<std::int64_t>& samples) const {
  const std::int64_t replicas = program_.replicas(),
                     own = static_cast<std::int64_t>(samples.size()) / replicas;
  std::vector<std::int64_t> rows;
  rows.reserve(samples.size());
  std::int64_t done = 0;  // rows of each replica in the microbatches so far
  for (int m = 0; m < program_.microbatches; ++m) {
    const std::int64_t count = program_.batch_of(m) / replicas;
    for (std::int64_t r = 0; r < replicas; ++r) {
      const auto first = samples.begin() + r * own + done;
      rows.insert(rows.end(), first, first + count);
    }
    done += count;
  }
  return rows;
}

void Executor::read_times() {
  clock_.end();
  const auto seconds = [&](int from, int to) { return clock_.seconds(to) - clock_.seconds(from); };
  for (std::size_t r = 0; r < outcome_.runs.size(); ++r) {
    outcome_.runs[r].start = clock_.seconds(run_marks_[r].from);
    outcome_.runs[r].end = clock_.seconds(run_marks_[r].to);
  }
  for (std::size_t n = 0; n < outcome_.instructions.size(); ++n) {
    const auto [from, to, work] = instruction_marks_[n];
    InstructionTime& time = outcome_.instructions[n];
    time.start = clock_.seconds(from);
    time.end = outcome_.moments[n].time = clock_.seconds(to);
    if (work >= 0) {
      time.parts.kernel = seconds(work_[work].from, work_[work].to);
    } else if (time.parts.sent < 0) {
      time.parts.sent = time.end - time.start;
    }
  }
  for (const Work& w : work_) ledger_.worked(w.entry, w.flops, seconds(w.from, w.to));
}

void Executor::find_runs() {
  for (std::size_t k = 0; k < microbatches_.size(); ++k) {
    microbatches_[k].number = static_cast<int>(k) - 1;
    microbatches_[k].slots.resize(program_.slots.size());
    microbatches_[k].rows.resize(lowering_.rows());
  }
  for (const SegmentRun& run : program_.timeline) {
    TimelineRun& part = timeline_.emplace_back(TimelineRun{run.segment, {}, nullptr});
    std::vector<int> kinds;
    for (int lane = 0; lane < lanes_of(run); ++lane) {
      part.lanes.push_back(&microbatch(microbatch_of(run, lane)));
      kinds.push_back(sizes_.kind(microbatch_of(run, lane)));
    }
    const auto [known, missing] = code_.try_emplace({run.segment, kinds});
    if (missing) known->second = lowering_.segment(run.segment, kinds);
    part.code = &known->second.list;
  }
}

// Runs the code of one entry of the timeline. A lane's time is from its first instruction to its
// last one: marks are made where the braid turns from one lane to another.
void Executor::run_part(const TimelineRun& part, bool traced) {
  std::vector<Lowered>& code = *part.code;
  const std::size_t first = run_marks_.size();
  const int begin = clock_.mark();
  for (std::size_t lane = 0; lane < part.lanes.size(); ++lane) {
    outcome_.runs.push_back({part.segment, part.lanes[lane]->number, 0, 0, static_cast<int>(lane)});
    run_marks_.push_back({begin, begin});
  }
  int turned = begin;
  for (std::size_t n = 0; n < code.size(); ++n) {
    Lowered& l = code[n];
    Marks& lane = run_marks_[first + static_cast<std::size_t>(l.lane)];
    if (lane.to == begin) lane.from = turned;
    Microbatch& m = *part.lanes[static_cast<std::size_t>(l.lane)];
    traced ? run_traced(l, m, part.segment) : run(l, m);
    const bool turns = n + 1 == code.size() || code[n + 1].lane != l.lane;
    if (turns) lane.to = turned = clock_.mark();
  }
}

void Executor::run_traced(Lowered& l, Microbatch& m, int segment) {
  const bool account = account_.runs();
  const std::size_t worked = work_.size();
  if (account) account_.before(*l.said);
  const int from = clock_.mark();
  run(l, m);
  const int to = clock_.mark();
  if (!account && outcome_.instructions.size() >= most_instructions_recorded) return;
  instruction_marks_.push_back(
      {from, to, account && work_.size() > worked ? static_cast<int>(worked) : -1});
  InstructionTime time{.segment = segment, .index = l.index, .microbatch = m.number};
  time.inner = l.inner;
  if (account) time.parts = account_.after(*l.said);
  MemoryMoment moment;
  for (int c = 0; c < category_count; ++c)
    moment.bytes[c] = ledger_.memory(static_cast<Category>(c)).bytes;
  outcome_.instructions.push_back(time);
  outcome_.moments.push_back(moment);
}

void Executor::show(Shows shows, const Lowered& l, std::span<const Operand> operands,
                    const Microbatch& m) {
  for (const Operand& operand : operands) {
    if (operand.slot < 0 || !operand.whole) continue;
    show([&](Watcher& watcher) {
      (watcher.*shows)(*l.said, operand.slot, m.number, tensor(m, operand));
    });
  }
}

void Executor::run(Lowered& l, Microbatch& m) {
  if (l.completes_update && !goes_on(l)) return;
  if (copies_.any()) touch(l, m);
  const Ledger::Scope scope(ledger_, Category::activations);
  if (!l.idle) {
    const auto fail = [&](Problem said) {
      if (!l.op && said.code != "memory.exceeded") throw;
      said.stage = Stage::run;
      said.message = fmt::format("{} (in the {} of {}{})", said.message,
                                 l.op ? name_of(l.op->piece) : name_of(l.code), l.said->label,
                                 m.number < 0 ? "" : fmt::format(", microbatch {}", m.number));
      throw Error(std::move(said));
    };
    try {
      carry_out(l, m);
    } catch (const Error& error) {
      fail(error.problems().front());
    } catch (const std::exception& thrown) {
      fail(problem_of(thrown));
    } catch (const abi::__forced_unwind&) {
      throw;
    } catch (...) {
      fail({Stage::run, "plugin.fault", "", "the op threw " + thrown_text(),
            "mend the op's kernel"});
    }
  }
  if (ledger_.over_limit()) {  // an accelerator's allocator cannot throw where it is asked
    throw Error(Stage::run, "memory.exceeded", "memory",
                fmt::format("Rank {} is out of its memory limit: {} bytes in use with {}.", rank_,
                            ledger_.peak_bytes(), l.said->label),
                ledger_.limit_hint());
  }
  if (!watchers_.empty() && l.shown) {
    if (l.code == Code::copy) {  // a watcher may read what is still on its way to host memory
      const HostWait waits("watched tensors");
      copies_.land();
    }
    show(&Watcher::moved, l, {&l.output, 1}, m);
  }
  for (const Operand& gone : l.release) put(m, gone, {});
}

void Executor::carry_out(Lowered& l, Microbatch& m) {
  const Instruction& i = *l.said;
  const auto made = [&]() -> at::Tensor& { return m.slots[l.output.slot]; };
  switch (l.code) {
    case Code::load:
      return load(l, m);
    case Code::compute:
      return l.op ? compute(l, m) : update(l, m);
    case Code::move:
      made() = local_move(i.move, *l.move, tensor(m, l.input));
      return;
    case Code::start:
    case Code::hook_start:
      return start(l, m);
    case Code::wait:
    case Code::hook_finish:
      return wait(l, m);
    case Code::seed:
      made() = at::full({}, loss_scale(), options(l.output.slot));
      return;
    case Code::alias:  // of a flat slot: one parameter's part
      made() = i.parameter >= 0 ? storage_.slice(i.parameter, storage_[l.input.slot])
                                : tensor(m, l.input);
      return;
    case Code::add: {  // if the dtypes differ, libtorch casts one first
      const Ledger::Kernel kernel(ledger_);
      if (l.output.lasts) return storage_.add(l.output.slot, tensor(m, l.input));
      made().add_(tensor(m, l.input));
      return;
    }
    case Code::copy:
      return copy(l, m);
    case Code::begin_sum:
      for (const int slot : i.outputs) storage_.begin_sum(slot);
      return;
    case Code::settle:
      return storage_.settle(l.output.slot);
    case Code::totals:
      return totals(l);
  }
}

void Executor::touch(const Lowered& l, const Microbatch& m) {
  // A transfer is queued behind the copy of what it reads (start_lasting): the rank waits for
  // neither.
  const at::Tensor* source = l.code == Code::start && l.of_step ? &storage_[l.input.slot] : nullptr;
  const auto followed = [&](const Operand& operand) {
    if (source == nullptr || operand.slot == l.input.slot) return source != nullptr;
    const at::Tensor& other = tensor(m, operand);
    return copies_.brings(*source) && other.defined() && other.is_alias_of(*source);
  };
  for (const Operand& operand : l.touched)
    if (!followed(operand)) copies_.touch(tensor(m, operand));
  for (const Operand& gone : l.release) copies_.touch(tensor(m, gone));
}

void Executor::copy(const Lowered& l, Microbatch& m) {
  const Slot &from = program_.slots[l.input.slot], &to = program_.slots[l.output.slot];
  const at::Tensor& source = tensor(m, l.input);
  const bool host = to.memory == Memory::host;
  const std::string& name = host ? from.name : to.name;
  if (from.memory == to.memory && to.persistent) {
    const at::Tensor& target = storage_.open(l.output.slot);
    if (host && copies_.any()) {
      const HostWait waits("a cast in host memory");
      copies_.land();  // the tensor that is cast may still be on its way from the device
    }
    target.copy_(source, /*non_blocking=*/!host);
  } else if (from.memory == to.memory) {
    m.slots[l.output.slot] =
        from.dtype == to.dtype
            ? source.clone()
            : source.to(source.options().dtype(scalar_type(to.dtype)), /*non_blocking=*/false,
                        /*copy=*/true, at::MemoryFormat::Contiguous);
  } else if (to.persistent && !to.transient) {
    const at::Tensor& target = storage_[l.output.slot];
    from.transient&& host ? copies_.back(target, source, name) : copies_.copy(target, source, name);
  } else {
    const Ledger::Scope scope(ledger_, host ? Category::host : to.category);
    put(m, l.output,
        host ? copies_.to_host(source, name) : copies_.to_device(source, name, from.persistent));
  }
}

std::int64_t Executor::labels_of_step() const {
  const std::int64_t samples = program_.first_row(program_.microbatches),
                     sequence = graph_.size("seq");
  if (!setup_.data->masks_labels()) return samples * sequence;
  const auto counted = setup_.data->counted_labels(setup_.first_sample(step_), samples, sequence);
  return std::accumulate(counted->begin(), counted->end(), std::int64_t{0});
}

namespace {

// Writes, for each token of a sample, the place at which its document begins.
void write_starts(const TokenSource& data, std::int64_t number, std::int64_t sequence,
                  std::int64_t* starts) {
  std::vector<std::int64_t> begins = data.documents(number, sequence);
  begins.push_back(sequence);
  for (std::size_t d = 0; d + 1 < begins.size(); ++d)
    std::fill(starts + begins[d], starts + begins[d + 1], begins[d]);
}

}  // namespace

// Indices of the tokens of some samples: `write(number, row)` writes those of a sample.
template <class Write>
at::Tensor Executor::index_rows(const std::vector<std::int64_t>& numbers,
                                const Write& write) const {
  const std::int64_t sequence = graph_.size("seq");
  const at::Tensor rows =
      at::empty({static_cast<std::int64_t>(numbers.size()), sequence}, at::kLong);
  auto* row = rows.data_ptr<std::int64_t>();
  for (const std::int64_t number : numbers) {
    write(number, row);
    row += sequence;
  }
  return rows;
}

// Reads, for each token of some samples, the place at which its document begins.
at::Tensor Executor::read_starts(const std::vector<std::int64_t>& numbers) const {
  return index_rows(numbers, [&](std::int64_t number, std::int64_t* starts) {
    write_starts(*setup_.data, number, graph_.size("seq"), starts);
  });
}

// Reads, for each token of some samples, its place in its row, in the order in which tokens lie.
at::Tensor Executor::read_places(const std::vector<std::int64_t>& numbers) const {
  return index_rows(numbers, [&](std::int64_t number, std::int64_t* places) {
    for (const Range& run : order_of(number)) {
      std::iota(places, places + run.size, run.offset);
      places += run.size;
    }
  });
}

// Makes the numbers by which ops draw for each token of some samples.
at::Tensor Executor::read_draws(const std::vector<std::int64_t>& numbers) const {
  const std::int64_t sequence = graph_.size("seq");
  return index_rows(numbers, [&](std::int64_t number, std::int64_t* draws) {
    std::iota(draws, draws + sequence, draw_number(setup_.seed, number, sequence, 0));
  });
}

// Reads the divisors of the labels of some samples.
at::Tensor Executor::read_divisors(const LossDivisor& divisor,
                                   const std::vector<std::int64_t>& numbers) const {
  const std::int64_t begin = setup_.first_sample(step_), sequence = graph_.size("seq"),
                     samples = program_.first_row(program_.microbatches);
  const auto counted = setup_.data->counted_labels(begin, samples, sequence);
  const std::int64_t group = divisor.sequences > 0 ? divisor.sequences : samples;
  std::vector<std::int64_t> labels;  // how many labels of each group of sequences count
  for (std::int64_t k = 0; k < samples; ++k) {
    if (k % group == 0) labels.push_back(0);
    labels.back() += (*counted)[static_cast<std::size_t>(k)];
  }
  const std::int64_t groups =
      std::count_if(labels.begin(), labels.end(), [](std::int64_t count) { return count > 0; });
  std::vector<std::int64_t> inputs(static_cast<std::size_t>(sequence)), ids(inputs.size()),
      starts(inputs.size());
  const at::Tensor rows =
      at::empty({static_cast<std::int64_t>(numbers.size()), sequence}, at::kLong);
  auto* to = rows.data_ptr<std::int64_t>();
  for (const std::int64_t number : numbers) {
    setup_.data->sample(number, sequence, inputs.data(), ids.data());
    if (divisor.shift > 0) write_starts(*setup_.data, number, sequence, starts.data());
    const std::int64_t of_label =
        groups * labels[static_cast<std::size_t>((number - begin) / group)];
    for (std::int64_t t = 0; t < sequence; ++t) {
      const std::int64_t label = t + divisor.shift;
      *to++ = label < sequence && ids[label] >= 0 && starts[label] == starts[t] ? of_label : 0;
    }
  }
  return rows;
}

// Reads an input that the model declares.
at::Tensor Executor::read_input(const std::string& name,
                                const std::vector<std::int64_t>& numbers) const {
  const auto* source = dynamic_cast<const InputSource*>(setup_.data.get());
  const auto* model = dynamic_cast<const ModelInputs*>(setup_.plan->request.model.get());
  DataInput input;
  if (model != nullptr && source != nullptr) {
    for (DataInput& declared : model->inputs(graph_.size("seq")))
      if (declared.name == name) input = std::move(declared);
  }
  if (input.name.empty())  // a plan's check knows the model, and not the source of a C++ caller
    throw std::logic_error("no run has the data value \"" + name + "\"");
  return input_rows(*source, input, numbers);
}

// The numbers of the samples that are some rows of a microbatch.
std::vector<std::int64_t> Executor::samples_of(int microbatch, const Range& rows) const {
  const auto first = samples_.begin() + program_.first_row(microbatch) + rows.offset;
  return {first, first + rows.size};
}

std::vector<Range> Executor::order_of(std::int64_t number) const {
  const std::int64_t sequence = graph_.size("seq");
  return parted_by_documents(setup_.data->documents(number, sequence), sequence,
                             program_.document_parts);
}

void Executor::part_documents(const at::Tensor& rows, std::int64_t at,
                              const std::vector<std::int64_t>& numbers) const {
  if (program_.document_parts == 1 || numbers.empty()) return;
  // The ledger knows tensors of ATen's; this copy of one row is in none of its predictions.
  std::vector<std::byte> bytes(rows[0].nbytes());
  const at::Tensor before = at::from_blob(bytes.data(), rows[0].sizes(), rows.options());
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    const at::Tensor lies = rows[static_cast<std::int64_t>(row)];
    before.copy_(lies);
    std::int64_t next = 0;
    for (const Range& run : order_of(numbers[row])) {
      lies.narrow(at - 1, next, run.size).copy_(before.narrow(at - 1, run.offset, run.size));
      next += run.size;
    }
  }
}

// Reads whole rows, then takes this rank's part of them in the dtype of the slot.
at::Tensor Executor::load_rows(const Loaded& one, const Microbatch& m) const {
  const Slot& slot = program_.slots[one.slot];
  const InputCut& cut = one.input;
  const std::vector<std::int64_t> numbers = samples_of(m.number, cut.rows);
  at::Tensor read;
  if (one.what == DataValue::input) {
    read = read_input(slot.name, numbers);
  } else if (one.what == DataValue::loss_divisors) {
    read = read_divisors(*LossDivisor::of(slot.name), numbers);
  } else {
    read = one.what == DataValue::places  ? read_places(numbers)
           : one.what == DataValue::draws ? read_draws(numbers)
                                          : read_starts(numbers);
  }
  const auto seq = std::find(slot.dims.begin(), slot.dims.end(), Dim("seq"));
  if (one.what != DataValue::places && seq != slot.dims.end())
    part_documents(read, seq - slot.dims.begin(), numbers);
  if (!cut.copies) return read;
  const at::Tensor part = at::empty(cut.local, read.options().dtype(scalar_type(slot.dtype)));
  std::size_t split = 0;  // the dim that may have several ranges
  for (std::size_t d = 0; d < cut.parts.size(); ++d)
    if (cut.parts[d].size() > 1) split = d;
  if (cut.parts.empty()) part.copy_(read);
  std::int64_t at = 0;
  for (const Range& run : cut.parts.empty() ? std::vector<Range>() : cut.parts[split]) {
    at::Tensor from = read;
    for (std::size_t d = 0; d < cut.parts.size(); ++d) {
      const Range& range = d == split ? run : cut.parts[d].front();
      from = from.narrow(static_cast<std::int64_t>(d) + 1, range.offset, range.size);
    }
    part.narrow(static_cast<std::int64_t>(split) + 1, at, run.size).copy_(from);
    at += run.size;
  }
  return part;
}

namespace {

// Replaces each label that counts nothing, -1 - id (TokenSource::sample), by its id. The divisor of
// its loss is 0 (LossDivisor).
void to_ids(const at::Tensor& labels) {
  auto* id = labels.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < labels.numel(); ++i)
    if (id[i] < 0) id[i] = -1 - id[i];
}

}  // namespace

void Executor::load(const Lowered& l, Microbatch& m) {
  const Ledger::Scope scope(ledger_, Category::buffers);
  const auto cpu = at::TensorOptions().dtype(at::kLong);
  std::vector<std::array<at::Tensor, 2>> read(l.load.size());  // tokens and labels of rows
  for (const Loaded& one : l.load) {
    const DataCut& cut = one.cut;
    at::Tensor data;
    if (one.what == DataValue::positions) {
      c10::SmallVector<at::Tensor, 4> runs;
      for (const Range& run : cut.columns)
        runs.push_back(at::arange(run.offset, run.offset + run.size, cpu));
      data = runs.size() == 1 ? runs[0] : at::cat(at::TensorList(runs.data(), runs.size()));
    } else if (is_read_in_rows(one.what)) {
      data = load_rows(one, m);
    } else {
      auto& [tokens, labels] = read[one.shares];
      if (!tokens.defined()) {
        tokens = at::empty({cut.rows.size, graph_.size("seq")}, cpu);
        labels = at::empty_like(tokens);
        const std::vector<std::int64_t> numbers = samples_of(m.number, cut.rows);
        setup_.data->sample_rows(numbers, tokens, labels);
        if (setup_.data->masks_labels()) to_ids(labels);
        part_documents(tokens, 1, numbers);
        part_documents(labels, 1, numbers);
      }
      data = in_runs(one.what == DataValue::labels ? labels : tokens, 1, cut.columns);
      if (cut.copies) data = data.contiguous();
    }
    m.slots[one.slot] = copies_.brought(data, program_.slots[one.slot].name);
  }
}

}  // namespace mw
