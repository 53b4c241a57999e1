// Counts the sequences and tokens of a step, and compares them with the constants that ops declare.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "prove/stage.h"

namespace mw::proving {
namespace {

// The numbers of sequences and tokens in a step, found by the names of constants.
struct Step {
  double sequences = 0, tokens = 0;

  explicit Step(const Program& program) {
    static const Dim batch("batch"), seq("seq");
    const std::map<Dim, DimInfo>& dims = program.graph->dims();
    if (dims.count(batch) == 0) return;
    for (int m = 0; m < program.microbatches; ++m)
      sequences += static_cast<double>(program.batch_of(m));
    if (dims.count(seq) > 0) tokens = sequences * static_cast<double>(program.graph->size(seq));
  }
  std::optional<double> of(const std::string& name) const {
    if (name == "tokens") return tokens;
    if (name == "sequences") return sequences;
    return std::nullopt;
  }
};

Refusal refusal(const Program& program, const Op& op, const StepConstant& constant, double needed) {
  static const Dim batch("batch"), seq("seq");
  Refusal refusal;
  refusal.code = "prove.constant";
  refusal.where = "op " + op.name;
  refusal.message = fmt::format(
      "{} ({}) has {} {} built in, and a step has {}: {} microbatches, {} sequences together, of "
      "{} tokens; what it makes would be {:.6g} times what one rank makes",
      op.name, op.kind(), constant.value, constant.name, needed, program.microbatches,
      Step(program).sequences, program.graph->size(seq), needed / constant.value);
  refusal.mend =
      fmt::format("make the op of {} {}, as Model::build is given them", needed, constant.name);
  return refusal;
}

void note(Proof& proof, std::string text) {
  if (std::find(proof.notes.begin(), proof.notes.end(), text) == proof.notes.end())
    proof.notes.push_back(std::move(text));
}

}  // namespace

void check_constants(const Program& program, Proof& proof) {
  const Graph& graph = *program.graph;
  const Step step(program);
  const std::vector<int> losses = graph.losses();
  for (const Op& op : graph.ops()) {
    const std::vector<StepConstant> constants = op.type->constants(op);
    const bool is_loss = std::any_of(op.outputs.begin(), op.outputs.end(), [&](int value) {
      return std::find(losses.begin(), losses.end(), value) != losses.end();
    });
    if (is_loss && constants.empty() && !reads(graph, op, DataValue::loss_divisors))
      note(proof, op.kind() +
                      " declares no constants, so that the scale of that loss is taken for "
                      "granted");
    for (const StepConstant& constant : constants) {
      const std::optional<double> needed = step.of(constant.name);
      if (!needed) {
        note(proof,
             fmt::format("{} declares the constant {}, which is not a number of the step: tokens, "
                         "sequences",
                         op.kind(), constant.name));
      } else if (*needed != constant.value) {
        proof.refusals.push_back(refusal(program, op, constant, *needed));
      }
    }
  }
}

}  // namespace mw::proving
