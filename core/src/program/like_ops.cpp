// Finds ops of one kind with the same cut, so that each is priced once.
#include "meshwright/engine/like_ops.h"

namespace mw {

LikeOps::LikeOps(const Program& program)
    : program_(program),
      first_(program.graph->ops().size(), -1),
      number_(first_),
      of_kind_(first_),
      other_(first_) {}

int LikeOps::first(int op) {
  int& first = first_[op];
  if (first >= 0) return first;
  int& last = of_kind_[program_.graph->kind(op)];
  for (int known = last; known >= 0; known = other_[known]) {
    if (cut_alike(known, op)) return first = known;
  }
  other_[op] = last;
  last = op;
  number_[op] = count_++;
  return first = op;
}

bool LikeOps::cut_alike(int a, int b) const {
  if (program_.cut[a] != program_.cut[b] || program_.follow[a] != program_.follow[b]) return false;
  const auto none = program_.rotations.end();
  if (program_.rotations.empty()) return true;
  const auto p = program_.rotations.find(a), q = program_.rotations.find(b);
  if (p == none || q == none) return p == none && q == none;
  return p->second.dim == q->second.dim && p->second.atoms == q->second.atoms;
}

}  // namespace mw
