// The rules for instructions between flat tensors of a bucket: reductions and gathers (also over
// stages that share a bucket), copies, sums, reduction hooks.
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/program_facts.h"
#include "meshwright/reduction_hook.h"
#include "prove/stage.h"

namespace mw::proving {
// A region after a sum over the ranks of a move.
Region StageProof::reduced(const Region& region, const Move& move, int index) const {
  Region made = region;
  if (region.kind != Region::Kind::gradient)
    refuse("prove.value", name(index) + " holds no gradients to be summed", index);
  made.begins_beside = 0;
  if (region.sums.empty()) return made;
  for (const int atom : move.atoms) {
    if (!tables_.lives(atom)) continue;
    if (region.place[atom] != Placement::partial()) {
      Refusal refused =
          refusal("prove.place",
                  fmt::format("{} is summed over {}, on which it is {}", name(index),
                              program_.mesh.atoms()[atom].name, to_string(region.place[atom])));
      refused.slot = index;
      refused.axes = {{program_.mesh.atoms()[atom].name, "P", to_string(region.place[atom])}};
      throw Refused{std::move(refused)};
    }
    made.place[atom] = Placement::replicate();
  }
  return made;
}

void StageProof::check_same_part(int from, int to) const {
  const FlatView a = view(from), b = view(to);
  const Flat &x = flats_[a.flat], &y = flats_[b.flat];
  if (a.part != b.part || x.bucket != y.bucket)
    refuse("prove.layout",
           fmt::format("{} and {} are not of the same elements", name(from), name(to)), to);
}

// Refuses a move that does not lead from the one slot to the other: an all-reduce works in place,
// and gathers and scatters go over exactly the ranks that keep shards.
void StageProof::check_flat(const Move& move, int from, int to) const {
  const FlatView a = view(from), b = view(to);
  const bool gathers = move.kind == Move::Kind::all_gather,
             scatters = move.kind == Move::Kind::reduce_scatter;
  if (!gathers && move.reduction != Reduction::sum)
    refuse(
        "prove.place",
        fmt::format("{} holds gradients, and the {} must sum them", name(from), name_of(move.kind)),
        from);
  if (move.kind == Move::Kind::all_reduce) {
    if (a.flat == b.flat && a.part == b.part) return;
    refuse("prove.layout",
           fmt::format("an all-reduce works in place on {}, but its result is {}", name(from),
                       name(to)),
           to);
  }
  if (!gathers && !scatters)
    refuse("prove.operands", fmt::format("flat tensors have no {}", name_of(move.kind)));
  std::vector<int> shards = program_.buckets[flats_[a.flat].bucket].shard_atoms, over = move.atoms;
  const auto dead = [&](int atom) { return !tables_.lives(atom); };
  std::erase_if(shards, dead);
  std::erase_if(over, dead);
  const FlatView::Part first = gathers ? FlatView::Part::own : FlatView::Part::whole,
                       second = gathers ? FlatView::Part::whole : FlatView::Part::own;
  if (shards == over && (gathers ? move.from : move.to) == flat_dim &&
      (shards.empty() || (a.part == first && b.part == second)))
    return;
  refuse("prove.group",
         fmt::format("the {} over {} does not bring {} to {}", name_of(move.kind),
                     list_of(program_.mesh, move.atoms), name(from), name(to)),
         to);
}

void StageProof::start_flat(const Instruction& i) {
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  check_group(i.move);
  if (!i.move.stages.empty() && !among(i.move.stages, program_.stage))
    refuse("prove.stages", fmt::format("stage {} does not take part in it", program_.stage));
  Flat& source = there(from, false);
  const FlatView a = view(from), b = view(to);
  if (b.part != FlatView::Part::whole && b.part != FlatView::Part::own)
    refuse("prove.slot", name(to) + " is no flat tensor", to);
  for (const int index : {from, to}) {
    if (slot(index).memory != Memory::device)
      refuse("prove.memory", name(index) + " lies in host memory", index);
  }
  if (slot(from).dtype != slot(to).dtype || source.bucket != flat(b).bucket || source.bucket < 0)
    refuse("prove.dtype", fmt::format("{} cannot be moved to {}", name(from), name(to)), to);
  check_flat(i.move, from, to);
  Underway under;
  under.by = where_;
  under.kind = i.move.kind;
  under.flat = true;
  under.slot = to;
  under.view = b;
  under.may_be_over = completes_update(program_, i);
  const bool gathers = i.move.kind == Move::Kind::all_gather;
  for (const Region& region : source.regions) {
    if (region.kind == Region::Kind::state)
      refuse("prove.value", name(from) + " is the optimizer's state, and is moved", from);
    under.regions.push_back(gathers ? region : reduced(region, i.move, from));
    if (i.move.kind != Move::Kind::all_reduce) under.regions.back().rest_differs = false;
  }
  under.from = a.flat == b.flat ? -1 : a.flat;
  Flat& target = open(to);
  if (under.from >= 0) ++flats_[under.from].readers;
  target.writing = true;
  target.by = where_;
  if (!i.move.stages.empty()) share(i, under, source.bucket);
  underway_.emplace(std::pair{i.pending, -1}, std::move(under));
}

// Posts this stage's contribution to a collective that several stages share.
void StageProof::share(const Instruction& i, Underway& under, int bucket) {
  Post post;
  post.by = where_;
  post.kind = i.move.kind;
  post.dtype = slot(i.inputs[0]).dtype;
  post.regions = under.regions;
  for (const int p : program_.buckets[bucket].parameters)
    post.values.push_back(program_.parameters[p].value);
  under.ranks = {i.move.atoms, i.move.stages};
  under.round = mail_.arrive(under.ranks, program_.stage, std::move(post));
}

// Whether the transfer is over. One that several stages share is over once all of them have begun
// it.
bool StageProof::end_flat(Underway& under) {
  if (under.round >= 0) {
    if (!mail_.is_over({{-1, -1, -1, -1}, under.ranks, under.round})) {
      waits_for_ = fmt::format("transfers before the sum of {} to be over",
                               name(flats_[under.view.flat].slot));
      return false;
    }
    const auto& posts = mail_.rounds.at(under.ranks).list.at(under.round).posts;
    for (const int stage : under.ranks.stages) {
      const auto found = posts.find(stage);
      if (found == posts.end()) {
        waits_for_ = fmt::format("stage {} to come to the sum of {}", stage,
                                 name(flats_[under.view.flat].slot));
        return false;
      }
      if (stage == program_.stage) continue;
      const Post &other = found->second, &own = posts.at(program_.stage);
      if (other.kind != own.kind || other.dtype != own.dtype || other.values != own.values)
        refuse("prove.collective",
               fmt::format("stages {} and {} come to one collective with different tensors",
                           program_.stage, stage));
      for (std::size_t k = 0; k < under.regions.size(); ++k) {
        Region& sum = under.regions[k];
        const Region& more = other.regions[k];
        if (more.sums.empty()) continue;
        if (!sum.sums.empty() && sum.place != more.place)
          refuse("prove.collective",
                 fmt::format("stages {} and {} sum gradients that lie differently", program_.stage,
                             stage));
        sum.place = more.place;
        if (more.twice >= 0) sum.twice = more.twice;
        for (const auto& [term, microbatches] : more.sums) {
          if (!sum.sums[term].add(microbatches)) sum.twice = term;
        }
      }
    }
  }
  finish_flat(under);
  return true;
}

void StageProof::finish_flat(Underway& under) {
  Flat& target = flat(under.view);
  if (under.from >= 0) --flats_[under.from].readers;
  target.writing = false;
  write(target, under.view, std::move(under.regions));
  target.by = under.by;
}

// Sets what a flat tensor, or the rank's shard of it, holds.
void StageProof::write(Flat& f, const FlatView& v, std::vector<Region> regions) {
  const bool rest = v.part == FlatView::Part::own && sharded(f);
  for (std::size_t k = 0; k < regions.size(); ++k) {
    f.regions[k] = std::move(regions[k]);
    f.regions[k].rest_differs = rest;
  }
  f.settled = true;
  f.by = where_;
}

void StageProof::copy_flat(const Instruction& i) {
  const int from = i.inputs[0], to = i.outputs[0];
  std::vector<Region> regions = there(from, false).regions;
  const FlatView v = view(to);
  if (v.part != FlatView::Part::whole && v.part != FlatView::Part::own)
    refuse("prove.slot", name(to) + " is no flat tensor", to);
  check_same_part(from, to);
  for (Region& region : regions) {
    if (region.kind == Region::Kind::state && !same_state(from, to))
      refuse("prove.value",
             fmt::format("{} is the optimizer's state, and is copied to {}", name(from), name(to)),
             from);
    region.begins_beside = 0;
  }
  write(open(to), v, std::move(regions));
}

// Whether the slots are two copies of one optimizer state: in host memory and on the device.
bool StageProof::same_state(int a, int b) const {
  if (slot(a).bucket < 0) return false;
  const FlatSlots& flat = program_.buckets[slot(a).bucket].flat;
  for (std::size_t k = 0; k < flat.states_on_device.size(); ++k) {
    if (std::minmax(a, b) == std::minmax(flat.states.at(k), flat.states_on_device[k])) return true;
  }
  return false;
}

void StageProof::add_flat(const Instruction& i) {
  const int from = i.inputs[0], to = i.outputs[0];
  static const std::vector<int> all;
  const std::vector<int>& contributing = i.contributing.empty() ? all : i.contributing[0];
  const std::vector<Region> more = there(from, false).regions;
  const FlatView v = view(to);
  if (v.part != FlatView::Part::whole && v.part != FlatView::Part::own)
    refuse("prove.slot", name(to) + " is no flat tensor", to);
  check_same_part(from, to);
  Flat& f = open(to);
  for (std::size_t k = 0; k < more.size(); ++k) {
    Region& region = f.regions[k];
    if (more[k].kind != Region::Kind::gradient)
      refuse("prove.add", name(from) + " holds no gradients to be added", from, f.by);
    if (more[k].sums.empty() && !region.stale) continue;
    contribute(f, region, more[k].place, contributing, more[k].sums, more[k].twice);
    region.rest_differs = v.part == FlatView::Part::own && sharded(f);
  }
  for (Region& region : f.regions) {
    if (region.kind == Region::Kind::nothing) region.kind = Region::Kind::gradient;
  }
  if (contributing.empty()) f.settled = true;
  f.by = where_;
}

void StageProof::hook_start(const Instruction& i) {
  const bool gathers = i.serves == Serves::parameters;
  if (i.bucket < 0 ||
      !(gathers ? program_.buckets[i.bucket].gather_hook : program_.buckets[i.bucket].hook))
    refuse("prove.hook", "there is no such hook");
  const Bucket& bucket = program_.buckets[i.bucket];
  if (gathers) {
    notes_.insert(fmt::format("{} gathers less than the parameters of {}",
                              bucket.gather_hook->name(), bucket.name));
    if (i.move.kind != Move::Kind::all_gather)
      refuse("prove.hook", "a hook replaces an all-gather");
  } else {
    const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
    if (from != to || from != bucket.flat.gradients || view(from).part != FlatView::Part::whole)
      refuse("prove.hook", fmt::format("a hook reduces the gradients of {} in place", bucket.name),
             from);
    if (!bucket.hook->exact(shape_of(program_, bucket, program_.first())))
      notes_.insert(fmt::format("{} loses some of {}", bucket.hook->name(), bucket.name));
    if (i.move.kind != Move::Kind::all_reduce)
      refuse("prove.hook", "a hook replaces an all-reduce");
  }
  if (underway_.count({i.pending, -1}) > 0)
    refuse("prove.unawaited", "it begins again a transfer that is still under way");
  Instruction plain = i;
  plain.code = Code::start;
  start_flat(plain);
  underway_.at({i.pending, -1}).hook = true;
}

}  // namespace mw::proving
