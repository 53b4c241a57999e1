// Runs the one rank that a plan is compared with in the first process, and sends its tensors one by
// one to the other processes as their ranks compare them.
#include "check/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "check/observe.h"
#include "check/tensor_pack.h"
#include "meshwright/engine/processes.h"
#include "meshwright/engine/ranks.h"

namespace mw {
namespace {

// Bytes that the first process may send before it waits until the others have received them.
constexpr std::size_t most_under_way = std::size_t{1} << 26;
constexpr const char* activation_word = "an activation of one rank";

std::set<std::string> ops_here(const RunSetup& experiment, const Plan& mix) {
  const RankRuntime runtime = runtime_of(experiment, mix);
  std::set<const Program*> programs;
  for (const int rank : runtime.here()) programs.insert(&mix.program_of(rank));
  std::set<std::string> names;
  for (const Program* program : programs) {
    for (const Segment& segment : program->segments) {
      for (const Instruction& i : segment.code)
        if (i.op >= 0) names.insert(program->graph->ops()[i.op].name);
    }
  }
  return names;
}

// An activation that the first process sends. An empty key: all have been sent.
struct Sent {
  std::string op, key;
  at::Tensor tensor;
};
template <class Pack>
void members(Pack& pack, Sent& sent) {
  pack(sent.op, sent.key, sent.tensor);
}

}  // namespace

std::string key_of(const Program& program, const Instruction& i, int slot, int microbatch) {
  const bool forward = i.piece == Piece::forward;
  const auto& slots = forward ? i.outputs : i.grad_outputs;
  const auto output = std::find(slots.begin(), slots.end(), slot) - slots.begin();
  return fmt::format("{} {} {} {}", forward ? "forward" : "backward", output, microbatch,
                     program.graph->ops()[i.op].name);
}

// The op that a key of key_of() names: all after the third space, as a name may have spaces.
static std::string op_of(const std::string& key) {
  std::size_t begin = 0;
  for (int word = 0; word < 3; ++word) begin = key.find(' ', begin) + 1;
  return key.substr(begin);
}

// Watches the one rank, and keeps its tensors in the Reference.
class Reference::Keeper final : public StepWatcher {
 public:
  Keeper(Reference& reference, const RankRun& executor, bool activations)
      : reference_(reference),
        executor_(executor),
        program_(executor.program()),
        activations_(activations) {}
  void computed(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) override {
    if (!activations_) return;
    const std::lock_guard lock(reference_.mutex_);
    reference_.activations_[key_of(program_, i, slot, microbatch)] =
        (i.piece == Piece::forward ? tensor : unscaled(executor_, tensor)).cpu().clone();
  }
  void gradients(RankRun& executor) override {
    if (std::exchange(has_gradients_, true)) return;
    const std::lock_guard lock(reference_.mutex_);
    for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
      if (program_.parameters[p].gradient_slot < 0) continue;
      const std::string name = name_in_replica(executor, static_cast<int>(p));
      const at::Tensor gradient =
          unscaled(executor, executor.gradient(static_cast<int>(p))).cpu().clone();
      reference_.facts_.gradient_norms[name] = at::linalg_vector_norm(gradient, 2).item<double>();
      reference_.gradients_[name] = gradient;
    }
  }
  // Keeps the parameters after the last update that counts: the one that leaves a parameter not
  // finite, or the last before a loss or norm that is not finite.
  void stepped(RankRun& executor, std::int64_t step, const StepOutcome& outcome) override {
    if (over_) return;
    executor.await_updates();  // before the lock: for a transfer that other ranks must reach too
    const std::lock_guard lock(reference_.mutex_);
    Facts unused;
    Facts& facts = executor.rank() == 0 ? reference_.facts_ : unused;
    facts.losses.push_back(outcome.loss);
    facts.norms.push_back(outcome.grad_norm);
    facts.end = {step + 1, false, ""};
    auto place = not_finite_before(step, outcome.loss, outcome.grad_norm);
    if (!place) {
      for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
        const at::Tensor numbers = executor.parameter(static_cast<int>(p));
        at::Tensor& kept = reference_.parameters_[name_in_replica(executor, static_cast<int>(p))];
        kept = kept.defined() ? kept.copy_(numbers) : numbers.cpu().clone();
      }
      place = not_finite_after(step, reference_.parameters_);
    }
    over_ = place.has_value();
    if (over_) facts.end = *place;
  }

 private:
  Reference& reference_;
  const RankRun& executor_;
  const Program& program_;
  const bool activations_;
  bool over_ = false, has_gradients_ = false;
};

Reference::Reference(const RunSetup& experiment, const Plan& one, const Plan* mix,
                     std::int64_t steps, const std::atomic<bool>* stop) {
  RunSetup alone = experiment;
  if (one.ranks() > 1) alone.processes = nullptr;  // all replicas are threads of the first process
  by_the_first(experiment, stop, [&](const std::atomic<bool>* end) {
    run_steps(alone, one, steps, end, [&](RankRun& executor) {
      return std::make_unique<Keeper>(*this, executor, mix != nullptr);
    });
  });
  if (experiment.processes == nullptr) return;
  Processes& processes = *experiment.processes;
  facts_ = unpack<Facts>(
      processes.broadcast("what one rank computes", processes.first() ? pack(facts_) : ""));
  if (mix != nullptr) share_activations(processes, ops_here(experiment, *mix));
}

double Reference::gradient_norm(const std::string& parameter) const {
  return facts_.gradient_norms.at(parameter);
}

const at::Tensor* Reference::activation(const std::string& key) const {
  const auto found = activations_.find(key);
  return found == activations_.end() ? nullptr : &found->second;
}

// Sends the activations to all processes; each keeps those of its own ops. Not during the run, when
// stages are at different ops.
void Reference::share_activations(Processes& processes, const std::set<std::string>& ops) {
  std::size_t under_way = 0;
  for (auto next = activations_.begin();;) {
    Sent sent;
    if (processes.first() && next != activations_.end()) {
      sent = {op_of(next->first), next->first, next->second};
      ++next;
    }
    const std::string bytes =
        processes.broadcast(activation_word, processes.first() ? pack(sent) : "");
    if (!processes.first()) sent = unpack<Sent>(bytes);
    if (sent.key.empty()) return;
    if (!processes.first() && ops.contains(sent.op)) activations_[sent.key] = sent.tensor;
    under_way += bytes.size();
    if (under_way < most_under_way) continue;
    processes.barrier(activation_word);
    under_way = 0;
  }
}

at::Tensor Reference::Taker::take(bool gradient, const std::string& parameter) {
  const auto& kept = gradient ? reference_.gradients_ : reference_.parameters_;
  if (!shared()) return kept.at(parameter);
  const std::string bytes =
      runtime_.broadcast(rank_, rank_ == 0 ? pack(kept.at(parameter)) : std::string());
  under_way_ += bytes.size();
  if (under_way_ >= most_under_way) {
    runtime_.barrier(rank_);
    under_way_ = 0;
  }
  return unpack<at::Tensor>(bytes);
}

}  // namespace mw
