// Finds ops of one type over the same dims with the same cut, so that each kind is priced once.
#include "program/like_ops.h"

#include <algorithm>

namespace mw {
namespace {

void mix(std::size_t& state, std::size_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15ull;
  state ^= state >> 32;
}
void mix(std::size_t& state, const Dims& dims) {
  mix(state, dims.size());
  for (Dim dim : dims) mix(state, dim.id());
}
void mix(std::size_t& state, const Layout& layout) {
  for (const Placement& place : layout)
    mix(state, static_cast<std::size_t>(place.kind) << 16 | place.dim.id());
}

}  // namespace

LikeOps::LikeOps(const Program& program)
    : program_(program), first_(program.graph->ops().size(), -1) {}

int LikeOps::first(int op) {
  int& first = first_[op];
  if (first >= 0) return first;
  const std::size_t key = digest(op);
  const auto [begin, end] = kinds_.equal_range(key);
  const auto known =
      std::find_if(begin, end, [&](const auto& kind) { return alike(kind.second, op); });
  if (known != end) return first = known->second;
  kinds_.emplace(key, op);
  return first = op;
}

std::size_t LikeOps::digest(int op) const {
  const Op& what = program_.graph->ops()[op];
  std::size_t state = reinterpret_cast<std::size_t>(what.type.get());
  for (const Use& use : what.inputs) mix(state, use.dims);
  for (const Dims& dims : what.output_dims) mix(state, dims);
  mix(state, program_.cut[op]);
  mix(state, program_.follow[op]);
  return state;
}

bool LikeOps::alike(int a, int b) const {
  const Graph& graph = *program_.graph;
  const Op &x = graph.ops()[a], &y = graph.ops()[b];
  // A dim may lie in another order by what the operands call it (Program::local_dims).
  const auto same_use = [&](const Use& u, const Use& v) {
    return u.dims == v.dims && u.additive == v.additive && u.linear == v.linear &&
           graph.value(u.value).dims == graph.value(v.value).dims;
  };
  if (x.type != y.type || x.output_dims != y.output_dims || x.whole != y.whole ||
      x.follows != y.follows || x.contraction != y.contraction || x.counts_rows != y.counts_rows ||
      program_.cut[a] != program_.cut[b] || program_.follow[a] != program_.follow[b])
    return false;
  if (!std::equal(x.inputs.begin(), x.inputs.end(), y.inputs.begin(), y.inputs.end(), same_use))
    return false;
  const auto p = program_.rotations.find(a), q = program_.rotations.find(b);
  if (p == program_.rotations.end() || q == program_.rotations.end())
    return p == program_.rotations.end() && q == program_.rotations.end();
  return p->second.dim == q->second.dim && p->second.atoms == q->second.atoms;
}

}  // namespace mw
