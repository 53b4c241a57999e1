// The rules for ops that are computed in slices of a dim (Program::slicing): each slice is computed
// once and in order, reads operands of that slice, and completes sums if it is the last one.
#include <fmt/format.h>

#include "prove/stage.h"

namespace mw::proving {

void StageProof::next_slice(const Instruction& i) {
  const Slicing& sliced = *program_.slicing_of(i);
  const Op& op = graph_.ops()[i.op];
  if (i.ring || program_.rotations.count(i.op) > 0)
    refuse("prove.slice", op.name + " is computed in ring steps and in slices");
  if (i.slices != sliced.slices || sliced.slices < 2)
    refuse("prove.slice", fmt::format("{} is computed in {} slices, and is to be in {}", op.name,
                                      i.slices, sliced.slices));
  int& next = now().next_slice[{i.op, i.piece}];
  if (i.slice != next)
    refuse("prove.slice", fmt::format("{} computes slice {} of {}, and {} is the next", op.name,
                                      i.slice + 1, i.slices, next + 1));
  next = (next + 1) % sliced.slices;
  for (const Dim dim : op.space()) {
    if (!contains(sliced.dims, dim)) continue;
    std::int64_t parts = sliced.slices;
    for (const Layout* cut : {&program_.cut[i.op], &program_.follow[i.op]}) {
      for (std::size_t a = 0; a < cut->size(); ++a) {
        if ((*cut)[a] == Placement::shard(dim)) parts *= program_.mesh.atoms()[a].ways;
      }
    }
    if (contains(op.whole, dim) || graph_.size(dim) % parts != 0)
      refuse("prove.slice", fmt::format("{} of {} cannot be computed in {} slices", dim.name(),
                                        op.name, sliced.slices));
  }
  for (const auto& [follower, leader] : op.follows) {
    if (!contains(sliced.dims, leader)) continue;
    for (std::size_t a = 0; a < program_.cut[i.op].size(); ++a) {
      if ((program_.cut[i.op][a] == Placement::shard(leader)) !=
          (program_.follow[i.op][a] == Placement::shard(follower)))
        refuse("prove.slice", fmt::format("{}: slices of {} are not those of {} on a rank", op.name,
                                          leader.name(), follower.name()));
    }
  }
}

// Refuses an operand of one slice that is read for another slice, or by an op without slices.
void StageProof::check_slice(int slot, const Content& content) const {
  if (content.slices == 1) return;
  const Slicing* sliced = program_.slicing_of(*at_);
  const bool own = sliced != nullptr && content.slices == sliced->slices &&
                   content.slice == at_->slice &&
                   (!content.slice_dim.valid() || contains(sliced->dims, content.slice_dim));
  if (!own)
    refuse("prove.slice",
           fmt::format("{} is {}, and {} is read", name(slot), text_of(content),
                       sliced == nullptr ? std::string("all of it")
                                         : fmt::format("slice {}", at_->slice + 1)),
           slot);
}

// Marks a result that has the sliced dim as belonging to the instruction's slice.
void StageProof::mark_slice(const Instruction& i, const Dims& dims, Content& content) const {
  const Slicing* sliced = program_.slicing_of(i);
  if (sliced == nullptr) return;
  for (const Dim dim : dims) {
    if (!contains(sliced->dims, dim)) continue;
    content.slices = sliced->slices;
    content.slice = i.slice;
    content.slice_dim = dim;
  }
}

// Refuses slices of an op that add to different gradients, or from different ranks.
void StageProof::same_target(const Instruction& i, std::size_t k) {
  auto& target = now().slice_targets[{i.op, k}];
  const std::pair<int, std::vector<int>> own{i.grad_inputs[k], i.contributing[k]};
  if (i.slice == 0) target = own;
  if (target != own)
    refuse("prove.slice",
           fmt::format("the slices of {} add to different gradients", graph_.ops()[i.op].name),
           i.grad_inputs[k]);
}

// Adds a slice's share of an operand's gradient, which is complete with the last slice. The first
// slice makes the tensor, unless other ops have added to it before.
void StageProof::add_part(const Instruction& i, std::size_t k, Content made) {
  const int index = i.grad_inputs[k], term = gradients_.term(i.op, static_cast<int>(k));
  const Value& value = graph_.value(graph_.ops()[i.op].inputs[k].value);
  if (i.in_place) refuse("prove.in-place", name(index) + " is added to by several slices", index);
  const bool adds = k < i.accumulate.size() && i.accumulate[k];
  if (!adds) {
    if (i.slice > 0) refuse("prove.slice", name(index) + " is overwritten by a later slice", index);
    made.terms = 0;
    made.parts[term] = 1;
    return make(index, std::move(made), value.dims,
                program_.dtype_of(Scalar::real, value.fp32_at_least));
  }
  Tensor& t = overwrite(index);
  const Content& there = t.content;
  const auto done = there.parts.find(term);
  const int slices = done == there.parts.end() ? 0 : done->second;
  if (there.what != ContentKind::gradient || there.microbatch != microbatch_ || there.shift != 0 ||
      there.steps != 0 || there.slices > 1 || slices != i.slice)
    refuse("prove.slice",
           fmt::format("{} is {}, to which slice {} cannot be added", name(index), text_of(there),
                       i.slice + 1),
           index, t.by);
  if (there.place != made.place)
    misplaced(index, read(index), made.place, "what the gradient is added to");
  t.content.parts[term] = slices + 1;
  if (slices + 1 == i.slices) {
    t.content.parts.erase(term);
    t.content.terms = gradients_.sets.join(there.terms, made.terms);
  }
  t.by = where_;
}

}  // namespace mw::proving
