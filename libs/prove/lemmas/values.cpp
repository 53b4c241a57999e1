// Draws the operands of an op, runs the ops that make those that cannot be drawn, and runs the op
// itself, whole or on the parts of one rank.
#include "prove/lemmas/values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "meshwright/inputs.h"

namespace mw::lemmas {
namespace {

// The op that makes the rows of a sparse value: the first among its producers, upwards, that has no
// sparse operand. -1: there is none.
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

// Whether a value that an op makes is computed, not drawn. Indices are always computed. So are
// values without a gradient, which are tables whose numbers belong together (cosines and sines of a
// rotation), and the statistics of a loss that another op changes.
bool is_made(const Graph& graph, const Value& value, Draw draw, int depth) {
  if (value.scalar == Scalar::index || !value.needs_grad) return true;
  if (draw != Draw::made || depth > 1) return false;
  const auto producer = static_cast<std::size_t>(value.producer);
  if (depth == 0) return true;
  const OpClass of = graph.ops()[producer].type->op_class();
  return of == OpClass::loss || of == OpClass::loss_part;
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
      if (value.source == Value::Source::op && is_made(graph_, value, draw_, depth))
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
    throw WrongResults(
        fmt::format("it makes {} results and keeps {} tensors, where it declares {} and {}",
                    first.outputs.size(), first.saved.size(), this->op().outputs.size(),
                    traits().saved.size()));
  for (std::size_t k = 0; k < first.outputs.size(); ++k) {
    const int value = this->op().outputs[k];
    if (!first.outputs[k].defined()) throw WrongResults("it leaves a result out");
    values_[value] = first.outputs[k];
  }
  for (const int value : this->op().outputs) {
    if (is_sparse(graph_, value)) find_rows(value);
  }
  for (std::size_t k = 0; k < first.outputs.size(); ++k) {
    const at::Tensor& output = first.outputs[k];
    const Value& value = graph_.value(this->op().outputs[k]);
    if (output.sizes().vec() != shape_of(value.dims))
      throw WrongResults(fmt::format("{} has the shape [{}], where its dims ({}) have [{}]",
                                     value.name, fmt::join(output.sizes(), ", "),
                                     fmt::join(names_of(value.dims), ", "),
                                     fmt::join(shape_of(value.dims), ", ")));
    const at::ScalarType needed = value.scalar == Scalar::index ? at::kLong : type_;
    if (output.scalar_type() != needed)
      throw WrongResults(fmt::format("{} has the dtype {}, where {} is needed", value.name,
                                     c10::toString(output.scalar_type()), c10::toString(needed)));
    if (!output.is_floating_point()) {
      seeds_.emplace_back();
      continue;
    }
    if (!at::isfinite(output).all().item<bool>())
      throw NotChecked(fmt::format("output {} is not finite for operands drawn at random", k));
    const double largest = output.numel() > 0 ? output.abs().max().item<double>() : 0;
    seeds_.emplace_back();
    if (value.needs_grad && traits().differentiable)
      seeds_.back() =
          normal(output.sizes()).to(output.scalar_type()) / (largest > 0 ? largest : 1.0);
  }
  for (std::size_t k = 0; k < first.saved.size(); ++k) {
    const SavedValue& saved = traits().saved[k];
    std::vector<std::int64_t> shape = shape_of(saved.dims);
    if (saved.extra > 0) shape.push_back(saved.extra);
    if (!first.saved[k].defined() || first.saved[k].sizes().vec() == shape) continue;
    throw WrongResults(fmt::format("what it keeps as {} has the shape [{}], where [{}] is declared",
                                   saved.name, fmt::join(first.saved[k].sizes(), ", "),
                                   fmt::join(shape, ", ")));
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
  const bool data = value.source == Value::Source::data;
  const DataValue kind = data_value_of(value.name);
  if (data && kind == DataValue::positions && shape.size() == 1)
    return at::arange(shape[0], options);
  if (data && kind == DataValue::starts) {  // a quarter of the tokens begin a document
    const at::Tensor places = at::arange(shape[1], options),
                     begins = at::rand(shape, generator_).lt(0.25).to(at::kLong),
                     starts = std::get<0>((places * begins).cummax(1));
    const int order = graph_.find(places_of_tokens);
    return order < 0 ? starts : starts.gather(1, draw(order, 0));
  }
  if (data && kind == DataValue::draws) return at::arange(shape[0] * shape[1], options).view(shape);
  if (data && kind == DataValue::places) return at::rand(shape, generator_).argsort();
  if (data && kind == DataValue::loss_divisors)  // 0 for a quarter of the labels
    return at::randint(0, 4, shape, generator_, options) * 3;
  std::int64_t limit = 0;
  // The indices of a declared input name rows of another operand, or of a result.
  const bool declared = data && kind == DataValue::input;
  const auto least_of = [&](const Dims& dims) {
    for (const Dim dim : dims) {
      if (dim == Dim("batch")) continue;
      limit = limit == 0 ? graph_.size(dim) : std::min(limit, graph_.size(dim));
    }
  };
  if (!declared && graph_.dims().count(vocab) > 0) {
    limit = graph_.size(vocab);
  } else {
    for (const Use& use : op().inputs) {
      if (graph_.value(use.value).scalar != Scalar::index) least_of(use.dims);
    }
    for (const Dims& dims : op().output_dims) least_of(dims);
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
  if (value.source == Value::Source::op && is_made(graph_, value, how_, depth)) {
    make(value.producer);
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

void WholeOp::make(int index) {
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
        "{} makes rows, but no value says to which choice of a token each row belongs", op.name));
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

namespace {

Mesh mesh_of(const std::vector<SmallAxis>& axes, bool carried) {
  std::vector<OwnAxis> own;
  for (const SmallAxis& axis : axes)
    own.push_back({"axis" + std::to_string(own.size()), axis.ways, Role::none});
  if (carried) own.push_back({"carried", 2, Role::none});
  return own.empty() ? Mesh() : Mesh(own);
}

// An order of `length` tokens in which each rank has one part of the first half and the mirrored
// part of the second half.
std::vector<Range> mirrored(std::int64_t length, int ranks) {
  std::vector<Range> order;
  std::int64_t begin = 0, end = length;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t own = shard_range(length, ranks, rank).size;
    const std::int64_t front = (own + 1) / 2, back = own / 2;
    if (front > 0) order.push_back({begin, front});
    begin += front;
    end -= back;
    if (back > 0) order.push_back({end, back});
  }
  return order;
}

at::Tensor along(const at::Tensor& tensor, std::int64_t axis, const std::vector<Range>& ranges) {
  std::vector<at::Tensor> runs;
  for (const Range& range : ranges) runs.push_back(tensor.narrow(axis, range.offset, range.size));
  if (runs.empty()) return tensor.narrow(axis, 0, 0);
  return runs.size() == 1 ? runs[0] : at::cat(runs, axis);
}

}  // namespace

CutOp::CutOp(WholeOp& whole, const std::vector<SmallAxis>& axes, bool carried,
             const std::vector<Dim>& permuted)
    : whole_(whole), axes_(axes) {
  program_.graph = std::make_shared<const Graph>(whole.graph());
  program_.mesh = mesh_of(axes, carried);
  const std::size_t atoms = program_.mesh.atoms().size();
  program_.cut.assign(whole.graph().ops().size(), Layout(atoms));
  program_.follow = program_.cut;
  const int op = whole.index();
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (axes[a].cut.valid())
      program_.cut[static_cast<std::size_t>(op)][a] = Placement::shard(axes[a].cut);
    if (axes[a].follow.valid())
      program_.follow[static_cast<std::size_t>(op)][a] = Placement::shard(axes[a].follow);
    if (!axes[a].ring) continue;
    program_.rotations[op] = {axes[a].follow, {static_cast<int>(a)}};
    ring_ways_ = axes[a].ways;
  }
  for (const Dim dim : permuted) {
    int ways = 1;
    for (const SmallAxis& axis : axes)
      ways *= axis.cut == dim || axis.follow == dim ? axis.ways : 1;
    program_.token_permutation[dim] = mirrored(whole.graph().size(dim), ways > 1 ? ways : 2);
  }
  if (carried) carried_ = proving::Atoms{1} << axes.size();
  tables_ = std::make_unique<proving::OpTables>(program_);
  table_ = &tables_->of(op, carried_);
}

std::vector<Coordinates> CutOp::ranks() const {
  std::vector<Coordinates> all;
  for (int rank = 0; rank < program_.mesh.size(); ++rank)
    all.push_back(program_.mesh.coordinates(rank));
  return all;
}

std::vector<Range> CutOp::ranges(Dim dim, const Layout& layout, const Coordinates& at) const {
  const Range range = local_range(dim, whole_.graph().size(dim), layout, program_.mesh, at);
  return program_.permuted(dim, range);
}

at::Tensor CutOp::part(int value, const at::Tensor& whole, const Layout& layout,
                       const Coordinates& at) const {
  const Graph& graph = whole_.graph();
  const Dims& dims = graph.value(value).dims;
  const bool rows = graph.sparse.has(dims);
  at::Tensor part = whole;
  std::int64_t axis = 0;
  if (rows) {
    part = part.index_select(0, at::tensor(this->rows(layout, at).from, at::kLong));
    axis = 1;
  }
  for (const Dim dim : dims) {
    if (rows && contains(graph.sparse.dims, dim)) continue;
    const std::vector<Range> ranges = this->ranges(dim, layout, at);
    const bool all = ranges.size() == 1 && ranges[0].size == graph.size(dim);
    if (!all) part = along(part, axis, ranges);
    ++axis;
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

LocalRows CutOp::rows(const Layout& layout, const Coordinates& at) const {
  const Graph& graph = whole_.graph();
  const WholeOp::Rows& all = whole_.rows();
  const Dim group = graph.sparse.dims.front();
  const Range groups = local_range(group, graph.size(group), layout, program_.mesh, at);
  // The rank's tokens, as indices into all tokens.
  std::vector<std::int64_t> tokens{0};
  std::int64_t cells = 1;
  for (std::size_t d = 1; d < graph.sparse.dims.size(); ++d) {
    const Dim dim = graph.sparse.dims[d];
    std::vector<std::int64_t> inner;
    for (const std::int64_t outer : tokens) {
      for (const Range& range : ranges(dim, layout, at)) {
        for (std::int64_t k = 0; k < range.size; ++k)
          inner.push_back(outer * graph.size(dim) + range.offset + k);
      }
    }
    tokens = std::move(inner);
    cells *= graph.size(dim);
  }
  std::vector<std::int64_t> here(static_cast<std::size_t>(cells), -1);
  for (std::size_t t = 0; t < tokens.size(); ++t)
    here[static_cast<std::size_t>(tokens[t])] = static_cast<std::int64_t>(t);
  struct Row {
    std::int64_t group, choice, from;
  };
  std::vector<Row> list;
  for (std::size_t r = 0; r < all.choices.size(); ++r) {
    const std::int64_t token = here[static_cast<std::size_t>(all.choices[r] / all.top)];
    const std::int64_t of = all.groups[r] - groups.offset;
    if (token < 0 || of < 0 || of >= groups.size) continue;
    list.push_back({of, token * all.top + all.choices[r] % all.top, static_cast<std::int64_t>(r)});
  }
  std::sort(list.begin(), list.end(), [](const Row& a, const Row& b) {
    return std::pair(a.group, a.choice) < std::pair(b.group, b.choice);
  });
  LocalRows local;
  local.counts.assign(static_cast<std::size_t>(groups.size), 0);
  for (const Row& row : list) {
    local.from.push_back(row.from);
    local.choices.push_back(row.choice);
    ++local.counts[static_cast<std::size_t>(row.group)];
  }
  return local;
}

Coordinates CutOp::before(const Coordinates& at, int ring_step) const {
  Coordinates there = at;
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    if (axes_[a].ring)
      there[a] = ((at[a] - ring_step) % axes_[a].ways + axes_[a].ways) % axes_[a].ways;
  }
  return there;
}

bool CutOp::rotates(std::size_t input) const {
  const auto rotation = program_.rotations.find(whole_.index());
  return rotation != program_.rotations.end() &&
         contains(whole_.op().inputs[input].dims, rotation->second.dim);
}

// The rank's share of a value that is a sum over Partial atoms. All shares but the last are drawn,
// and the last is the rest.
const at::Tensor& CutOp::share(int value, const Layout& need, const Coordinates& at) {
  int index = 0, ways = 1;
  bool sum = true;
  for (std::size_t a = 0; a < need.size(); ++a) {
    if (!need[a].is_partial()) continue;
    index = index * program_.mesh.atoms()[a].ways + at[a];
    ways *= program_.mesh.atoms()[a].ways;
    sum = sum && need[a].reduction == Reduction::sum;
  }
  const at::Tensor& whole = whole_.value(value);
  if (!sum || ways == 1) return whole;
  const auto known = shares_.find({value, index});
  if (known != shares_.end()) return known->second;
  at::Tensor rest = whole.clone();
  for (int w = 0; w + 1 < ways; ++w) {
    at::Tensor drawn = whole_.normal(whole.sizes());
    rest.sub_(drawn);
    shares_.insert_or_assign({value, w}, std::move(drawn));
  }
  shares_.insert_or_assign({value, ways - 1}, std::move(rest));
  return shares_.at({value, index});
}

// The rank's part of an index that says which choice each row is of. It depends on the tokens and
// groups of the rank, so the op that makes the rows computes it, cut as this operand lies.
at::Tensor CutOp::made_there(int value, const Layout& layout, const Coordinates& at) {
  const int maker = whole_.graph().value(value).producer;
  if (maker != whole_.rows().maker)
    throw NotChecked(whole_.graph().value(value).name +
                     " is an index for each row, and not made with the rows");
  const Op& op = whole_.graph().ops()[static_cast<std::size_t>(maker)];
  Layout& cut = program_.cut[static_cast<std::size_t>(maker)];
  for (std::size_t a = 0; a < layout.size(); ++a) {
    if (layout[a].is_shard()) cut[a] = layout[a];
  }
  const OpCase c = case_of(maker, tables_->of(maker, 0), at, 0);
  const Made made = lemmas::forward(c);
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    if (op.outputs[k] == value) return made.outputs.at(k);
  }
  throw NotChecked(op.name + " does not make its own result");
}

at::Tensor CutOp::operand(int op, std::size_t input, const Layout& need, const Coordinates& at) {
  const Use& use = whole_.graph().ops()[static_cast<std::size_t>(op)].inputs[input];
  const Value& value = whole_.graph().value(use.value);
  if (value.scalar == Scalar::index && whole_.graph().sparse.has(value.dims))
    return made_there(use.value, need, at);
  Layout lies = need;
  const at::Tensor& share = this->share(use.value, need, at);
  for (Placement& place : lies) {
    if (place.is_partial()) place = Placement::replicate();
  }
  return part(use.value, share, lies, at);
}

OpCase CutOp::case_of(int op, const proving::OpTable& table, const Coordinates& at, int ring_step) {
  const Graph& graph = whole_.graph();
  const Op& what = graph.ops()[static_cast<std::size_t>(op)];
  OpCase c{what, program_.local_dims(op, at, ring_step), {}, {}, {}, {}};
  const Coordinates there = before(at, ring_step);
  for (std::size_t i = 0; i < what.inputs.size(); ++i) {
    const bool goes_round = op == whole_.index() && rotates(i);
    c.inputs.push_back(operand(op, i, table.need[i], goes_round ? there : at));
    c.parameters.push_back(graph.value(what.inputs[i].value).source == Value::Source::parameter);
    if (c.rows.empty() && graph.sparse.has(graph.value(what.inputs[i].value).dims))
      c.rows = rows(table.need[i], at).counts;
  }
  c.wants.assign(what.inputs.size(), false);
  if (op == whole_.index()) c.wants = whole_.whole().wants;
  return c;
}

OpCase CutOp::at(const Coordinates& at, int ring_step) {
  return case_of(whole_.index(), *table_, at, ring_step);
}

std::string CutOp::text() const {
  std::string text;
  for (std::size_t a = 0; a < axes_.size(); ++a) {
    const SmallAxis& axis = axes_[a];
    if (!axis.cut.valid()) continue;
    std::string sizes;
    for (int w = 0; w < axis.ways; ++w) {
      sizes += (w > 0 ? " + " : "") +
               std::to_string(shard_range(whole_.graph().size(axis.cut), axis.ways, w).size);
    }
    text += fmt::format("{}{} over {} ranks ({})", text.empty() ? "" : ", ", axis.cut.name(),
                        axis.ways, sizes);
    if (axis.follow.valid())
      text += ", " + axis.follow.name() + (axis.ring ? " going round" : " with it");
  }
  if (carried_ != 0) text += text.empty() ? "operands as sums over 2 ranks" : ", operands as sums";
  if (!program_.token_permutation.empty()) text += ", tokens permuted";
  return text;
}

}  // namespace mw::lemmas
