// The rules for tensors that last for a step or longer: a bucket's flat tensors, of which each rank
// keeps all or its shard, and the sums that gradients are added to.
#include <fmt/format.h>

#include <algorithm>

#include "prove/stage.h"

namespace mw::proving {
void StageProof::make_flats() {
  for (std::size_t s = 0; s < program_.slots.size(); ++s) {
    const Slot& what = program_.slots[s];
    const int index = static_cast<int>(s);
    if (!what.persistent || what.alias_of >= 0 || (what.bucket < 0 && index != program_.loss))
      continue;
    Flat made;
    made.slot = index;
    made.bucket = what.bucket;
    made.there = !what.transient;
    made.settled = made.there;
    made.regions.resize(what.bucket < 0 ? 1 : program_.buckets[what.bucket].parameters.size());
    views_[s] = {static_cast<int>(flats_.size()), FlatView::Part::whole, -1};
    flats_.push_back(std::move(made));
  }
  for (std::size_t s = 0; s < program_.slots.size(); ++s) {
    if (program_.slots[s].persistent && program_.slots[s].bucket >= 0)
      place_view(static_cast<int>(s));
  }
  for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
    const ProgramParameter& parameter = program_.parameters[p];
    const Bucket& bucket = program_.buckets[bucket_of_[p]];
    const bool frozen = graph_.value(parameter.value).frozen;
    if (bucket.frozen != frozen)
      refuse("prove.bucket",
             name(parameter.slot) +
                 (frozen ? " is frozen, and its bucket is not" : " is in a bucket that is frozen"),
             parameter.slot);
    for (const int index : {parameter.slot, parameter.gradient_slot}) {
      if (index < 0 && frozen) continue;
      FlatView& v = views_[index];
      v = {views_[program_.root(index)].flat, FlatView::Part::parameter,
           bucket_region(bucket, static_cast<int>(p))};
      if (v.flat < 0 || flat(v).bucket != bucket_of_[p] || flat(v).shard)
        refuse("prove.slot", name(index) + " is no part of its bucket's flat tensor", index);
    }
  }
  for (const Bucket& bucket : program_.buckets) {
    check_precisions(bucket.flat);
    std::vector<int> numbers = bucket.flat.states;
    numbers.insert(numbers.end(), bucket.flat.of_matrix.begin(), bucket.flat.of_matrix.end());
    numbers.insert(numbers.end(), bucket.flat.outer_states.begin(), bucket.flat.outer_states.end());
    numbers.push_back(bucket.flat.anchor);
    const std::size_t states = numbers.size();
    numbers.insert(numbers.end(), {bucket.flat.parameters, bucket.flat.stored, bucket.flat.master});
    const bool whole = bucket.flat.parameters >= 0 && flat(view(bucket.flat.parameters)).there;
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      if (numbers[n] < 0) continue;
      Flat& f = flat(view(numbers[n]));
      // Before the first step, a run fills the whole parameters, or else their shards, and the
      // optimizer's copy.
      if (whole && numbers[n] == bucket.flat.stored &&
          view(bucket.flat.stored).flat != view(bucket.flat.parameters).flat)
        refuse("prove.slot",
               fmt::format("{} is kept beside {}, and nothing fills it before the first step",
                           name(numbers[n]), name(bucket.flat.parameters)),
               numbers[n]);
      for (Region& region : f.regions) {
        if (f.there) region.kind = n < states ? Region::Kind::state : Region::Kind::parameter;
      }
    }
  }
  for (Flat& f : flats_) {
    for (Region& region : f.regions) {
      if (!f.there || region.kind != Region::Kind::nothing) continue;
      region.kind = Region::Kind::gradient;
      region.stale = true;
    }
  }
}

// Checks the dtypes of a bucket's flat tensors, which kernels and collectives rely on.
void StageProof::check_precisions(const FlatSlots& slots) const {
  const auto must_be = [&](int index, Dtype dtype) {
    if (index >= 0 && slot(index).dtype != dtype)
      refuse("prove.dtype",
             fmt::format("{} must be {}, and is {}", name(index), name_of(dtype),
                         name_of(slot(index).dtype)),
             index);
  };
  const Dtype gradient = program_.gradient_dtype, sum = wider(gradient, program_.reduce_dtype);
  for (const int index :
       {slots.parameters, slots.stored, slots.on_device, slots.parameters_on_host})
    must_be(index, program_.dtype);
  for (const int index : {slots.gradients, slots.reduced, slots.cast_back, slots.gradients_on_host})
    must_be(index, gradient);
  must_be(slots.cast, sum);
  const bool hooked = slots.arriving >= 0 && slot(slots.arriving).alias_of >= 0;
  must_be(slots.arriving, hooked ? gradient : sum);
  must_be(slots.master, program_.optimizer_dtype);
  for (const int state : slots.states) must_be(state, program_.optimizer_dtype);
  for (const int state : slots.states_on_device) must_be(state, program_.optimizer_dtype);
  must_be(slots.updated_on_device, slots.master >= 0 ? program_.optimizer_dtype : program_.dtype);
  for (const int kept : slots.of_matrix) must_be(kept, program_.optimizer_dtype);
  must_be(slots.direction, program_.optimizer_dtype);
  must_be(slots.directions, program_.optimizer_dtype);
}

// Finds which part of a flat tensor a bucket's slot is: all of it, or the rank's shard.
void StageProof::place_view(int index) {
  const Slot& what = slot(index);
  FlatView& v = views_[index];
  const std::vector<int>& atoms = program_.buckets[what.bucket].shard_atoms;
  v.flat = views_[program_.root(index)].flat;
  if (v.flat < 0 || what.dims != Dims{flat_dim})
    refuse("prove.slot", what.name + " is no flat tensor", index);
  bool cut = false, whole = false;
  for (std::size_t a = 0; a < what.layout.size(); ++a) {
    if (!tables_.lives(static_cast<int>(a))) continue;
    const bool shard = what.layout[a] == Placement::shard(flat_dim);
    if (shard != what.layout[a].is_shard() || (shard && !among(atoms, static_cast<int>(a))))
      refuse("prove.layout",
             fmt::format("{} cannot have the layout {}", what.name,
                         to_string(what.layout, program_.mesh)),
             index);
    if (among(atoms, static_cast<int>(a))) (shard ? cut : whole) = true;
  }
  if (cut && whole)
    refuse("prove.layout", what.name + " is cut over some of its bucket's ranks alone");
  v.part = cut ? FlatView::Part::own : FlatView::Part::whole;
  if (what.alias_of < 0) flats_[v.flat].shard = cut;
}

bool StageProof::sharded(const Flat& f) const {
  if (f.bucket < 0 || f.shard) return false;
  const std::vector<int>& atoms = program_.buckets[f.bucket].shard_atoms;
  return std::any_of(atoms.begin(), atoms.end(), [&](int a) { return tables_.lives(a); });
}

int StageProof::bucket_region(const Bucket& bucket, int parameter) const {
  const auto found = std::find(bucket.parameters.begin(), bucket.parameters.end(), parameter);
  if (found == bucket.parameters.end())
    refuse("prove.bucket",
           program_.name_of_parameter(parameter) + " is no parameter of " + bucket.name);
  return static_cast<int>(found - bucket.parameters.begin());
}

StageProof::Operand StageProof::parameter(int index) {
  const FlatView v = view(index);
  if (v.part != FlatView::Part::parameter)
    refuse("prove.slot", name(index) + " lasts, and is no operand of an op", index);
  const Flat& f = flat(v);
  const int p = program_.buckets[f.bucket].parameters[v.region];
  if (!f.there) {
    refuse("prove.gather",
           fmt::format("{} is read while {} is not there: a gather is missing, or it "
                       "was let go of before",
                       name(index), name(f.slot)),
           index, released_[f.slot].second);
  }
  if (f.writing)
    refuse("prove.underway",
           fmt::format("{} is read while a transfer writes {}", name(index), name(f.slot)), index,
           f.by);
  const Region& region = f.regions[v.region];
  if (region.kind != Region::Kind::parameter || program_.parameters[p].slot != index)
    refuse("prove.value", name(index) + " does not hold a parameter", index, f.by);
  if (region.rest_differs)
    refuse("prove.gather",
           fmt::format("{} is read whole, but each rank has only its own shard", name(index)),
           index, f.by);
  if (region.version != 0)
    refuse("prove.value",
           fmt::format("{} is read {}", name(index),
                       region.version > 0
                           ? "after it was updated"
                           : "before the update that the step before has left to this one"),
           index, f.by);
  return {&parameters_[p],
          &graph_.value(program_.parameters[p].value).dims,
          slot(f.slot).dtype,
          slot(f.slot).memory,
          f.by,
          -1};
}

// The flat tensor of a slot that is about to be written; it is created if it is not there.
Flat& StageProof::open(int index) {
  const FlatView v = view(index);
  if (v.part == FlatView::Part::none)
    refuse("prove.slot", name(index) + " is no flat tensor", index);
  Flat& f = flat(v);
  if (f.writing || f.readers > 0)
    refuse("prove.underway",
           fmt::format("{} is written while a transfer {} {}", name(index),
                       f.writing ? "writes" : "reads", name(f.slot)),
           index, f.by);
  if (f.there) return f;
  f.there = true;
  f.settled = false;
  f.regions.assign(f.regions.size(), {});
  return f;
}

// The flat tensor of a slot that is about to be read. `all`: the slot must not be a rank's shard.
Flat& StageProof::there(int index, bool all) {
  const FlatView v = view(index);
  if (v.part == FlatView::Part::none || v.part == FlatView::Part::parameter)
    refuse("prove.slot", name(index) + " is no flat tensor", index);
  Flat& f = flat(v);
  if (!f.there) refuse("prove.missing", name(index) + " is not there", index, f.by);
  if (f.writing)
    refuse("prove.underway", name(index) + " is read while a transfer writes it", index, f.by);
  if (all && v.part != FlatView::Part::whole)
    refuse("prove.layout", name(index) + " is a rank's shard alone", index);
  if (!f.settled)
    refuse("prove.unwritten", name(index) + " is read, and parts of it may not have been written",
           index, f.by);
  for (std::size_t k = 0; k < f.regions.size(); ++k) {
    const Region& region = f.regions[k];
    const auto parameter = [&] {
      return f.bucket < 0 ? name(index)
                          : program_.name_of_parameter(program_.buckets[f.bucket].parameters[k]);
    };
    if (region.kind == Region::Kind::nothing)
      refuse("prove.missing", fmt::format("{} holds nothing of {}", name(index), parameter()),
             index, f.by);
    if (region.stale)
      refuse("prove.begin",
             fmt::format("{} still holds the last step's sum for {}", name(index), parameter()),
             index, f.by);
    if (v.part == FlatView::Part::whole && region.rest_differs)
      refuse("prove.gather",
             fmt::format("{} is read whole, and ranks have their own shards of {} alone",
                         name(index), parameter()),
             index, f.by);
  }
  return f;
}

// Atoms of which only the first ranks contribute must not include the atom of pipeline stages:
// stages after the first have no such rank.
void StageProof::check_contributing(const std::vector<int>& atoms) const {
  for (const int atom : atoms) {
    if (atom < 0 || atom >= static_cast<int>(program_.mesh.atoms().size()))
      refuse("prove.operands", fmt::format("the mesh has no atom {}", atom));
    if (atom == program_.stage_atom && program_.stages > 1)
      refuse("prove.contributing",
             fmt::format("only the first rank over {} contributes, which is of stage 0",
                         program_.mesh.atoms()[atom].name));
  }
}

// Adds a contribution to a sum: that of all ranks, or, along the atoms `contributing`, whose ranks
// all hold it, that of the first rank alone.
void StageProof::contribute(Flat& f, Region& region, const Layout& place,
                            const std::vector<int>& contributing,
                            const std::map<int, Microbatches>& sums, int twice) {
  if (region.stale)
    refuse("prove.begin",
           fmt::format("{} still holds the sum of the step before: none was begun", name(f.slot)),
           f.slot, f.by);
  if (region.kind != Region::Kind::nothing && region.kind != Region::Kind::gradient)
    refuse("prove.add", name(f.slot) + " holds no sum", f.slot, f.by);
  if (region.rest_differs && !region.sums.empty() && !f.shard &&
      view(f.slot).part == FlatView::Part::whole)
    refuse("prove.add", name(f.slot) + " has a sum whose own shard was already reduced", f.slot,
           f.by);
  Layout mine = place;
  check_contributing(contributing);
  Atoms firsts = 0;
  for (const int atom : contributing) {
    if (!tables_.lives(atom)) continue;
    if (!mine[atom].is_replicate())
      refuse("prove.contributing",
             fmt::format("only the first rank over {} adds to {}, and each has {} of it",
                         program_.mesh.atoms()[atom].name, name(f.slot),
                         mine[atom].is_partial() ? "a share" : "a shard"),
             f.slot);
    mine[atom] = Placement::partial();
    firsts |= Atoms{1} << atom;
  }
  region.first = region.sums.empty() ? firsts : region.first & firsts;
  if (!region.sums.empty()) {
    for (std::size_t a = 0; a < region.place.size(); ++a) {
      if ((region.begins_beside >> a & 1) == 0) continue;
      if (!region.place[a].is_replicate())
        refuse("prove.begin",
               name(f.slot) + " begins again while ranks still have terms of the old sum", f.slot);
      region.place[a] = Placement::partial();
    }
    if (region.place != mine) {
      Refusal made =
          refusal("prove.contributing",
                  fmt::format("what is added to {} has another layout than the tensor there",
                              name(f.slot)));
      made.slot = f.slot;
      made.axes = differences(program_.mesh, region.place, mine);
      throw Refused{std::move(made)};
    }
  }
  region.begins_beside = 0;
  region.kind = Region::Kind::gradient;
  region.place = mine;
  if (twice >= 0) region.twice = twice;
  for (const auto& [term, microbatches] : sums) {
    if (!region.sums[term].add(microbatches)) region.twice = term;
  }
  f.by = where_;
}

// Adds a microbatch's gradient of a parameter to the parameter's part of the bucket's gradients.
void StageProof::add_gradient(int index, const Content& content,
                              const std::vector<int>& contributing) {
  const FlatView v = view(index);
  if (v.part != FlatView::Part::parameter)
    refuse("prove.add", name(index) + " is no gradient of a parameter", index);
  const int p = program_.buckets[flat(v).bucket].parameters[v.region];
  const ProgramParameter& parameter = program_.parameters[p];
  if (parameter.gradient_slot != index)
    refuse("prove.add", name(index) + " is a parameter, and a gradient is added to it", index);
  if (content.slices > 1 || !content.parts.empty())
    refuse("prove.slice", fmt::format("{} is added to {}", text_of(content), name(index)), index);
  if (content.shift != 0 || content.steps != 0)
    refuse("prove.ring", fmt::format("{} is added to {}", text_of(content), name(index)), index);
  const std::vector<int>& known = gradients_.sets.terms(gradients_.complete(parameter.value));
  std::map<int, Microbatches> sums;
  int twice = -1;
  for (const int term : gradients_.sets.terms(content.terms)) {
    if (!std::binary_search(known.begin(), known.end(), term))
      refuse("prove.gradient",
             fmt::format("{} is added to {}, and is no part of it", gradients_.text(term),
                         name(index)),
             index);
    if (!sums[term].add(content.microbatch)) twice = term;
  }
  const Layout& stored = parameters_[p].place;
  for (std::size_t a = 0; a < stored.size(); ++a) {
    const Placement& is = content.place[a];
    if (is.is_shard() == stored[a].is_shard() && (!is.is_shard() || is.dim == stored[a].dim))
      continue;
    Operand found{&content, nullptr, Dtype::fp32, Memory::device, {}, -1};
    misplaced(index, found, stored, "what is added to " + name(index));
  }
  Flat& f = open(index);
  contribute(f, f.regions[v.region], content.place, contributing, sums, twice);
}

void StageProof::begin_sum(const Instruction& i) {
  Atoms beside = 0;
  if (!i.contributing.empty()) {
    check_contributing(i.contributing[0]);
    for (const int atom : i.contributing[0]) {
      if (tables_.lives(atom)) beside |= Atoms{1} << atom;
    }
    if (beside == 0 && !i.contributing[0].empty()) return;  // of one rank, which keeps its sum
  }
  for (const int index : i.outputs) {
    if (index < 0) refuse("prove.operands", "it begins no sum");
    const FlatView v = view(index);
    if (v.part == FlatView::Part::none || slot(index).alias_of >= 0)
      refuse("prove.slot", name(index) + " is no sum over a step", index);
    if (!flat(v).there) refuse("prove.missing", name(index) + " is not there", index, flat(v).by);
    Flat& f = open(index);
    for (Region& region : f.regions) {
      if (region.kind != Region::Kind::gradient && region.kind != Region::Kind::direction)
        refuse("prove.begin", name(index) + " holds what is no sum", index, f.by);
      if (beside == 0) {
        region = {};
        region.kind = Region::Kind::gradient;
      } else if (region.stale || region.kind == Region::Kind::direction) {
        refuse("prove.begin", name(index) + " holds no sum to begin another beside", index, f.by);
      } else {
        region.begins_beside |= beside;
      }
    }
    if (beside == 0) f.settled = false;
  }
}

void StageProof::settle(const Instruction& i) {
  const int index = one(i.outputs, "output");
  if (slot(index).alias_of >= 0)
    refuse("prove.slot", name(index) + " is settled with what it is a view of", index);
  Flat& f = open(index);
  for (Region& region : f.regions) {
    if (region.kind == Region::Kind::nothing) region.kind = Region::Kind::gradient;
    for (std::size_t a = 0; !region.sums.empty() && a < region.place.size(); ++a) {
      if ((region.begins_beside >> a & 1) != 0) region.place[a] = Placement::partial();
    }
    region.begins_beside = 0;
  }
  f.settled = true;
  f.by = where_;
}

}  // namespace mw::proving
