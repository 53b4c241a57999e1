// Adds values and ops to a model graph, and checks that an op's operands have the dims that it
// declares.
#include "meshwright/graph.h"

#include <fmt/format.h>

#include <stdexcept>

namespace mw {

void Graph::set_dim(Dim dim, std::int64_t size, bool even, Dim like, std::string from) {
  dims_[dim] = {size, even, like, std::move(from)};
}

std::int64_t Graph::size(Dim dim) const {
  const auto found = dims_.find(dim);
  if (found == dims_.end()) {
    throw std::out_of_range(fmt::format("the graph has no dim \"{}\"", dim.name()));
  }
  return found->second.size;
}

int Graph::add_data(std::string name, Dims dims, Scalar scalar) {
  Value value;
  value.name = std::move(name);
  value.dims = std::move(dims);
  value.scalar = scalar;
  value.source = Value::Source::data;
  value.needs_grad = false;
  values_.push_back(std::move(value));
  return static_cast<int>(values_.size()) - 1;
}

int Graph::add_parameter(std::string name, Dims dims, Init init, HfName hf) {
  Value value;
  value.name = std::move(name);
  value.dims = std::move(dims);
  value.source = Value::Source::parameter;
  value.init = init;
  value.hf = std::move(hf);
  values_.push_back(std::move(value));
  return static_cast<int>(values_.size()) - 1;
}

int Graph::add_expert_load(std::string name, Dims dims, ExpertLoad expert_load, HfName hf) {
  const int value =
      add_parameter(std::move(name), std::move(dims), {Init::Kind::zeros, 0}, std::move(hf));
  values_[value].expert_load = expert_load;
  return value;
}

std::vector<int> Graph::losses() const {
  std::vector<int> all{loss};
  all.insert(all.end(), other_losses.begin(), other_losses.end());
  return all;
}

std::vector<int> Graph::add(Op op, const std::vector<Output>& outputs) {
  const int index = static_cast<int>(ops_.size());
  op.outputs.clear();
  // An op may call its outputs' dims otherwise than the values do; mostly it does not.
  const bool own_names = !op.output_dims.empty();
  for (const Output& output : outputs) {
    if (!own_names) op.output_dims.push_back(output.dims);
  }
  traits_.push_back(std::make_shared<const OpTraits>(op.type->traits(op)));
  const std::vector<bool>& wide = traits_.back()->fp32_outputs;
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
    op.outputs.push_back(static_cast<int>(values_.size()));
    values_.push_back(std::move(value));
  }
  ops_.push_back(std::move(op));
  return ops_.back().outputs;
}

std::vector<int> Graph::parameters() const {
  std::vector<int> list;
  for (std::size_t v = 0; v < values_.size(); ++v) {
    if (values_[v].source == Value::Source::parameter) list.push_back(static_cast<int>(v));
  }
  return list;
}

std::int64_t Graph::count(int value) const {
  std::int64_t product = 1;
  for (Dim dim : values_.at(value).dims) product *= size(dim);
  return product;
}

std::int64_t Graph::parameter_count() const {
  std::int64_t sum = 0;
  for (int value : parameters()) {
    const std::optional<ExpertLoad>& expert_load = values_[value].expert_load;
    if (!expert_load || expert_load->rate != 0)
      sum += count(value);  // one that never moves counts, no more
  }
  return sum;
}

int Graph::find(const std::string& name) const {
  for (std::size_t v = 0; v < values_.size(); ++v) {
    if (values_[v].name == name) return static_cast<int>(v);
  }
  return -1;
}

}  // namespace mw
