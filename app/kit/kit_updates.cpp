// Calls an optimizer's update, a data source or a schedule of the rate by itself, and looks whether
// it keeps anything and what it allocates.
#include "app/kit/kit_checks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <vector>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/ledger.h"
#include "prove/lemmas/updates.h"

namespace mw {
namespace {

// elements of a flat tensor
constexpr std::int64_t kit_elements = 1 << 14;
constexpr std::int64_t kit_matrices = 2, kit_rows = 96, kit_columns = 64;
constexpr std::int64_t kit_slack = 4096;  // bytes allowed for scalars and small buffers of kernels

using Operands = lemmas::UpdateOperands;

bool same_bits(const Operands& a, const Operands& b, bool gradient) {
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if ((i != 1 || gradient) && !at::equal(a.tensors[i], b.tensors[i])) return false;
  }
  return true;
}

// Bytes that a call allocates: its peak, and what stays allocated after it.
struct Allocated {
  std::int64_t most = 0, kept = 0;
};
template <class Body>
Allocated allocated(Body&& body) {
  Ledger ledger;
  {
    MemoryWatch watch(ledger);
    body();
  }
  return {ledger.peak_bytes(), ledger.bytes()};
}

class UpdateChecker {
 public:
  UpdateChecker(const Optimizer& optimizer, KitReport& report)
      : optimizer_(optimizer), report_(report) {}

  void run() {
    try {
      for (int group = 0; group < optimizer_.groups(); ++group)
        rule(optimizer_.rule(group), group == 0 ? "" : fmt::format(" of group {}", group));
    } catch (const Error& error) {
      report_.failed("the update by itself", error);
    }
  }

 private:
  void rule(const UpdateRule& rule, const std::string& of) {
    if (rule.direction != nullptr)
      element(*rule.direction, {.states = rule.states}, "direction" + of, true);
    if (rule.apply != nullptr) element(*rule.apply, rule, "update" + of, false);
    if (rule.whole != nullptr) matrix(rule, of);
  }

  // `direction`: the op's result is in the gradient, which the next op reads, and is compared too.
  void element(const ElementOp& op, const UpdateRule& rule, const std::string& what,
               bool direction) {
    const auto run = [&](const Operands& operands, std::int64_t step) {
      UpdateCall call = operands.call(step);
      call.rows = kit_rows;
      call.columns = kit_columns;
      call_plugin(
          {op.name(), ""}, "made an update", [&] { op.run(call); }, Stage::options);
    };
    const Operands begin(kit_elements, rule, 1), between(kit_elements, rule, 2);
    Operands once(begin), again(begin), warm(begin);
    run(warm, 3);  // a first call, in which kernels set up what they keep
    const Allocated used = allocated([&] { run(once, 3); });
    run(between, 4);
    run(again, 3);

    const std::int64_t predicted = op.temporaries() * kit_elements * 8;
    verdict(used.most <= predicted + kit_slack, "memory of the " + what,
            fmt::format("of {} bytes of parameters, it allocates {} beside them; {} are predicted",
                        kit_elements * 8, used.most, predicted),
            "compute in place (mul_, add_, addcmul_ …), or say temporaries(): a tensor of the "
            "parameter's size is memory that no prediction has");
    twice(what, same_bits(once, again, direction), used.kept);
    const std::string crosses = call_plugin(
        {op.name(), ""}, "made an update",
        [&] {
          return lemmas::crosses_elements(op, rule, kit_elements, direction,
                                          {kit_rows, kit_columns});
        },
        Stage::options);
    verdict(crosses.empty(), what + " element by element", crosses,
            "an ElementOp may not look across elements: norms and means of a tensor differ with "
            "the shard that a rank holds");
  }

  void matrix(const UpdateRule& rule, const std::string& of) {
    const MatrixOp& op = *rule.whole;
    auto generator = at::detail::createCPUGenerator(1);
    const at::Tensor begin =
        at::randn({kit_matrices, kit_rows, kit_columns}, generator, at::kDouble);
    const auto run = [&](const at::Tensor& stack, const std::vector<at::Tensor>& kept) {
      return call_plugin(
          {op.name(), ""}, "made a matrix", [&] { return op.run(stack, kept); }, Stage::options);
    };
    const auto zeros = [&] { return lemmas::kept_of(rule, kit_matrices, {kit_rows, kit_columns}); };
    const MatrixOp::Cost cost = op.cost(kit_matrices, kit_rows, kit_columns, 8);
    run(begin.clone(), zeros());
    at::Tensor stack = begin.clone(), once;
    const std::vector<at::Tensor> kept = zeros();
    std::int64_t result = 0;
    const Allocated used = allocated([&] {
      once = run(stack, kept);
      if (once.storage().data() != stack.storage().data()) result = once.numel() * 8;
    });
    run(begin.mul(2), zeros());
    const at::Tensor again = run(begin.clone(), zeros());
    const std::int64_t most = cost.workspace + (cost.in_place ? 0 : result);
    verdict(used.most <= most + most / 50 + kit_slack, "memory of the matrix op" + of,
            fmt::format("it allocates {} bytes; its cost() declares {}", used.most, most),
            "MatrixOp::Cost::workspace is what it allocates beside operand and result, at most at "
            "a time; `in_place` says that the result lies in the operand");
    twice("matrix op" + of, at::equal(once, again), 0);
    const std::string crosses = call_plugin(
        {op.name(), ""}, "made a matrix",
        [&] {
          return lemmas::crosses_matrices(rule, kit_matrices, {kit_rows, kit_columns});
        },
        Stage::options);
    verdict(crosses.empty(), "matrix by matrix" + of, crosses,
            "a MatrixOp may not look across matrices: which of them a rank holds depends on the "
            "plan");
  }

  void twice(const std::string& what, bool equal, std::int64_t kept) {
    const std::string found = !equal ? "the same call gives other numbers the second time"
                                     : fmt::format("{} bytes stay allocated after the call", kept);
    verdict(equal && kept == 0, "the " + what + " keeps nothing of its own", found,
            "what is kept from step to step are the rule's states: members and static variables "
            "are shared by all ranks and buckets, and no checkpoint has them");
  }

  void verdict(bool good, const std::string& check, const std::string& found,
               const std::string& look_at) {
    if (good) {
      report_.ok(check);
    } else {
      report_.failed(check, found, look_at);
    }
  }

  const Optimizer& optimizer_;
  KitReport& report_;
};

}  // namespace

void check_updates(const Optimizer& optimizer, KitReport& report) {
  const at::NoGradGuard no_grad;
  UpdateChecker(optimizer, report).run();
}

void check_data(const TokenSource& data, std::int64_t sequence, KitReport& report) {
  constexpr std::int64_t samples =
      64;  // mw.pack keeps fewer in memory, and makes the first ones again
  const std::string check = "samples are a function of their number";
  const auto options = at::TensorOptions(at::kLong);
  at::Tensor inputs = at::empty({samples, sequence}, options), labels = at::empty_like(inputs);
  at::Tensor inputs_again = at::empty_like(inputs), labels_again = at::empty_like(inputs);
  data.sample_rows(0, inputs, labels);
  for (std::int64_t k = samples; k-- > 0;) {  // one by one, the last first
    data.sample_rows(k, inputs_again.narrow(0, k, 1), labels_again.narrow(0, k, 1));
  }
  const char* look =
      "sample(k) depends on k and on the options alone: every mix asks for other rows "
      "in another order, and a run is resumed by its step";
  if (!at::equal(inputs, inputs_again) || !at::equal(labels, labels_again)) {
    report.failed(check, "asked for again, in another order, they are others", look);
  } else if (const auto bad = inputs.lt(0).logical_or(inputs.ge(data.vocab()));
             bad.any().item<bool>()) {
    report.failed(check, fmt::format("ids are not all in [0, {})", data.vocab()),
                  "vocab() says how many ids there are");
  } else {
    report.ok(check, fmt::format("{} asked for twice", samples));
  }
}

void check_rate(const LrSchedule& schedule, std::int64_t steps, KitReport& report) {
  const std::string check = "rates are a function of the step";
  std::vector<double> rates;
  for (std::int64_t step = 0; step < steps; ++step) rates.push_back(schedule(step));
  for (std::int64_t step = steps; step-- > 0;) {
    if (schedule(step) == rates[static_cast<std::size_t>(step)]) continue;
    report.failed(
        check, fmt::format("step {} has another rate when it is asked for again", step),
        "every rank asks, and a resumed run begins in the middle: at(step) keeps nothing");
    return;
  }
  report.ok(check, fmt::format("{} to {} in {} steps", rates.front(), rates.back(), steps));
}

}  // namespace mw
