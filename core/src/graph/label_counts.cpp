// Labels that count in a loss: names of the data values that say so, and graphs that read them.
#include <algorithm>
#include <charconv>

#include "graph/data_values.h"
#include "meshwright/graph.h"
#include "meshwright/inputs.h"

namespace mw {
namespace {

constexpr std::string_view of_step = "label counts of a step", front = "label counts of ",
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

void check_counts_labels(const Graph& graph, Problems& problems) {
  for (const Value& value : graph.values())
    if (value.source == Value::Source::data && LabelCounts::of(value.name)) return;
  problems.add(Stage::plan, "model.labels", "model",
               "model: the data have labels that count nothing, and no loss of the model leaves "
               "labels out",
               "a loss by cross_entropy of m.labels does");
}

std::string LabelCounts::name() const {
  std::string name(of_step);
  if (sequences > 0)
    name = std::string(front) + std::to_string(sequences) + std::string(sequences_word);
  if (shift > 0) name += std::string(shifted) + std::to_string(shift) + std::string(back);
  return name;
}

std::optional<LabelCounts> LabelCounts::of(std::string_view name) {
  LabelCounts counts;
  if (!take(name, of_step)) {
    const bool begins = take(name, front);
    const auto sequences = begins ? take_number(name) : std::nullopt;
    if (!sequences || !take(name, sequences_word)) return {};
    counts.sequences = *sequences;
  }
  if (name.empty()) return counts;
  const bool begins = take(name, shifted);
  const auto shift = begins ? take_number(name) : std::nullopt;
  if (!shift || name != back) return {};
  counts.shift = *shift;
  return counts;
}

Graph Graph::with_label_counts() const {
  const auto& all = body_->ops;
  if (std::none_of(all.begin(), all.end(), [](const Op& op) { return op.type->counted(); }))
    return *this;
  Graph other = *this;
  other.body_ = std::make_shared<Body>();
  other.body_->values = body_->values;
  for (Op op : all) {
    if (const auto counted = op.type->counted()) {
      const Dims dims{"batch", "seq"};
      int value = other.find(counted->counts.name());
      if (value < 0) value = other.add_data(counted->counts.name(), dims, Scalar::index);
      op.type = counted->type;
      op.inputs.push_back({value, dims});
    }
    other.keep(std::move(op));
  }
  return other;
}

}  // namespace mw
