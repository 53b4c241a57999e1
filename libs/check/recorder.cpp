// Joins the parts of each tensor that ranks and microbatches hold, so that runs of different plans
// can be compared number by number.
#include "check/recorder.h"

#include <algorithm>
#include <cmath>

#include "check/tensor_pack.h"

namespace mw {

template <class Pack>
void members(Pack& pack, TensorKey& key) {
  pack(key.step, key.kind, key.place, key.output);
}

namespace {

const Dim batch_dim("batch");

// The range of a microbatch's rows in the step's batch.
Range rows_of(const Program& program, int microbatch) {
  return {program.first_row(microbatch), program.batch_of(microbatch)};
}

std::int64_t rows_of_step(const Program& program) {
  const Range last = rows_of(program, program.microbatches - 1);
  return last.offset + last.size;
}

int last_number(const Graph& graph) {
  return number_in_model(graph, static_cast<int>(graph.ops().size())) - 1;
}

int batch_at(const Program& program, const TensorKey& key) {
  if (key.kind > TensorKind::backward) return -1;
  const Dims& dims = program.graph->value(value_of(*program.graph, key)).dims;
  const auto found = std::find(dims.begin(), dims.end(), batch_dim);
  return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
}

}  // namespace

int number_in_model(const Graph& graph, int op) {
  return static_cast<int>(std::count_if(graph.ops().begin(), graph.ops().begin() + op,
                                        [](const Op& before) { return before.is_of_model(); }));
}

int op_of(const Graph& graph, const TensorKey& key) {
  const auto ops = static_cast<int>(graph.ops().size());
  int left = key.kind == TensorKind::forward ? key.place : last_number(graph) - key.place;
  for (int op = 0; op < ops && left >= 0; ++op) {
    if (graph.ops()[op].is_of_model() && left-- == 0) return op;
  }
  return -1;
}

int value_of(const Graph& graph, const TensorKey& key) {
  if (key.kind >= TensorKind::gradient) return key.output;
  const Op& op = graph.ops()[op_of(graph, key)];
  return key.read() ? op.inputs[-1 - key.output].value : op.outputs[key.output];
}

class Recorder::RankWatcher final : public StepWatcher {
 public:
  RankWatcher(Recorder& recorder, RankRun& executor) : recorder_(recorder), executor_(executor) {
    const Program& program = executor.program();
    if (program.mesh.size() == 1) return;
    made_.resize(program.slots.size(), false);
    for (const Segment& segment : program.segments) {
      for (const Instruction& i : segment.code) {
        if (i.op < 0 || i.piece != Piece::forward) continue;
        for (int slot : i.outputs) made_[slot] = true;
      }
    }
    step_ = -1;
    parameters(executor, TensorKind::parameter);
    step_ = 0;
  }

  void reads(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) override {
    if (made_.empty() || made_[slot]) return;
    const Program& program = executor_.program();
    const Slot& s = program.slots[slot];
    if (s.value < 0 || s.dtype == Dtype::int64 || program.graph->sparse.has(s.dims)) return;
    if (program.graph->value(s.value).source == Value::Source::data) return;
    const Op& op = program.graph->ops()[i.op];
    const auto operand = std::find(i.inputs.begin(), i.inputs.end(), slot) - i.inputs.begin();
    if (!op.is_of_model() || operand >= std::ssize(op.of_model().inputs)) return;
    const at::Tensor whole = whole_value(executor_, slot, microbatch, tensor);
    const auto stored = stored_.find(s.value);  // of this rank: others may be a step ahead
    recorder_.bring({step_, TensorKind::forward, number_in_model(*program.graph, i.op),
                     -1 - static_cast<int>(operand)},
                    program, executor_.rank(), microbatch, whole,
                    stored == stored_.end() ? 0 : distance(whole, stored->second));
  }

  void computed(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) override {
    const Program& program = executor_.program();
    if (program.graph->sparse.has(program.slots[slot].dims)) return;
    if (!program.graph->ops()[i.op].is_of_model()) return;
    const bool forward = i.piece == Piece::forward;
    const auto& slots = forward ? i.outputs : i.grad_outputs;
    const auto output = std::find(slots.begin(), slots.end(), slot) - slots.begin();
    const int number = number_in_model(*program.graph, i.op);
    const at::Tensor whole = whole_value(executor_, slot, microbatch, tensor);
    recorder_.bring(
        {step_, forward ? TensorKind::forward : TensorKind::backward,
         forward ? number : last_number(*program.graph) - number, static_cast<int>(output)},
        program, executor_.rank(), microbatch, forward ? whole : unscaled(executor_, whole));
  }

  void gradients(RankRun& executor) override { parameters(executor, TensorKind::gradient); }

  void stepped(RankRun& executor, std::int64_t step, const StepOutcome& outcome) override {
    parameters(executor, TensorKind::parameter);
    step_ = step + 1;
    if (executor.rank() == 0) recorder_.outcomes_.push_back(outcome);
  }

 private:
  void parameters(RankRun& executor, TensorKind kind) {
    const Program& program = executor.program();
    const Graph& graph = *program.graph;
    for_each_parameter(executor, kind == TensorKind::gradient, [&](int p, const at::Tensor& whole) {
      const int value = program.parameters[p].value;
      if (kind == TensorKind::parameter && !made_.empty()) stored_[value] = whole.clone();
      if (step_ < 0) return;
      const int user = last_user(graph, value);
      const int number = user < 0 ? -1 : number_in_model(graph, user);
      recorder_.bring({step_, kind, last_number(graph) - number, value}, program, executor.rank(),
                      0, whole);
    });
  }

  Recorder& recorder_;
  RankRun& executor_;
  std::vector<bool> made_;  // by slot: an op's forward makes it; empty: the plan has one rank
  std::map<int, at::Tensor> stored_;  // parameters as the last update left them, on this rank
  std::int64_t step_ = 0;
};

Recorder::Recorder(const Plan& plan, Complete complete, Processes* processes)
    : plan_(plan),
      complete_(std::move(complete)),
      processes_(plan.ranks() == 1 ? nullptr : processes) {
  const auto ranks = static_cast<std::size_t>(plan.ranks() / plan.stages());
  for (const Program& program : plan.programs) {
    std::set<int> ops;
    for (const Segment& segment : program.segments) {
      for (const Instruction& i : segment.code)
        if (i.op >= 0) ops.insert(i.op);
    }
    for (int op : ops) ranks_of_op_[op] += ranks;
    for (const ProgramParameter& p : program.parameters) ranks_of_parameter_[p.value] += ranks;
  }
}

std::unique_ptr<StepWatcher> Recorder::watcher(RankRun& executor) {
  return std::make_unique<RankWatcher>(*this, executor);
}

std::size_t Recorder::holders(const TensorKey& key) const {
  return key.kind >= TensorKind::gradient ? ranks_of_parameter_.at(key.output)
                                          : ranks_of_op_.at(op_of(*plan_.graph, key));
}

void Recorder::bring(const TensorKey& key, const Program& program, int rank, int microbatch,
                     const at::Tensor& tensor, double from_stored) {
  const std::lock_guard lock(mutex_);
  if (completed_.count(key) > 0) return;  // recompute made it again
  Part& part = parts_[key].of[microbatch];
  if (part.of(rank)) return;
  part.ranks.push_back(rank);
  part.tensor.stored = std::max(part.tensor.stored, from_stored);
  if (!part.tensor.numbers.defined()) {
    part.tensor.numbers = tensor.clone();
  } else if (!part.tensor.numbers.equal(tensor)) {
    const double spread = distance(part.tensor.numbers, tensor);
    if (spread > part.tensor.spread) {
      part.tensor.spread = spread;
      part.tensor.rank = rank;
    }
  }
  if (processes_ != nullptr && !processes_->first()) return;
  if (part.ranks.size() == holders(key)) join(key, program, microbatch, part);
}

void Recorder::gather() {
  if (processes_ == nullptr) return;
  constexpr const char* what = "what was recorded";
  if (!processes_->first()) {
    for (auto& [key, parts] : parts_) {
      for (auto& [microbatch, part] : parts.of) {
        processes_->send(0, {Processes::Word::Sort::word, what, pack(key, microbatch, part)});
        part.tensor.numbers.reset();
      }
    }
    processes_->send(0, {Processes::Word::Sort::word, what, ""});
    return;
  }
  for (int p = 1; p < processes_->count(); ++p) {
    for (;;) {
      const std::string bytes = processes_->expect(p, what, processes_->timeout());
      if (bytes.empty()) break;
      TensorKey key;
      int microbatch = 0;
      Part part;
      Unpacker unpacker(bytes);
      unpacker(key, microbatch, part);
      adopt(key, microbatch, std::move(part));
    }
  }
}

// Takes over a part that ranks of another process have brought. Its spread is the largest of those
// within either process and the distance between their first copies.
void Recorder::adopt(const TensorKey& key, int microbatch, Part brought) {
  const std::lock_guard lock(mutex_);
  const Program& program = plan_.program_of(brought.ranks.front());
  Part& part = parts_[key].of[microbatch];
  if (part.ranks.empty()) {
    part = std::move(brought);
  } else {
    WholeTensor &mine = part.tensor, &theirs = brought.tensor;
    mine.stored = std::max(mine.stored, theirs.stored);
    const bool alike = mine.numbers.equal(theirs.numbers);
    const double apart = alike ? 0 : distance(mine.numbers, theirs.numbers);
    if (theirs.spread > mine.spread) {
      mine.spread = theirs.spread;
      mine.rank = theirs.rank;
    }
    if (apart > mine.spread) {
      mine.spread = apart;
      mine.rank = brought.ranks.front();
    }
    part.ranks.insert(part.ranks.end(), brought.ranks.begin(), brought.ranks.end());
  }
  if (part.ranks.size() == holders(key)) join(key, program, microbatch, part);
}

void Recorder::join(const TensorKey& key, const Program& program, int microbatch, Part& part) {
  Parts& parts = parts_[key];
  const at::Tensor numbers = std::move(part.tensor.numbers);
  const int at = batch_at(program, key);
  const int microbatches = key.kind >= TensorKind::gradient ? 1 : program.microbatches;
  if (microbatches == 1) {
    parts.rows = numbers;
  } else if (at >= 0) {
    const Range rows = rows_of(program, microbatch);
    if (!parts.rows.defined()) {
      std::vector<std::int64_t> shape = numbers.sizes().vec();
      shape[at] = rows_of_step(program);
      parts.rows = at::empty(shape, numbers.options());
    }
    parts.rows.narrow(at, rows.offset, rows.size).copy_(numbers);
  } else {
    const Value& value = program.graph->value(value_of(*program.graph, key));
    const bool sum = key.kind == TensorKind::forward && value.producer >= 0 &&
                     program.graph->ops()[value.producer].has(batch_dim);
    const at::Tensor share = numbers.to(at::kDouble) / (sum ? 1.0 : program.microbatches);
    parts.rows = parts.rows.defined() ? parts.rows + share : share;
  }
  parts.spread += part.tensor.spread * part.tensor.spread;
  if (part.tensor.spread > parts.most) {
    parts.most = part.tensor.spread;
    parts.rank = part.tensor.rank;
  }
  parts.stored = std::max(parts.stored, part.tensor.stored);
  if (++parts.done < microbatches) return;
  const WholeTensor whole{parts.rows, std::sqrt(parts.spread), parts.rank, parts.stored};
  parts_.erase(key);
  completed_.insert(key);
  complete_(key, whole);
}

}  // namespace mw
