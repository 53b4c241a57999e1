// Adds values and ops to a model graph, and checks that an op's operands have the dims that it
// declares.
#include "meshwright/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "graph/data_values.h"
#include "meshwright/error.h"

namespace mw {

void Graph::set_dim(Dim dim, std::int64_t size, bool even, Dim like, std::string from) {
  dims_[dim] = {size, even, like, std::move(from)};
  if (sizes_.size() <= dim.id()) sizes_.resize(dim.id() + std::size_t{1}, -1);
  sizes_[dim.id()] = size;
}

std::int64_t Graph::no_dim(Dim dim) {
  throw std::out_of_range(fmt::format("the graph has no dim \"{}\"", dim.name()));
}

Graph Graph::with_size(Dim dim, std::int64_t size) const {
  Graph other = *this;
  other.dims_.at(dim).size = other.sizes_.at(dim.id()) = size;
  return other;
}

Graph::Body& Graph::own() {
  if (body_.use_count() > 1) body_ = std::make_shared<Body>(*body_);
  return *body_;
}

int Graph::add_data(std::string name, Dims dims, Scalar scalar) {
  Value value;
  value.name = std::move(name);
  value.dims = std::move(dims);
  value.scalar = scalar;
  value.source = Value::Source::data;
  value.needs_grad = false;
  std::vector<Value>& values = own().values;
  values.push_back(std::move(value));
  return static_cast<int>(values.size()) - 1;
}

int Graph::add_parameter(std::string name, Dims dims, Init init, HfName hf, bool frozen) {
  Value value;
  value.frozen = frozen;
  value.needs_grad = !frozen;
  value.name = std::move(name);
  value.dims = std::move(dims);
  value.source = Value::Source::parameter;
  value.init = init;
  value.hf = std::move(hf);
  std::vector<Value>& values = own().values;
  values.push_back(std::move(value));
  return static_cast<int>(values.size()) - 1;
}

int Graph::add_counter(std::string name, Dims dims, std::shared_ptr<const ElementOp> moved_by,
                       HfName hf) {
  const int value =
      add_parameter(std::move(name), std::move(dims), {Init::Kind::zeros, 0}, std::move(hf));
  own().values[value].counts = true;
  own().values[value].moved_by = std::move(moved_by);
  return value;
}

std::vector<int> Graph::losses() const {
  std::vector<int> all{loss};
  all.insert(all.end(), other_losses.begin(), other_losses.end());
  return all;
}

namespace {

void mix(std::size_t& state, std::size_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15ull;
  state ^= state >> 32;
}
void mix(std::size_t& state, const Dims& dims) {
  std::size_t word = dims.size();
  for (Dim dim : dims) word = word << 16 ^ word >> 48 ^ dim.id();
  mix(state, word);
}

std::size_t digest_of(const Op& op) {
  std::size_t state = reinterpret_cast<std::size_t>(op.type.get());
  for (const Use& use : op.inputs) mix(state, use.dims);
  for (const Dims& dims : op.output_dims) mix(state, dims);
  return state;
}

// Checks that the lists in an op's traits have an entry for each input and output, and that other
// traits refer to existing inputs and dims. Throws Error (plan, "plugin.fault").
void check(const Op& op, const OpTraits& traits, std::size_t outputs) {
  const auto refuse = [&](const char* name, const std::string& said, const std::string& needed) {
    throw Error(
        Stage::plan, "plugin.fault", "",
        fmt::format("{} ({}): its traits say {}{}, and it has {} inputs and {} outputs", op.name,
                    op.kind(), name, said, op.inputs.size(), outputs),
        fmt::format("mend its traits(): {} {} (OpTraits in meshwright/op.h)", name, needed));
  };
  const auto entries = [&](const char* name, std::size_t has, std::size_t needs) {
    if (traits.differentiable && has < needs)
      refuse(name, fmt::format(" of {} entries", has), fmt::format("has {} of them", needs));
  };
  const std::size_t inputs = op.inputs.size();
  entries("backward_reads_input", traits.backward_reads_input.size(), inputs);
  entries("backward_reads_output", traits.backward_reads_output.size(), outputs);
  const int in_place = traits.forward_in_place;
  if (in_place < -1 || in_place >= static_cast<int>(outputs > 0 ? inputs : 0))
    refuse("forward_in_place", fmt::format(" = {}", in_place), "is the number of an input, or -1");
  for (const SavedValue& saved : traits.saved) {
    const auto unknown = std::ranges::find_if(saved.dims, [&](Dim dim) { return !op.has(dim); });
    if (unknown != saved.dims.end())
      refuse(
          "saved",
          fmt::format(" {} over the dim {}, which is none of its own", saved.name, unknown->name()),
          "has dims of the op");
    if (saved.extra < 0)
      refuse("saved", fmt::format(" {} with extra = {}", saved.name, saved.extra),
             "has an extra of 0 at least");
  }
}

}  // namespace

int Graph::kind_of(const Op& op, const std::vector<Output>& outputs, std::size_t digest) const {
  const Body& body = *body_;
  const auto same_use = [&](const Use& a, const Use& b) {
    const Value &x = body.values.at(a.value), &y = body.values.at(b.value);
    return a.dims == b.dims && a.additive == b.additive && a.linear == b.linear &&
           x.dims == y.dims && x.scalar == y.scalar && x.needs_grad == y.needs_grad;
  };
  const auto same_output = [&](int made, const Output& output) {
    const Value& x = body.values[made];
    return x.dims == output.dims && x.scalar == output.scalar &&
           x.needs_grad == (output.needs_grad && output.scalar == Scalar::real);
  };
  const auto [begin, end] = body.first.equal_range(digest);
  for (auto known = begin; known != end; ++known) {
    const Op& other = body.ops[known->second];
    if (other.type == op.type && other.output_dims == op.output_dims && other.whole == op.whole &&
        other.follows == op.follows && other.contraction == op.contraction &&
        other.counts_rows == op.counts_rows &&
        std::equal(op.inputs.begin(), op.inputs.end(), other.inputs.begin(), other.inputs.end(),
                   same_use) &&
        std::equal(other.outputs.begin(), other.outputs.end(), outputs.begin(), outputs.end(),
                   same_output))
      return known->second;
  }
  return -1;
}

void Graph::add_kind(const Op& op, const std::vector<Output>& outputs) {
  Body& body = own();
  const int index = static_cast<int>(body.ops.size());
  const std::size_t digest = digest_of(op);
  const int like = kind_of(op, outputs, digest);
  if (like < 0) {
    const auto traits = std::make_shared<const OpTraits>(op.type->traits(op));
    check(op, *traits, outputs.size());
    body.traits.push_back(traits);
    body.first.emplace(digest, index);
  } else {
    body.traits.push_back(body.traits[like]);
  }
  body.kinds.push_back(like < 0 ? index : like);
}

bool Graph::goes_back(const Op& op) const {
  return op.inputs.empty() || std::any_of(op.inputs.begin(), op.inputs.end(), [&](const Use& use) {
           return value(use.value).needs_grad;
         });
}

std::vector<int> Graph::add(Op op, const std::vector<Output>& given) {
  std::vector<Output> outputs = given;
  if (!goes_back(op))
    for (Output& output : outputs) output.needs_grad = false;
  Body& body = own();
  const int index = static_cast<int>(body.ops.size());
  op.outputs.clear();
  // An op may have names of its own for its outputs' dims, but most ops use those of the values.
  const bool own_names = !op.output_dims.empty();
  for (const Output& output : outputs) {
    if (!own_names) op.output_dims.push_back(output.dims);
  }
  add_kind(op, outputs);
  const std::vector<bool>& wide = body.traits.back()->fp32_outputs;
  op.outputs.reserve(outputs.size());
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const Output& output = outputs[o];
    Value value;
    value.fp32_at_least = o < wide.size() && wide[o];
    value.name = output.name.empty() ? op.name : output.name;
    value.dims = output.dims;
    value.scalar = output.scalar;
    value.needs_grad = output.needs_grad && output.scalar == Scalar::real;
    value.producer = index;
    value.output = static_cast<int>(o);
    op.outputs.push_back(static_cast<int>(body.values.size()));
    body.values.push_back(std::move(value));
  }
  body.ops.push_back(std::move(op));
  return body.ops.back().outputs;
}

void Graph::keep(Op op) {
  Body& body = own();
  std::vector<Output> outputs;
  for (const int made : op.outputs) {
    Value& value = body.values.at(made);
    value.producer = static_cast<int>(body.ops.size());
    outputs.push_back({value.name, value.dims, value.scalar, value.needs_grad});
  }
  add_kind(op, outputs);
  body.ops.push_back(std::move(op));
}

Graph Graph::with_parts(const std::map<int, Dim>& parts) const {
  return replaced([&](int index, Op op, Graph& other) {
    const auto along = parts.find(index);
    if (along == parts.end()) return op;
    const auto model_op = std::make_shared<const Op>(op);
    const std::size_t first = other.ops().size();
    if (auto last = op.type->in_parts(op, along->second, other)) {
      op = std::move(*last);
      op.model_op = model_op;
    }
    std::vector<Op>& made = other.body_->ops;
    for (std::size_t i = first; i < made.size(); ++i) made[i].model_op = model_op;
    return op;
  });
}

std::vector<int> Graph::parameters() const {
  std::vector<int> list;
  for (std::size_t v = 0; v < body_->values.size(); ++v) {
    if (body_->values[v].source == Value::Source::parameter) list.push_back(static_cast<int>(v));
  }
  return list;
}

std::int64_t Graph::count(int value) const {
  std::int64_t product = 1;
  for (Dim dim : body_->values.at(value).dims) product *= size(dim);
  return product;
}

std::int64_t Graph::parameter_count() const {
  std::int64_t sum = 0;
  for (int value : parameters()) {
    const Value& parameter = body_->values[value];
    if (!parameter.counts || parameter.moved_by) sum += count(value);
  }
  return sum;
}

int Graph::find(const std::string& name) const {
  for (std::size_t v = 0; v < body_->values.size(); ++v) {
    if (body_->values[v].name == name) return static_cast<int>(v);
  }
  return -1;
}

DataValue data_value_of(std::string_view name) {
  if (name == "tokens") return DataValue::tokens;
  if (name == "labels") return DataValue::labels;
  if (name == "starts") return DataValue::starts;
  if (name == places_of_tokens) return DataValue::places;
  if (name == numbers_of_tokens) return DataValue::draws;
  if (LossDivisor::of(name)) return DataValue::loss_divisors;
  const bool positions = name == "positions" || name.starts_with("positions of ");
  return positions ? DataValue::positions : DataValue::input;
}

bool reads(const Graph& graph, const Op& op, DataValue kind) {
  return std::any_of(op.inputs.begin(), op.inputs.end(), [&](const Use& use) {
    const Value& value = graph.value(use.value);
    return value.source == Value::Source::data && data_value_of(value.name) == kind;
  });
}

bool is_read_in_rows(DataValue kind) {
  return kind == DataValue::starts || kind == DataValue::places || kind == DataValue::draws ||
         kind == DataValue::loss_divisors || kind == DataValue::input;
}

void check_data_values(const Graph& graph, const std::vector<DataInput>& inputs,
                       Problems& problems) {
  const Dim batch("batch"), seq("seq");
  std::vector<bool> used(graph.values().size(), false);
  for (const Op& op : graph.ops())
    for (const Use& use : op.inputs) used.at(static_cast<std::size_t>(use.value)) = true;
  for (std::size_t v = 0; v < used.size(); ++v) {
    const Value& value = graph.values()[v];
    if (!used[v] || value.source != Value::Source::data) continue;
    const DataValue kind = data_value_of(value.name);
    const bool declared = std::any_of(inputs.begin(), inputs.end(), [&](const DataInput& input) {
      if (input.name != value.name || (input.below > 0) != (value.scalar == Scalar::index))
        return false;
      std::vector<std::int64_t> shape;
      for (std::size_t d = 1; d < value.dims.size(); ++d)
        shape.push_back(graph.size(value.dims[d]));
      return shape == input.shape;
    });
    const bool positions = kind == DataValue::positions && value.dims.size() == 1 &&
                           value.dims.front() != batch &&
                           (value.name != "positions" || value.dims.front() == seq);
    const bool fits =
        kind == DataValue::input
            ? declared && !value.dims.empty() && value.dims.front() == batch &&
                  std::count(value.dims.begin(), value.dims.end(), batch) == 1
            : value.scalar == Scalar::index &&
                  (positions || (kind != DataValue::positions && value.dims == Dims{batch, seq}));
    if (fits) continue;
    problems.add(
        Stage::plan, "model.data", "model",
        fmt::format("model: it asks for the data value \"{}\", {} of ({}), which no run has",
                    value.name, value.scalar == Scalar::index ? "indices" : "reals",
                    fmt::join(names_of(value.dims), ", ")),
        "tokens and labels are indices of (batch, seq), and positions of (seq); a model declares "
        "other inputs (meshwright/inputs.h), with batch as their first dim");
  }
}

}  // namespace mw
