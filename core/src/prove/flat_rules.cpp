// The rules for what lasts: a bucket's flat tensors, of which each rank keeps all or its shard, the
// sums that gradients are added to, and the transfers between them.
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/reduction_hook.h"
#include "prove/stage.h"

namespace mw::proving {
namespace {

const Dim flat_dim("flat");


}  // namespace

void StageProof::make_flats() {
  for (std::size_t s = 0; s < program_.slots.size(); ++s) {
    const Slot& what = program_.slots[s];
    const int index = static_cast<int>(s);
    if (!what.persistent || what.alias_of >= 0 || (what.bucket < 0 && index != program_.loss)) continue;
    Flat made;
    made.slot = index;
    made.bucket = what.bucket;
    made.there = !what.transient;
    made.settled = made.there;
    made.regions.resize(what.bucket < 0 ? 1 : program_.buckets[static_cast<std::size_t>(what.bucket)].parameters.size());
    views_[s] = {static_cast<int>(flats_.size()), FlatView::Part::whole, -1};
    flats_.push_back(std::move(made));
  }
  for (std::size_t s = 0; s < program_.slots.size(); ++s) {
    const Slot& what = program_.slots[s];
    if (!what.persistent || what.bucket < 0) continue;
    const std::vector<int>& atoms = program_.buckets[static_cast<std::size_t>(what.bucket)].shard_atoms;
    views_[s].flat = views_[static_cast<std::size_t>(program_.root(static_cast<int>(s)))].flat;
    if (views_[s].flat < 0 || what.dims != Dims{flat_dim})
      refuse("prove.slot", what.name + " is no flat tensor", static_cast<int>(s));
    bool cut = false, whole = false;
    for (std::size_t a = 0; a < what.layout.size(); ++a) {
      if (!tables_.lives(static_cast<int>(a))) continue;
      const bool shard = what.layout[a] == Placement::shard(flat_dim);
      if (shard != what.layout[a].is_shard() || (shard && !among(atoms, static_cast<int>(a))))
        refuse("prove.layout", fmt::format("{} cannot lie {}", what.name,
                                           to_string(what.layout, program_.mesh)), static_cast<int>(s));
      if (among(atoms, static_cast<int>(a))) (shard ? cut : whole) = true;
    }
    if (cut && whole) refuse("prove.layout", what.name + " is cut over some of its bucket's ranks alone");
    views_[s].part = cut ? FlatView::Part::own : FlatView::Part::whole;
    if (what.alias_of < 0) flats_[static_cast<std::size_t>(views_[s].flat)].shard = cut;
  }
  for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
    const ProgramParameter& parameter = program_.parameters[p];
    const Bucket& bucket = program_.buckets[static_cast<std::size_t>(bucket_of_[p])];
    for (const int index : {parameter.slot, parameter.gradient_slot}) {
      FlatView& v = views_[static_cast<std::size_t>(index)];
      v = {views_[static_cast<std::size_t>(program_.root(index))].flat, FlatView::Part::parameter,
           bucket_region(bucket, static_cast<int>(p))};
      if (v.flat < 0 || flat(v).bucket != bucket_of_[p] || flat(v).shard)
        refuse("prove.slot", name(index) + " is no part of its bucket's flat tensor", index);
    }
  }
  for (const Bucket& bucket : program_.buckets) {
    std::vector<int> numbers = bucket.flat.states;
    const std::size_t states = numbers.size();
    numbers.insert(numbers.end(), {bucket.flat.parameters, bucket.flat.stored, bucket.flat.master});
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      if (numbers[n] < 0) continue;
      Flat& f = flat(view(numbers[n]));
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

bool StageProof::sharded(const Flat& f) const {
  if (f.bucket < 0 || f.shard) return false;
  const std::vector<int>& atoms = program_.buckets[static_cast<std::size_t>(f.bucket)].shard_atoms;
  return std::any_of(atoms.begin(), atoms.end(), [&](int a) { return tables_.lives(a); });
}

int StageProof::bucket_region(const Bucket& bucket, int parameter) const {
  const auto found = std::find(bucket.parameters.begin(), bucket.parameters.end(), parameter);
  if (found == bucket.parameters.end())
    refuse("prove.bucket", program_.name_of_parameter(parameter) + " is no parameter of " + bucket.name);
  return static_cast<int>(found - bucket.parameters.begin());
}

StageProof::Operand StageProof::parameter(int index) {
  const FlatView v = view(index);
  if (v.part != FlatView::Part::parameter)
    refuse("prove.slot", name(index) + " lasts, and is no operand of an op", index);
  const Flat& f = flat(v);
  const int p = program_.buckets[static_cast<std::size_t>(f.bucket)].parameters[static_cast<std::size_t>(v.region)];
  if (!f.there) {
    refuse("prove.gather", fmt::format("{} is read while {} is not there: a gather is missing, or it "
                                       "was let go of before", name(index), name(f.slot)), index,
           released_[static_cast<std::size_t>(f.slot)].second);
  }
  if (f.writing)
    refuse("prove.underway", fmt::format("{} is read while a transfer writes {}", name(index),
                                         name(f.slot)), index, f.by);
  const Region& region = f.regions[static_cast<std::size_t>(v.region)];
  if (region.kind != Region::Kind::parameter || program_.parameters[static_cast<std::size_t>(p)].slot != index)
    refuse("prove.value", name(index) + " does not hold a parameter", index, f.by);
  if (region.rest_differs)
    refuse("prove.gather", fmt::format("{} is read, of which ranks have their own shards alone", name(index)),
           index, f.by);
  if (region.version != 0)
    refuse("prove.value", name(index) + " is read after it was updated", index, f.by);
  return {&parameters_[static_cast<std::size_t>(p)], &graph_.value(program_.parameters[static_cast<std::size_t>(p)].value).dims,
          slot(f.slot).dtype, slot(f.slot).memory, f.by, -1};
}

// The flat tensor that is to be written, made if it is not there.
Flat& StageProof::open(int index) {
  const FlatView v = view(index);
  if (v.part == FlatView::Part::none) refuse("prove.slot", name(index) + " is no flat tensor", index);
  Flat& f = flat(v);
  if (f.writing || f.readers > 0)
    refuse("prove.underway", fmt::format("{} is written while a transfer {} {}", name(index),
                                         f.writing ? "writes" : "reads", name(f.slot)), index, f.by);
  if (f.there) return f;
  f.there = true;
  f.settled = false;
  f.regions.assign(f.regions.size(), {});
  return f;
}

// The flat tensor that is read: all of it, or the rank's own.
Flat& StageProof::there(int index, bool all) {
  const FlatView v = view(index);
  if (v.part == FlatView::Part::none || v.part == FlatView::Part::parameter)
    refuse("prove.slot", name(index) + " is no flat tensor", index);
  Flat& f = flat(v);
  if (!f.there) refuse("prove.missing", name(index) + " is not there", index, f.by);
  if (f.writing)
    refuse("prove.underway", name(index) + " is read while a transfer writes it", index, f.by);
  if (all && v.part != FlatView::Part::whole) refuse("prove.layout", name(index) + " is a rank's shard alone", index);
  if (!f.settled)
    refuse("prove.unwritten", name(index) + " is read, and parts of it may not have been written", index, f.by);
  for (std::size_t k = 0; k < f.regions.size(); ++k) {
    const Region& region = f.regions[k];
    const auto parameter = [&] {
      return f.bucket < 0 ? name(index) : program_.name_of_parameter(program_.buckets[static_cast<std::size_t>(f.bucket)].parameters[k]);
    };
    if (region.kind == Region::Kind::nothing)
      refuse("prove.missing", fmt::format("{} holds nothing of {}", name(index), parameter()), index, f.by);
    if (region.stale)
      refuse("prove.begin", fmt::format("{} holds the sum of the step before of {}", name(index), parameter()), index, f.by);
    if (v.part == FlatView::Part::whole && region.rest_differs)
      refuse("prove.gather", fmt::format("{} is read whole, and ranks have their own shards of {} alone",
                                         name(index), parameter()), index, f.by);
  }
  return f;
}

// Ranks at the start of some atoms, none of which may be the stages': other stages have no such rank.
void StageProof::check_contributing(const std::vector<int>& atoms) const {
  for (const int atom : atoms) {
    if (atom < 0 || atom >= static_cast<int>(program_.mesh.atoms().size()))
      refuse("prove.operands", fmt::format("the mesh has no atom {}", atom));
    if (atom == program_.stage_atom && program_.stages > 1)
      refuse("prove.contributing", fmt::format("only the first rank over {} contributes, which is of stage 0",
                                               program_.mesh.atoms()[static_cast<std::size_t>(atom)].name));
  }
}

// Adds to a sum what all ranks, or the first of those that have it alike, give.
void StageProof::contribute(Flat& f, Region& region, const Layout& place,
                       const std::vector<int>& contributing,
                       const std::map<int, Microbatches>& sums, int twice) {
  if (region.stale)
    refuse("prove.begin", fmt::format("{} still holds the sum of the step before: none was begun",
                                      name(f.slot)), f.slot, f.by);
  if (region.kind != Region::Kind::nothing && region.kind != Region::Kind::gradient)
    refuse("prove.add", name(f.slot) + " holds no sum", f.slot, f.by);
  if (region.rest_differs && !region.sums.empty() && !f.shard && view(f.slot).part == FlatView::Part::whole)
    refuse("prove.add", name(f.slot) + " holds a sum of which the rank's own shard is reduced already", f.slot, f.by);
  Layout mine = place;
  check_contributing(contributing);
  for (const int atom : contributing) {
    if (!tables_.lives(atom)) continue;
    if (!mine[atom].is_replicate())
      refuse("prove.contributing", fmt::format("only the first rank over {} adds to {}, and each has {} of it",
                                               program_.mesh.atoms()[atom].name, name(f.slot),
                                               mine[atom].is_partial() ? "a share" : "a shard"), f.slot);
    mine[atom] = Placement::partial();
  }
  if (!region.sums.empty()) {
    for (std::size_t a = 0; a < region.place.size(); ++a) {
      if ((region.begins_beside >> a & 1) == 0) continue;
      if (!region.place[a].is_replicate())
        refuse("prove.begin", name(f.slot) + " begins anew beside a sum that ranks have shares of", f.slot);
      region.place[a] = Placement::partial();
    }
    if (region.place != mine) {
      Refusal made = refusal("prove.contributing", fmt::format(
          "what is added to {} does not lie as what is there", name(f.slot)));
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

// Adds a microbatch's gradient of a parameter to the parameter's part of the bucket's.
void StageProof::add_gradient(int index, const Content& content, const std::vector<int>& contributing) {
  const FlatView v = view(index);
  if (v.part != FlatView::Part::parameter) refuse("prove.add", name(index) + " is no gradient of a parameter", index);
  const int p = program_.buckets[static_cast<std::size_t>(flat(v).bucket)].parameters[static_cast<std::size_t>(v.region)];
  const ProgramParameter& parameter = program_.parameters[static_cast<std::size_t>(p)];
  if (parameter.gradient_slot != index)
    refuse("prove.add", name(index) + " is a parameter, and a gradient is added to it", index);
  if (content.shift != 0 || content.steps != 0)
    refuse("prove.ring", fmt::format("{} is added to {}", text_of(content), name(index)), index);
  const std::vector<int>& known = gradients_.sets.terms(gradients_.complete(parameter.value));
  std::map<int, Microbatches> sums;
  int twice = -1;
  for (const int term : gradients_.sets.terms(content.terms)) {
    if (!std::binary_search(known.begin(), known.end(), term))
      refuse("prove.gradient", fmt::format("{} is added to {}, and is no part of it",
                                           gradients_.text(term), name(index)), index);
    if (!sums[term].add(content.microbatch)) twice = term;
  }
  const Layout& stored = parameters_[static_cast<std::size_t>(p)].place;
  for (std::size_t a = 0; a < stored.size(); ++a) {
    const Placement& is = content.place[a];
    if (is.is_shard() == stored[a].is_shard() && (!is.is_shard() || is.dim == stored[a].dim)) continue;
    Operand found{&content, nullptr, Dtype::fp32, Memory::device, {}, -1};
    misplaced(index, found, stored, "what is added to " + name(index));
  }
  Flat& f = open(index);
  contribute(f, f.regions[static_cast<std::size_t>(v.region)], content.place, contributing, sums, twice);
}

void StageProof::begin_sum(const Instruction& i) {
  Atoms beside = 0;
  if (!i.contributing.empty()) {
    check_contributing(i.contributing[0]);
    for (const int atom : i.contributing[0]) {
      if (tables_.lives(atom)) beside |= Atoms{1} << atom;
    }
    if (beside == 0 && !i.contributing[0].empty()) return;  // the one rank keeps its sum
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
  if (slot(index).alias_of >= 0) refuse("prove.slot", name(index) + " is settled with what it is a view of", index);
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

// A region after a sum over the ranks of a move.
Region StageProof::reduced(const Region& region, const Move& move, bool scatters, int index) const {
  Region made = region;
  if (region.kind != Region::Kind::gradient)
    refuse("prove.value", name(index) + " holds no gradients to be summed", index);
  made.begins_beside = 0;
  if (scatters) made.rest_differs = false;
  if (region.sums.empty()) return made;
  for (const int atom : move.atoms) {
    if (!tables_.lives(atom)) continue;
    if (region.place[atom] != Placement::partial()) {
      Refusal refused = refusal("prove.place", fmt::format(
          "{} is summed over {}, on which it is {}", name(index), program_.mesh.atoms()[atom].name,
          to_string(region.place[atom])));
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
  const Flat &x = flats_[static_cast<std::size_t>(a.flat)], &y = flats_[static_cast<std::size_t>(b.flat)];
  if (a.part != b.part || x.bucket != y.bucket)
    refuse("prove.layout", fmt::format("{} and {} are not of the same elements", name(from), name(to)), to);
}

void StageProof::start_flat(const Instruction& i) {
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  if (!lasting(to)) refuse("prove.slot", name(from) + " lasts, and is moved to a microbatch's " + name(to), to);
  check_group(i.move);
  if (!i.move.stages.empty() && !among(i.move.stages, program_.stage))
    refuse("prove.stages", fmt::format("stage {} is none of those that come to it", program_.stage));
  Flat& source = there(from, false);
  const FlatView a = view(from), b = view(to);
  if (b.part != FlatView::Part::whole && b.part != FlatView::Part::own) refuse("prove.slot", name(to) + " is no flat tensor", to);
  for (const int index : {from, to}) {
    if (slot(index).memory != Memory::device)
      refuse("prove.memory", name(index) + " lies in host memory", index);
  }
  if (slot(from).dtype != slot(to).dtype || source.bucket != flat(b).bucket || source.bucket < 0)
    refuse("prove.dtype", fmt::format("{} cannot be moved to {}", name(from), name(to)), to);
  std::vector<int> shards = program_.buckets[static_cast<std::size_t>(source.bucket)].shard_atoms, over = i.move.atoms;
  const auto dead = [&](int atom) { return !tables_.lives(atom); };
  std::erase_if(shards, dead);
  std::erase_if(over, dead);
  Underway under;
  under.by = where_;
  under.kind = i.move.kind;
  under.flat = true;
  under.view = b;
  const bool gathers = i.move.kind == Move::Kind::all_gather, scatters = i.move.kind == Move::Kind::reduce_scatter;
  if (i.move.kind == Move::Kind::all_reduce) {
    if (a.flat != b.flat || a.part != b.part)
      refuse("prove.layout", fmt::format("an all-reduce sums {} where it lies, and is to leave it in {}", name(from), name(to)), to);
  } else if (gathers || scatters) {
    const FlatView::Part first = gathers ? FlatView::Part::own : FlatView::Part::whole, second = gathers ? FlatView::Part::whole : FlatView::Part::own;
    if (shards != over || (gathers ? i.move.from : i.move.to) != flat_dim ||
        (!shards.empty() && (a.part != first || b.part != second)))
      refuse("prove.group", fmt::format("a {} over {} does not bring {} to {}", name_of(i.move.kind),
                                        list_of(program_.mesh, i.move.atoms), name(from), name(to)), to);
  } else {
    refuse("prove.operands", fmt::format("a {} is none of flat tensors", name_of(i.move.kind)));
  }
  for (const Region& region : source.regions) {
    under.regions.push_back(gathers ? region : reduced(region, i.move, scatters, from));
    if (gathers) under.regions.back().rest_differs = false;
  }
  under.from = a.flat == b.flat ? -1 : a.flat;
  Flat& target = open(to);
  if (under.from >= 0) ++flats_[static_cast<std::size_t>(under.from)].readers;
  target.writing = true;
  target.by = where_;
  if (!i.move.stages.empty()) {
    Post post;
    post.by = where_;
    post.kind = i.move.kind;
    post.dtype = slot(from).dtype;
    post.regions = under.regions;
    for (const int p : program_.buckets[static_cast<std::size_t>(source.bucket)].parameters)
      post.values.push_back(program_.parameters[static_cast<std::size_t>(p)].value);
    under.ranks = {i.move.atoms, i.move.stages};
    under.round = mail_.arrive(under.ranks, program_.stage, std::move(post));
  }
  const std::pair<int, int> key{i.pending, -1};
  over_.erase(key);
  underway_.emplace(key, std::move(under));
}

// Whether it is over: where stages share it, once all have come.
bool StageProof::end_flat(Underway& under) {
  if (under.round >= 0) {
    const auto& posts = mail_.rounds.at(under.ranks).list.at(static_cast<std::size_t>(under.round)).posts;
    for (const int stage : under.ranks.stages) {
      const auto found = posts.find(stage);
      if (found == posts.end()) {
        waits_for_ = fmt::format("stage {} to come to the sum of {}", stage,
                                 name(flats_[static_cast<std::size_t>(under.view.flat)].slot));
        return false;
      }
      if (stage == program_.stage) continue;
      const Post &other = found->second, &own = posts.at(program_.stage);
      if (other.kind != own.kind || other.dtype != own.dtype || other.values != own.values)
        refuse("prove.collective", fmt::format("stages {} and {} come to one collective with different tensors",
                                               program_.stage, stage));
      for (std::size_t k = 0; k < under.regions.size(); ++k) {
        Region& sum = under.regions[k];
        const Region& more = other.regions[k];
        if (more.sums.empty()) continue;
        if (!sum.sums.empty() && sum.place != more.place)
          refuse("prove.collective", fmt::format("stages {} and {} sum gradients that lie differently",
                                                 program_.stage, stage));
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
  if (under.from >= 0) --flats_[static_cast<std::size_t>(under.from)].readers;
  target.writing = false;
  write(target, under.view, std::move(under.regions));
  target.by = under.by;
}

// What a flat tensor, or the rank's shard of it, holds from now on.
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
  if (v.part != FlatView::Part::whole && v.part != FlatView::Part::own) refuse("prove.slot", name(to) + " is no flat tensor", to);
  check_same_part(from, to);
  for (Region& region : regions) region.begins_beside = 0;
  write(open(to), v, std::move(regions));
}

void StageProof::add_flat(const Instruction& i) {
  const int from = i.inputs[0], to = i.outputs[0];
  static const std::vector<int> all;
  const std::vector<int>& contributing = i.contributing.empty() ? all : i.contributing[0];
  const std::vector<Region> more = there(from, false).regions;
  const FlatView v = view(to);
  if (v.part != FlatView::Part::whole && v.part != FlatView::Part::own) refuse("prove.slot", name(to) + " is no flat tensor", to);
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

namespace {

BucketShape shape_of(const Program& program, const Bucket& bucket) {
  BucketShape shape;
  shape.name = bucket.name;
  for (const int p : bucket.parameters) {
    shape.parameters.push_back(program.name_of_parameter(p));
    shape.shapes.push_back(program.local_shape(program.slots[static_cast<std::size_t>(program.parameters[static_cast<std::size_t>(p)].slot)], program.first()));
  }
  shape.elements = program.elements(bucket, program.first());
  shape.element = bytes_of(program.gradient_dtype);
  shape.ways = program.ways(program.reduction(bucket));
  return shape;
}

}  // namespace

void StageProof::hook_start(const Instruction& i) {
  if (i.bucket < 0 || !program_.buckets[static_cast<std::size_t>(i.bucket)].hook)
    refuse("prove.hook", "there is no hook to reduce by");
  const Bucket& bucket = program_.buckets[static_cast<std::size_t>(i.bucket)];
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  if (from != to || from != bucket.flat.gradients || view(from).part != FlatView::Part::whole)
    refuse("prove.hook", fmt::format("a hook reduces the gradients of {} where they lie", bucket.name), from);
  if (!bucket.hook->exact(shape_of(program_, bucket)))
    notes_.insert(fmt::format("{} loses some of {}", bucket.hook->name(), bucket.name));
  Instruction plain = i;
  plain.code = Code::start;
  plain.move.kind = Move::Kind::all_reduce;
  plain.move.atoms = bucket.reduce;
  plain.move.stages = bucket.stages;
  if (underway_.count({i.pending, -1}) > 0)
    refuse("prove.unawaited", "it begins what is under way already");
  start_flat(plain);
  underway_.at({i.pending, -1}).hook = true;
}

bool StageProof::hook_finish(const Instruction& i) {
  const auto found = underway_.find({i.pending, -1});
  if (found == underway_.end() || !found->second.hook)
    refuse("prove.wait", "it ends what no hook has begun");
  if (!end_flat(found->second)) return false;
  underway_.erase(found);
  return true;
}

}  // namespace mw::proving
