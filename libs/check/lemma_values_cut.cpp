// The parts of an op's operands that the ranks of a small mesh hold: slices, shares of sums, rows
// of experts, and indices that only ranks themselves can make.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "check/lemma_values.h"

namespace mw::lemmas {
namespace {

Mesh mesh_of(const std::vector<SmallAxis>& axes, bool carried) {
  std::vector<OwnAxis> own;
  for (const SmallAxis& axis : axes)
    own.push_back({"axis" + std::to_string(own.size()), axis.ways, Role::none});
  if (carried) own.push_back({"carried", 2, Role::none});
  return own.empty() ? Mesh() : Mesh(own);
}

// Of so many tokens over so many ranks: each has one part of the first half and one of the second,
// as mirrored in the middle.
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
    for (const SmallAxis& axis : axes) ways *= axis.cut == dim ? axis.ways : 1;
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
  // Where the tokens lie here, of all tokens.
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

// The shares of a sum over the ranks of Partial atoms: all but the last are drawn.
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

// What says of which choice each row is depends on which tokens and which groups are here: it is
// made by the op that makes the rows, cut as this operand lies.
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
