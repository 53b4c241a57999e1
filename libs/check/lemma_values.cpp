// Draws the operands of an op, runs what makes those that cannot be drawn, and runs the op itself.
#include "check/lemma_values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace mw::lemmas {
namespace {

// The op that makes the rows of which this value has one each: the first on the way up to it
// without rows among its operands. -1: there is none.
int maker_of_rows(const Graph& graph, int value) {
  int producer = graph.value(value).producer;
  while (producer >= 0) {
    const Op& op = graph.ops()[static_cast<std::size_t>(producer)];
    const auto rows = std::find_if(op.inputs.begin(), op.inputs.end(), [&](const Use& use) {
      return graph.sparse.has(graph.value(use.value).dims);
    });
    if (rows == op.inputs.end()) return producer;
    producer = graph.value(rows->value).producer;
  }
  return -1;
}

// Whether a value that an op makes is made: indices always, and what has no gradient, as those are
// tables, whose numbers hang together (of a rotation).
bool is_made(const Value& value, Draw draw, int depth) {
  return value.scalar == Scalar::index || !value.needs_grad || (draw == Draw::made && depth == 0);
}

class Makers {
 public:
  Makers(const Graph& graph, Draw draw) : graph_(graph), draw_(draw) {}

  void add(int op, int depth) {
    if (!seen_.insert(op).second) return;
    list_.push_back(op);
    const Op& what = graph_.ops()[static_cast<std::size_t>(op)];
    for (const Use& use : what.inputs) {
      const Value& value = graph_.value(use.value);
      if (graph_.sparse.has(value.dims)) {
        const int maker = maker_of_rows(graph_, use.value);
        if (maker >= 0) add(maker, depth + 1);
      }
      if (value.source == Value::Source::op && is_made(value, draw_, depth))
        add(value.producer, depth + 1);
    }
  }
  std::vector<int> take() { return std::move(list_); }

 private:
  const Graph& graph_;
  const Draw draw_;
  std::set<int> seen_;
  std::vector<int> list_;
};

Graph with_sizes(const Graph& graph, const std::map<Dim, std::int64_t>& sizes) {
  Graph small = graph;
  for (const auto& [dim, size] : sizes) {
    if (small.size(dim) != size) small = small.with_size(dim, size);
  }
  return small;
}

Program program_of(const Graph& graph, const Mesh& mesh) {
  Program program;
  program.graph = std::make_shared<const Graph>(graph);
  program.mesh = mesh;
  const Layout nothing(mesh.atoms().size());
  program.cut.assign(graph.ops().size(), nothing);
  program.follow = program.cut;
  return program;
}

bool is_sparse(const Graph& graph, int value) {
  return graph.sparse.has(graph.value(value).dims);
}

}  // namespace

std::vector<int> with_makers(const Graph& graph, int op, Draw draw) {
  Makers makers(graph, draw);
  makers.add(op, 0);
  return makers.take();
}

WholeOp::WholeOp(const Graph& graph, int op, const std::map<Dim, std::int64_t>& sizes, Draw draw,
                 at::ScalarType type)
    : graph_(with_sizes(graph, sizes)),
      op_(op),
      how_(draw),
      type_(type),
      generator_(at::detail::createCPUGenerator(1)),
      one_(program_of(graph_, Mesh())) {
  whole_ = case_of(op);
  const Made first = lemmas::forward(whole_);
  if (first.outputs.size() != this->op().outputs.size() ||
      first.saved.size() != traits().saved.size())
    throw NotChecked("it makes another number of results than it declares");
  for (std::size_t k = 0; k < first.outputs.size(); ++k) {
    const int value = this->op().outputs[k];
    if (!first.outputs[k].defined()) throw NotChecked("it leaves a result out");
    values_[value] = first.outputs[k];
  }
  for (const int value : this->op().outputs) {
    if (is_sparse(graph_, value)) find_rows(value);
  }
  for (std::size_t k = 0; k < first.outputs.size(); ++k) {
    const at::Tensor& output = first.outputs[k];
    const Value& value = graph_.value(this->op().outputs[k]);
    if (output.sizes().vec() != shape_of(value.dims))
      throw NotChecked(fmt::format("{} has the shape [{}], where its dims have [{}]", value.name,
                                   fmt::join(output.sizes(), ", "),
                                   fmt::join(shape_of(value.dims), ", ")));
    if (!output.is_floating_point()) {
      seeds_.emplace_back();
      continue;
    }
    if (!at::isfinite(output).all().item<bool>())
      throw NotChecked(value.name + " is not finite for operands drawn at random");
    const double largest = output.numel() > 0 ? output.abs().max().item<double>() : 0;
    seeds_.emplace_back();
    if (value.needs_grad && traits().differentiable)
      seeds_.back() =
          normal(output.sizes()).to(output.scalar_type()) / (largest > 0 ? largest : 1.0);
  }
  const bool goes_back = std::any_of(seeds_.begin(), seeds_.end(),
                                     [](const at::Tensor& seed) { return seed.defined(); });
  if (!goes_back) whole_.wants.assign(whole_.wants.size(), false);
  const bool any = std::find(whole_.wants.begin(), whole_.wants.end(), true) != whole_.wants.end();
  made_ = any ? run(whole_, seeds_, Into::fresh) : first;
}

at::Tensor WholeOp::normal(at::IntArrayRef shape) {
  return at::randn(shape, generator_, at::TensorOptions(at::kDouble)).to(type_);
}

bool WholeOp::passes(std::size_t i) const {
  const std::vector<bool>& passes = traits().gradient_passes;
  return i < passes.size() && passes[i] && graph_.value(op().inputs[i].value).needs_grad;
}

std::string WholeOp::input_name(std::size_t i) const {
  return fmt::format("input {} ({})", i, graph_.value(op().inputs[i].value).name);
}

std::vector<std::int64_t> WholeOp::shape_of(const Dims& dims) const {
  std::vector<std::int64_t> shape;
  const bool rows = graph_.sparse.has(dims);
  if (rows) {
    shape.push_back(std::accumulate(rows_.counts.begin(), rows_.counts.end(), std::int64_t{0}));
  }
  for (const Dim dim : dims) {
    if (!rows || !contains(graph_.sparse.dims, dim)) shape.push_back(graph_.size(dim));
  }
  return shape;
}

at::Tensor WholeOp::draw_index(const Value& value) {
  static const Dim vocab("vocab");
  const std::vector<std::int64_t> shape = shape_of(value.dims);
  const auto options = at::TensorOptions(at::kLong);
  if (value.name == "positions" && shape.size() == 1) return at::arange(shape[0], options);
  std::int64_t limit = 0;
  if (graph_.dims().count(vocab) > 0) {
    limit = graph_.size(vocab);
  } else {
    for (const Use& use : op().inputs) {
      for (const Dim dim : use.dims) {
        const std::int64_t size = graph_.size(dim);
        if (!contains(value.dims, dim)) limit = limit == 0 ? size : std::min(limit, size);
      }
    }
  }
  return at::randint(0, std::max<std::int64_t>(limit, 1), shape, generator_, options);
}

const at::Tensor& WholeOp::draw(int index, int depth) {
  const auto known = values_.find(index);
  if (known != values_.end()) return known->second;
  const Value& value = graph_.value(index);
  if (is_sparse(graph_, index)) {
    find_rows(index);
    if (values_.count(index) > 0) return values_.at(index);
  }
  if (value.source == Value::Source::op && is_made(value, how_, depth)) {
    make(value.producer, depth + 1);
    return values_.at(index);
  }
  return values_[index] =
             value.scalar == Scalar::index ? draw_index(value) : normal(shape_of(value.dims));
}

OpCase WholeOp::case_of(int index) {
  const Op& op = graph_.ops()[static_cast<std::size_t>(index)];
  OpCase c{op, one_.local_dims(index, {}), {}, {}, {}, {}};
  const int depth = index == op_ ? 0 : 1;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const Value& value = graph_.value(op.inputs[i].value);
    c.inputs.push_back(draw(op.inputs[i].value, depth));
    c.parameters.push_back(value.source == Value::Source::parameter);
    const std::vector<bool>& passes = graph_.traits(index).gradient_passes;
    c.wants.push_back(value.needs_grad && value.scalar == Scalar::real &&
                      graph_.traits(index).differentiable && !(i < passes.size() && passes[i]));
  }
  const bool has_rows = std::any_of(op.inputs.begin(), op.inputs.end(),
                                    [&](const Use& use) { return is_sparse(graph_, use.value); });
  if (has_rows) c.rows = rows_.counts;
  return c;
}

void WholeOp::make(int index, int) {
  const Made made = lemmas::forward(case_of(index));
  const Op& op = graph_.ops()[static_cast<std::size_t>(index)];
  for (std::size_t k = 0; k < op.outputs.size(); ++k)
    values_.try_emplace(op.outputs[k], made.outputs.at(k));
}

void WholeOp::find_rows(int value) {
  if (rows_.maker >= 0) return;
  const int maker = maker_of_rows(graph_, value);
  if (maker < 0) throw NotChecked("nothing of the graph makes the rows that it works on");
  const Op& op = graph_.ops()[static_cast<std::size_t>(maker)];
  const Made made = lemmas::forward(case_of(maker));
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    values_[op.outputs[k]] = made.outputs.at(k);
    const Value& output = graph_.value(op.outputs[k]);
    if (output.scalar == Scalar::index && graph_.sparse.has(output.dims))
      rows_.places = op.outputs[k];
  }
  Dims tokens = graph_.sparse.dims;
  tokens.erase(tokens.begin());
  bool choices = false;
  for (const Use& use : op.inputs) {
    const Value& input = graph_.value(use.value);
    const bool begins = input.dims.size() == tokens.size() + 1 &&
                        std::equal(tokens.begin(), tokens.end(), input.dims.begin());
    if (input.scalar != Scalar::index || !begins) continue;
    rows_.top = graph_.size(input.dims.back());
    choices = true;
  }
  if (rows_.places < 0 || !choices) {
    throw NotChecked(fmt::format(
        "{} makes rows and no value that says of which choice of a token each is", op.name));
  }
  rows_.maker = maker;
  rows_.counts = made.rows;
  const at::Tensor places = values_.at(rows_.places).contiguous();
  const auto* place = places.const_data_ptr<std::int64_t>();
  rows_.choices.assign(place, place + places.numel());
  for (std::size_t g = 0; g < rows_.counts.size(); ++g)
    rows_.groups.insert(rows_.groups.end(), static_cast<std::size_t>(rows_.counts[g]),
                        static_cast<std::int64_t>(g));
  if (rows_.groups.size() != rows_.choices.size())
    throw NotChecked(fmt::format("{} counts {} rows and makes {}", op.name, rows_.groups.size(),
                                 rows_.choices.size()));
}

}  // namespace mw::lemmas
