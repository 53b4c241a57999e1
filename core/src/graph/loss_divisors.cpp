// Losses of data in which not all labels count: the names of their divisors, and graphs that read
// them.
#include <algorithm>
#include <charconv>

#include "graph/data_values.h"
#include "meshwright/graph.h"
#include "meshwright/inputs.h"

namespace mw {
namespace {

constexpr std::string_view of_step = "loss divisors of a step", front = "loss divisors of ",
                           sequences_word = " sequences", shifted = " from ", back = " on";

// Takes a number off the front of a text; nothing, if there is none.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc()) return {};
  text.remove_prefix(static_cast<std::size_t>(read.ptr - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

void check_masked_losses(const Graph& graph, Problems& problems) {
  const std::vector<Value>& values = graph.values();
  // Values that hold labels, and values of a loss in which every label counts.
  std::vector<bool> labels(values.size(), false), unmasked(values.size(), false);
  bool any = false;
  for (std::size_t v = 0; v < values.size(); ++v)
    labels[v] = values[v].source == Value::Source::data && values[v].name == "labels";
  for (const Op& op : graph.ops()) {
    const auto reads = [&](const std::vector<bool>& those) {
      return std::any_of(op.inputs.begin(), op.inputs.end(), [&](const Use& use) {
        return those.at(static_cast<std::size_t>(use.value));
      });
    };
    const bool is_loss = op.op_class() == OpClass::loss || op.op_class() == OpClass::loss_part;
    const bool of_labels = reads(labels), of_loss = is_loss && (of_labels || reads(unmasked));
    const bool masked = mw::reads(graph, op, DataValue::loss_divisors);
    any = any || masked;
    for (const int made : op.outputs) {
      const auto at = static_cast<std::size_t>(made);
      labels[at] = of_labels && values[at].scalar == Scalar::index;
      unmasked[at] = of_loss && !masked;
    }
  }
  const char* const hint = "a loss by cross_entropy of m.labels leaves out what counts nothing";
  if (!any)
    problems.add(Stage::plan, "model.labels", "model",
                 "model: the data have labels that count nothing, and no loss of the model leaves "
                 "labels out",
                 hint);
  for (const int loss : graph.losses()) {
    if (!unmasked.at(static_cast<std::size_t>(loss))) continue;
    problems.add(Stage::plan, "model.labels", "model",
                 "model: the data have labels that count nothing, and the loss " +
                     graph.value(loss).name + " counts every label",
                 hint);
  }
}

std::string LossDivisor::name() const {
  std::string name(of_step);
  if (sequences > 0)
    name = std::string(front) + std::to_string(sequences) + std::string(sequences_word);
  if (shift > 0) name += std::string(shifted) + std::to_string(shift) + std::string(back);
  return name;
}

std::optional<LossDivisor> LossDivisor::of(std::string_view name) {
  LossDivisor divisor;
  if (!take(name, of_step)) {
    const bool begins = take(name, front);
    const auto sequences = begins ? take_number(name) : std::nullopt;
    if (!sequences || !take(name, sequences_word)) return {};
    divisor.sequences = *sequences;
  }
  if (name.empty()) return divisor;
  const bool begins = take(name, shifted);
  const auto shift = begins ? take_number(name) : std::nullopt;
  if (!shift || name != back) return {};
  divisor.shift = *shift;
  return divisor;
}

Graph Graph::with_masked_losses() const {
  const auto& all = body_->ops;
  if (std::none_of(all.begin(), all.end(), [](const Op& op) { return op.type->masked_form(); }))
    return *this;
  return replaced([](int, Op op, Graph& other) {
    const auto masked = op.type->masked_form();
    if (!masked) return op;
    const Dims dims{"batch", "seq"};
    int value = other.find(masked->divisor.name());
    if (value < 0) value = other.add_data(masked->divisor.name(), dims, Scalar::index);
    op.type = masked->type;
    op.inputs.push_back({value, dims});
    return op;
  });
}

}  // namespace mw
