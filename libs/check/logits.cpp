// Watches a forward for the logits, and joins those of all microbatches and processes.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "check/observe.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/inputs.h"

namespace mw {
namespace {

// The value that the cross-entropy of the model's first loss reads. Throws Error (options) if that
// loss is none.
int logits_value(const Graph& graph) {
  std::set<int> seen;
  std::vector<int> values{graph.loss};
  while (!values.empty()) {
    const int value = values.back();
    values.pop_back();
    const int producer = graph.value(value).producer;
    if (producer < 0 || !seen.insert(value).second) continue;
    const Op& op = graph.ops()[static_cast<std::size_t>(producer)];
    if (op.op_class() == OpClass::loss) return op.inputs.at(0).value;
    for (const Use& input : op.inputs) values.push_back(input.value);
  }
  throw Error(
      Stage::options, "logits.none", "model",
      "logits: the model's loss is not a cross-entropy over a vocabulary, so it has no logits");
}

// Types of two bytes are widened to fp32.
at::ScalarType dtype_of(const at::Tensor& tensor) {
  return at::promote_types(tensor.scalar_type(), at::kFloat);
}

class LogitsWatcher final : public Watcher {
 public:
  explicit LogitsWatcher(RankRun& executor)
      : executor_(executor),
        value_(logits_value(*executor.program().graph)),
        keeps_(executor.coordinates() == executor.program().first()) {}

  void computed(const Instruction&, int slot, int microbatch, const at::Tensor& tensor) override {
    const Program& program = executor_.program();
    if (program.slots[slot].value != value_) return;
    const at::Tensor whole = whole_value(executor_, slot, microbatch, tensor);
    if (keeps_) parts_[microbatch] = whole.to(at::kCPU, dtype_of(whole), false, /*copy=*/true);
  }
  void gradients(RankRun&) override {}

  // The logits of all microbatches; undefined on ranks that do not keep them.
  at::Tensor rows() const {
    std::vector<at::Tensor> parts;
    for (const auto& [microbatch, part] : parts_) parts.push_back(part);
    return parts.empty() ? at::Tensor() : at::cat(parts).contiguous();
  }

 private:
  RankRun& executor_;
  const int value_;
  const bool keeps_;
  std::map<int, at::Tensor> parts_;
};

// The inputs that the model declares, of these samples.
std::map<std::string, at::Tensor> inputs_of(const Model& model, const TokenSource& data,
                                            const std::vector<std::int64_t>& numbers,
                                            std::int64_t sequence) {
  std::map<std::string, at::Tensor> all;
  const auto* declares = dynamic_cast<const ModelInputs*>(&model);
  const auto* source = dynamic_cast<const InputSource*>(&data);
  if (declares == nullptr || source == nullptr) return all;
  for (const DataInput& input : declares->inputs(sequence))
    all.emplace(input.name, input_rows(*source, input, numbers));
  return all;
}

}  // namespace

Logits logits_of(const RunSetup& experiment) {
  const PlanRequest& request = experiment.plan->request;
  const Graph& graph = *experiment.plan->graph;
  logits_value(graph);
  RunSetup forward = experiment;
  forward.step_plans = nullptr;
  forward.held_out_data = experiment.data;
  forward.held_out_plan = forward_only(*experiment.plan);
  Logits result;
  RankRuntime runtime = runtime_of(forward, *forward.plan);
  with_ranks(runtime, forward, *forward.plan, nullptr, [&](RankRun& executor, Ledger&) {
    LogitsWatcher watcher(*executor.evaluator());
    executor.evaluator()->watch(&watcher);
    const StepOutcome done = executor.evaluate(0);
    const double loss = done.labels > 0 ? done.loss : std::numeric_limits<double>::quiet_NaN();
    executor.evaluator()->unwatch(&watcher);
    const at::Tensor own = watcher.rows();
    std::string bytes;
    if (own.defined()) bytes.assign(static_cast<const char*>(own.const_data_ptr()), own.nbytes());
    const BytesOfRanks all = runtime.gather(executor.rank(), std::move(bytes));
    if (executor.rank() != 0) return;
    result.loss = loss;
    result.tokens = at::empty({request.batch, request.sequence}, at::kLong);
    result.labels = at::empty_like(result.tokens);
    const std::vector<std::int64_t> numbers = experiment.data->samples_of_step(
        0, executor.evaluator()->program().groups_of_rows(), request.sequence);
    experiment.data->sample_rows(numbers, result.tokens, result.labels);
    result.labels.clamp_min_(-1);  // -1: counts nothing
    result.inputs = inputs_of(*request.model, *experiment.data, numbers, request.sequence);
    std::vector<std::int64_t> shape;
    for (const Dim dim : graph.value(logits_value(graph)).dims)
      shape.push_back(dim == Dim("batch") ? request.batch : graph.size(dim));
    result.logits =
        at::empty(shape, at::promote_types(scalar_type(executor.program().dtype), at::kFloat));
    const auto found =
        std::find_if(all.begin(), all.end(), [](const auto& each) { return !each.empty(); });
    if (found == all.end() || found->size() != result.logits.nbytes())
      throw std::logic_error("logits are not whole");
    std::memcpy(result.logits.mutable_data_ptr(), found->data(), found->size());
  });
  return result;
}

}  // namespace mw
