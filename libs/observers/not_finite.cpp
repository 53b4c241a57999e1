// Finds where in a step NaN or Inf appear first, by computing the step again and looking at each
// tensor, so that the training itself pays nothing for it.
#include "observers/not_finite.h"

#include <fmt/format.h>

#include <cmath>

#include "meshwright/error.h"

namespace mw {
namespace {

class FirstNotFinite : public Watcher {
 public:
  FirstNotFinite(RankRun& executor, std::string what)
      : executor_(executor), what_(std::move(what)) {}

  void computed(const Instruction& i, int, int microbatch, const at::Tensor& tensor) override {
    look(tensor, [&] { return place(words_of_computed(i), microbatch); });
  }
  void moved(const Instruction& i, int, int microbatch, const at::Tensor& tensor) override {
    look(tensor, [&] { return place(words_of_moved(i), microbatch); });
  }
  // Gradients of ops that are all finite can overflow in the sum over microbatches and uses.
  void gradients(RankRun& executor) override {
    const Program& program = executor.program();
    for (std::size_t p = 0; p < program.parameters.size(); ++p) {
      look(executor.own_gradient(static_cast<int>(p)),
           [&] { return "the gradient of " + program.name_of_parameter(static_cast<int>(p)); });
    }
  }

  [[noreturn]] void fail(const std::string& where) const {
    throw Error(
        Stage::run, "run.not-finite", "", what_ + where,
        "a lower learning rate, clip, or a look at the data; on_nan = \"continue\" trains on");
  }
  // Fails the run because the repeated step gave a finite result: the machine has erred once.
  [[noreturn]] void fail_once() const {
    throw Error(Stage::run, "run.not-finite-once", "",
                what_ + "; computed again, all its tensors are finite",
                "start it again, from a checkpoint; where that comes back look at the machine");
  }

 private:
  static std::string place(const std::string& words, int microbatch) {
    return fmt::format("{} (microbatch {})", words, microbatch);
  }
  template <class Words>
  void look(const at::Tensor& tensor, const Words& words) const {
    const Ledger::Pause pause(executor_.ledger());
    if (finite(tensor)) return;
    const bool nan = at::isnan(tensor).any().item<bool>();
    fail(fmt::format("; {} appears first in {}", nan ? "NaN" : "Inf", words()));
  }

  RankRun& executor_;
  const std::string what_;
};

}  // namespace

bool finite(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || !tensor.is_floating_point()) return true;
  const auto [least, most] = at::aminmax(tensor);  // both are NaN if any element is
  return std::isfinite(least.item<double>()) && std::isfinite(most.item<double>());
}

std::string words_of_computed(const Instruction& i) {
  return (i.piece != Piece::forward ? "the gradient that reaches " : "the output of ") + i.label;
}

std::string words_of_moved(const Instruction& i) {
  return fmt::format("the result of the {} of {}",
                     communicates(i.move.kind) ? name_of(i.move.kind) : name_of(i.code), i.label);
}

void throw_not_finite(RankRun& executor, std::int64_t step, const StepOutcome& done) {
  const bool loss = !std::isfinite(done.loss);
  const double value = loss ? done.loss : done.grad_norm;
  FirstNotFinite watcher(
      executor,
      fmt::format("the {} of step {} is {}, and its update was skipped",
                  loss ? "loss" : "gradient norm", step, std::isnan(value) ? "NaN" : "Inf"));
  executor.watch(&watcher);
  const StepOutcome again = executor.step(step, done.lr);
  executor.unwatch(&watcher);
  if (std::isfinite(again.loss) && std::isfinite(again.grad_norm)) watcher.fail_once();
  watcher.fail("; computed again, all tensors that are looked at are finite");
}

}  // namespace mw
