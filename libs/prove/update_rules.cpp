// The rules for a step's end: the totals, which count each loss and each element of each gradient
// once, and the optimizer's update, which changes each copy of each parameter once.
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/program_facts.h"
#include "meshwright/optimizer.h"
#include "prove/stage.h"

namespace mw::proving {
// Adds a microbatch's loss to the step's sum of losses.
void StageProof::count_loss(const Instruction& i) {
  const Operand found = read(i.inputs[0]);
  const Content& content = *found.content;
  const std::vector<int> losses = graph_.losses();
  if (content.what != ContentKind::value || !among(losses, content.id) ||
      !matches(content, content.id) || content.steps != 0)
    refuse("prove.loss",
           fmt::format("{} is {}, which is no loss of microbatch {}", name(i.inputs[0]),
                       text_of(content), microbatch_),
           i.inputs[0], found.by);
  static const std::vector<int> all;
  std::map<int, Microbatches> sums;
  sums[gradients_.loss(content.id)].add(microbatch_);
  Flat& f = open(i.outputs[0]);
  Region& region = f.regions[0];
  contribute(f, region, content.place, i.contributing.empty() ? all : i.contributing[0], sums, -1);
  if (region.twice >= 0)
    refuse("prove.loss",
           fmt::format("{} of microbatch {} is counted twice", graph_.value(content.id).name,
                       microbatch_),
           i.inputs[0]);
}

bool StageProof::totals(const Instruction& i) {
  RankSet world;
  for (int a = 0; a < static_cast<int>(program_.mesh.atoms().size()); ++a) world.atoms.push_back(a);
  if (round_ < 0) {
    if (totalled_) refuse("prove.totals", "the step's totals are made twice");
    if (i.inputs.empty() || i.inputs[0] < 0 || i.inputs[0] != program_.loss ||
        i.contributing.size() != i.inputs.size())
      refuse("prove.totals", "the totals do not say how the loss and each gradient are counted");
    for (std::size_t k = 0; k < i.contributing.size(); ++k) {
      std::vector<int> atoms = i.contributing[k];
      // A stage after the first may leave a shared gradient to the first stage to count.
      if (k > 0 && program_.stage > 0) std::erase(atoms, program_.stage_atom);
      check_contributing(atoms);
    }
    const Flat& f = there(i.inputs[0], true);
    const Region& region = f.regions[0];
    for (int a = 0; !region.sums.empty() && a < static_cast<int>(region.place.size()); ++a) {
      const bool first = among(i.contributing[0], a), sum = region.place[a].is_partial();
      const bool right = first ? !sum || (region.first >> a & 1) != 0 : sum;
      if (!tables_.lives(a) || right) continue;
      refuse("prove.totals",
             fmt::format("the loss is {} on {}, and counted {}", to_string(region.place[a]),
                         program_.mesh.atoms()[a].name,
                         first ? "on its first rank alone" : "on each of its ranks"),
             i.inputs[0], f.by);
    }
    reported_ = region.sums;
    for (std::size_t k = 1; k < i.inputs.size(); ++k) count_bucket(i, k);
    Post post;
    post.by = where_;
    round_ = mail_.arrive(world, program_.stage, std::move(post));
  }
  const auto& posts = mail_.rounds.at(world).list.at(round_).posts;
  const bool over = mail_.is_over({{-1, -1, -1, -1}, world, round_});
  if (static_cast<int>(posts.size()) < program_.stages || !over) {
    waits_for_ = "all stages to come to the totals";
    return false;
  }
  totalled_ = true;
  round_ = -1;
  return true;
}

// Checks that the norm counts each element of the gradients in a bucket once.
void StageProof::count_bucket(const Instruction& i, std::size_t k) {
  const int index = i.inputs[k];
  if (index < 0) refuse("prove.operands", "the totals read no slot");
  const Flat& f = there(index, false);
  if (f.bucket < 0) refuse("prove.totals", name(index) + " is counted twice", index);
  const Bucket& bucket = program_.buckets[f.bucket];
  if (bucket.frozen) refuse("prove.totals", bucket.name + " is frozen, and has no gradient", index);
  if (bucket.counts)
    refuse("prove.totals", bucket.name + " counts tokens, and is no part of the gradient's norm",
           index);
  for (const int atom : i.contributing[k]) {
    if (program_.parts_replicas(atom))
      refuse("prove.totals", "the norm counts the gradients of the first replica alone", index);
  }
  const bool own = view(index).part == FlatView::Part::own;
  for (std::size_t n = 0; n < f.regions.size(); ++n) {
    const int p = bucket.parameters[n];
    const int value = program_.parameters[p].value;
    need_complete(f.regions[n], p, index);
    const bool here = program_.stage == 0 || !among(i.contributing[k], program_.stage_atom);
    if (!counted_.emplace(value, here).second)
      refuse("prove.totals", graph_.value(value).name + " is counted twice", index);
    const Layout& stored = parameters_[p].place;
    for (std::size_t a = 0; a < stored.size(); ++a) {
      const int atom = static_cast<int>(a);
      if (!tables_.lives(atom) || atom == program_.stage_atom) continue;
      const bool apart = stored[a].is_shard() || (own && among(bucket.shard_atoms, atom));
      if (apart != among(i.contributing[k], atom)) continue;
      refuse("prove.totals",
             fmt::format("the gradient of {} is {} on {}, and counted {}", graph_.value(value).name,
                         apart ? "in shards" : "whole", program_.mesh.atoms()[a].name,
                         apart ? "on its first rank alone" : "on each of its ranks"),
             index);
    }
  }
}

// Refuses a parameter's gradient that is not the sum of all its terms over all microbatches, each
// once, and fully reduced over ranks.
void StageProof::need_complete(const Region& region, int parameter, int index) const {
  const std::string& what = program_.name_of_parameter(parameter);
  if (region.kind != Region::Kind::gradient || region.stale)
    refuse("prove.gradient", fmt::format("{} does not hold the gradient of {}", name(index), what),
           index);
  const Flat& f = flats_[view(index).flat];
  const std::vector<int>& terms =
      gradients_.sets.terms(gradients_.complete(program_.parameters[parameter].value));
  const Layout& stored = parameters_[parameter].place;
  const bool counted =
      region.twice < 0 && std::all_of(terms.begin(), terms.end(), [&](int term) {
        const auto found = region.sums.find(term);
        return found != region.sums.end() && found->second.all(program_.microbatches);
      });
  if (counted && (region.sums.empty() || region.place == stored)) return;
  Refusal made = refusal(
      "prove.gradient", fmt::format("the gradient of {} in {} is not complete", what, name(index)));
  made.slot = index;
  if (f.by.known()) made.written = proving::text_of(program_, f.by);
  if (region.twice >= 0) made.twice.push_back(gradients_.text(region.twice));
  for (const int term : terms) {
    const auto found = region.sums.find(term);
    std::string lacks;
    for (int m = 0; m < program_.microbatches; ++m) {
      if (found == region.sums.end() || !found->second.has(m))
        lacks += fmt::format("{}{}", lacks.empty() ? "" : ", ", m);
    }
    if (!lacks.empty())
      made.missing.push_back(fmt::format("{}, microbatch {}", gradients_.text(term), lacks));
  }
  if (!counted) throw Refused{std::move(made)};
  made.code = "prove.place";
  made.axes = differences(program_.mesh, stored, region.place);
  made.message =
      fmt::format("the gradient of {} in {} is not summed over its ranks", what, name(index));
  made.mend = mend_of(program_.mesh, stored, region.place);
  throw Refused{std::move(made)};
}

void StageProof::update(const Instruction& i) {
  const bool waits =
      program_.update_needs_totals || (program_.optimizer && program_.optimizer->clip() > 0);
  if (!totalled_ && waits && !completes_update(program_, i))
    refuse("prove.order",
           "parameters are updated before the step's totals, which say how gradients are clipped");
  if (i.bucket < 0) refuse("prove.operands", "it updates no bucket");
  const Bucket& bucket = program_.buckets[i.bucket];
  if (i.parameter >= 0) bucket_region(bucket, i.parameter);
  if (!bucket.rule && !bucket.counts)
    refuse("prove.update", "there is no rule to update " + bucket.name + " by");
  switch (i.update) {
    case Update::none:
      return;
    case Update::swap:
      refuse("prove.update", "a step of training exchanges parameters and states");
    case Update::outer_gradient:
    case Update::outer_step:
      refuse("prove.replicas", "a step of training takes an outer step, which follows it");
    case Update::direction:
      return direction(i, bucket);
    case Update::whole:
      return whole(i);
    case Update::gram:
      return gram(i);
    case Update::gram_step:
      return gram_step(i, bucket);
    case Update::sums:
      return sums(i, bucket);
    case Update::apply:
      return apply_update(i, bucket);
  }
}

// The sums of rounds before `round`, or all, which an instruction reads: added up over all ranks.
void StageProof::need_sums(const Instruction& i, std::size_t first, int rounds) {
  if (i.inputs.size() != first + static_cast<std::size_t>(rounds))
    refuse("prove.operands", "it reads other sums than those that its rule says");
  for (int round = 0; round < rounds; ++round) {
    const int index = i.inputs[first + static_cast<std::size_t>(round)];
    const Operand found = read(index);
    if (found.content->what != ContentKind::sums || found.content->id != i.bucket ||
        found.content->output != round)
      refuse("prove.value", fmt::format("{} is {}", name(index), text_of(*found.content)), index,
             found.by);
    const Layout whole(found.content->place.size());
    if (found.content->place != whole)
      misplaced(index, found, whole, "what an update reads of its sums");
  }
}

// Checks the gradients that an update of a whole bucket reads: they are complete, and cut as what
// is updated. `left`: the step before has left them.
void StageProof::need_gradients(const Instruction& i, const Bucket& bucket, int to, bool left) {
  const int from = i.inputs[0];
  const Flat& f = left ? left_gradients(from) : there(from, false);
  if (f.bucket != i.bucket)
    refuse("prove.update", name(from) + " does not belong to " + bucket.name, from);
  check_same_part(from, to);
  for (std::size_t n = 0; n < f.regions.size(); ++n) {
    Region region = f.regions[n];
    region.stale = region.stale != left;
    need_complete(region, bucket.parameters[n], from);
  }
}

// Update::sums: each element of each parameter is counted once over all ranks.
void StageProof::sums(const Instruction& i, const Bucket& bucket) {
  const int to = one(i.outputs, "output");
  if (!bucket.rule || bucket.rule->sums.empty() || i.inputs.size() < 2)
    refuse("prove.update", bucket.name + " has no rule that reads sums");
  need_gradients(i, bucket, i.inputs[1], false);
  const Flat& updated = there(i.inputs[1], false);
  for (const Region& region : updated.regions) {
    if (updated.bucket != i.bucket || region.kind != Region::Kind::parameter || region.version != 0)
      refuse("prove.update", name(i.inputs[1]) + " does not hold what is to be updated",
             i.inputs[1], updated.by);
  }
  const int round = static_cast<int>(i.inputs.size()) - 2;
  need_sums(i, 2, round);
  const bool own = view(i.inputs[1]).part == FlatView::Part::own || updated.shard;
  Content made;
  made.what = ContentKind::sums;
  made.id = i.bucket;
  made.output = round;
  made.place = slot(to).layout;
  if (i.contributing.size() != bucket.parameters.size())
    refuse("prove.operands", "it does not say which ranks add the terms of each parameter", to);
  for (std::size_t n = 0; n < bucket.parameters.size(); ++n) {
    const Layout& stored = parameters_[bucket.parameters[n]].place;
    check_contributing(i.contributing[n]);
    for (std::size_t a = 0; a < stored.size(); ++a) {
      const int atom = static_cast<int>(a);
      if (!tables_.lives(atom) || atom == program_.stage_atom) continue;
      const bool apart = stored[a].is_shard() || (own && among(bucket.shard_atoms, atom));
      const bool sum = made.place[a].is_partial(), first = among(i.contributing[n], atom);
      if (sum ? apart != first : !apart) continue;
      refuse("prove.sums",
             fmt::format("the terms of {} are {} on {}, and counted {}",
                         program_.name_of_parameter(bucket.parameters[n]),
                         apart ? "in shards" : "whole", program_.mesh.atoms()[a].name,
                         first || !sum ? "on its first rank alone" : "on each of its ranks"),
             to);
    }
  }
  make(to, std::move(made), {}, Dtype::fp64);
}

// Marks the parameters or states in a flat slot as updated: all of the bucket, or those of one
// parameter.
void StageProof::advance(int index, int parameter, Region::Kind kind) {
  const FlatView v = view(index);
  if (v.part != FlatView::Part::whole && v.part != FlatView::Part::own)
    refuse("prove.slot", name(index) + " is no flat tensor", index);
  if (!flat(v).there) refuse("prove.missing", name(index) + " is not there", index, flat(v).by);
  Flat& f = open(index);
  const Bucket& bucket = program_.buckets[f.bucket];
  for (std::size_t n = 0; n < f.regions.size(); ++n) {
    if (parameter >= 0 && bucket.parameters[n] != parameter) continue;
    Region& region = f.regions[n];
    if (region.kind != kind)
      refuse("prove.update", name(index) + " does not hold what is updated", index, f.by);
    if (region.version != (bucket.update_overlaps_forward ? -1 : 0))
      refuse("prove.update",
             fmt::format("{} is updated twice in {}",
                         program_.name_of_parameter(bucket.parameters[n]), name(index)),
             index, f.by);
    if (v.part == FlatView::Part::whole && region.rest_differs)
      refuse("prove.update", name(index) + " is updated, and differs between ranks", index, f.by);
    ++region.version;
    region.rest_differs = v.part == FlatView::Part::own && sharded(f);
  }
  f.by = where_;
}

void StageProof::check_states(const Instruction& i, const Bucket& bucket) {
  const std::vector<int>& brought = bucket.flat.states_on_device;
  if (!std::equal(brought.begin(), brought.end(), i.saved.begin(), i.saved.end()))
    refuse("prove.operands", "it works on other states than those of " + bucket.name);
}

// Marks the states of an update op as updated: their copies on the device, where there are any,
// else the bucket's own. They must be cut as `from` is.
void StageProof::advance_states(const Instruction& i, const Bucket& bucket, int from) {
  const std::vector<int>& brought = bucket.flat.states_on_device;
  check_states(i, bucket);
  const std::vector<int>& states = brought.empty() ? bucket.flat.states : brought;
  if (bucket.rule && states.size() != bucket.rule->states.size())
    refuse("prove.update", bucket.name + " has other states than its rule");
  for (const int state : states) {
    check_same_part(from, state);
    advance(state, i.update == Update::direction ? i.parameter : -1, Region::Kind::state);
  }
}

// Update::direction: an elementwise op makes directions of gradients, which a matrix op reads.
void StageProof::direction(const Instruction& i, const Bucket& bucket) {
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  if (!bucket.rule || bucket.rule->direction == nullptr)
    refuse("prove.update", bucket.name + " has no rule that makes directions");
  if (i.parameter >= 0) {
    const ProgramParameter& parameter = program_.parameters[i.parameter];
    if (parameter.gradient_slot != from)
      refuse("prove.update",
             name(from) + " is not the gradient of " + program_.name_of_parameter(i.parameter),
             from);
    const Flat& f = there(flat(view(from)).slot, true);
    need_complete(f.regions[view(from).region], i.parameter, f.slot);
    advance_states(i, bucket, f.slot);
    Content made;
    made.what = ContentKind::direction;
    made.id = parameter.value;
    made.place = parameters_[i.parameter].place;
    return make(to, std::move(made), graph_.value(parameter.value).dims, program_.optimizer_dtype);
  }
  std::vector<Region> regions = there(from, false).regions;
  check_same_part(from, to);
  if (flat(view(from)).bucket != i.bucket || view(from).part == FlatView::Part::parameter)
    refuse("prove.update", name(from) + " does not belong to " + bucket.name, from);
  for (std::size_t n = 0; n < regions.size(); ++n) {
    need_complete(regions[n], bucket.parameters[n], from);
    regions[n] = {};
    regions[n].kind = Region::Kind::direction;
  }
  advance_states(i, bucket, from);
  write(open(to), view(to), std::move(regions));
}

void StageProof::need_direction(int slot, const Operand& found, int value, int steps) const {
  const Content& content = *found.content;
  if (content.what != ContentKind::direction || content.id != value || content.steps != steps)
    refuse("prove.value", fmt::format("{} is {}", name(slot), text_of(content)), slot, found.by);
}

// Refuses steps by Gram matrices of a parameter whose rule has none, or whose direction lies
// otherwise than the parameter, from whose layout the ranks know their parts. Returns the atoms
// over which its rows, or its columns, are cut.
std::vector<int> StageProof::cut_of(int slot, const Operand& found, const Instruction& i) const {
  const Bucket& bucket = program_.buckets[i.bucket];
  const ProgramParameter& own = program_.parameters[i.parameter];
  const Layout& place = found.content->place;
  if (!bucket.rule || bucket.rule->matrices != MatrixRanks::shards)
    refuse("prove.update", bucket.name + " has no rule that works on parts of matrices");
  if (place != parameters_[i.parameter].place)
    misplaced(slot, found, parameters_[i.parameter].place, "what steps by Gram matrices read");
  const Dims& dims = graph_.value(own.value).dims;
  std::vector<int> rows, columns;
  for (std::size_t a = 0; a < place.size(); ++a) {
    if (place[a].is_replicate()) continue;
    const auto at = std::find(dims.begin(), dims.end(), place[a].dim) - dims.begin();
    if (at >= own.stacked)
      (at < own.stacked + own.rows ? rows : columns).push_back(static_cast<int>(a));
  }
  if (rows.empty() == columns.empty())
    refuse("prove.update",
           fmt::format("{} has no matrices of which either the rows or the columns are cut",
                       name(slot)),
           slot);
  return rows.empty() ? columns : rows;
}

// Update::gram: of parts of matrices, a sum over the ranks that have them.
void StageProof::gram(const Instruction& i) {
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  if (i.parameter < 0) refuse("prove.operands", "it is of no parameter");
  const Operand found = read(from);
  const int value = program_.parameters[i.parameter].value;
  need_direction(from, found, value, found.content->steps);
  Content made = *found.content;
  made.what = ContentKind::gram;
  for (const int atom : cut_of(from, found, i))
    made.place[static_cast<std::size_t>(atom)] = Placement::partial();
  const Dims& dims = graph_.value(value).dims;
  const Dims stacked(dims.begin(), dims.begin() + program_.parameters[i.parameter].stacked);
  make(to, std::move(made), stacked, program_.optimizer_dtype);
}

// Update::gram_step: reads the sum of the same step's Gram matrices. The last step's result is the
// update.
void StageProof::gram_step(const Instruction& i, const Bucket& bucket) {
  if (i.parameter < 0 || i.inputs.size() != 2 || !bucket.rule || bucket.rule->whole == nullptr ||
      i.round < 0 || i.round >= bucket.rule->whole->gram_steps())
    refuse("prove.operands", "it is no step of a parameter's update");
  const int from = i.inputs[0], sum = i.inputs[1], to = one(i.outputs, "output");
  const int value = program_.parameters[i.parameter].value;
  const Operand found = read(from), terms = read(sum);
  need_direction(from, found, value, i.round);
  if (terms.content->what != ContentKind::gram || terms.content->id != value ||
      terms.content->steps != i.round)
    refuse("prove.value", fmt::format("{} is {}", name(sum), text_of(*terms.content)), sum,
           terms.by);
  Layout needed = found.content->place;
  for (const int atom : cut_of(from, found, i)) needed[static_cast<std::size_t>(atom)] = {};
  if (terms.content->place != needed)
    misplaced(sum, terms, needed, "what a step reads of Gram matrices");
  if (found.tensor < 0 || terms.tensor < 0)
    refuse("prove.slot", name(from) + " lasts, and is overwritten", from);
  Content made = *found.content;
  ++made.steps;
  if (made.steps == bucket.rule->whole->gram_steps()) {
    made.what = ContentKind::update;
    made.steps = 0;
  }
  const Dims dims = *found.dims;
  const Dtype dtype = found.dtype;
  for (const int used : {from, sum}) {  // MatrixOp::gram_step overwrites them
    Tensor& operand = overwrite(used);
    operand.content.what = ContentKind::nothing;
    operand.by = where_;
  }
  make(to, std::move(made), dims, dtype);
}

// Update::whole: a matrix op makes a parameter's update of its direction, whose matrices are whole.
void StageProof::whole(const Instruction& i) {
  const int from = one(i.inputs, "input"), to = one(i.outputs, "output");
  if (i.parameter < 0) refuse("prove.operands", "it is of no parameter");
  const ProgramParameter& parameter = program_.parameters[i.parameter];
  const Operand found = read(from);
  need_direction(from, found, parameter.value, 0);
  const Dims& dims = graph_.value(parameter.value).dims;
  Layout needed = found.content->place;
  for (Placement& place : needed) {
    const auto at = std::find(dims.begin(), dims.end(), place.dim) - dims.begin();
    if (!place.is_replicate() && (place.is_partial() || at >= parameter.stacked)) place = {};
  }
  if (needed != found.content->place)
    misplaced(from, found, needed, "what whole matrices are made of");
  if (found.tensor < 0) refuse("prove.slot", name(from) + " lasts, and is overwritten", from);
  Content made = *found.content;
  made.what = ContentKind::update;
  if (i.owner >= 0) {  // one of the ranks along these atoms, which all have the same, makes it
    if (!program_.buckets[i.bucket].flat.of_matrix.empty() || i.contributing.size() != 1 ||
        i.owner >= program_.mesh.ways(i.contributing[0]))
      refuse("prove.operands", "it names no rank that makes the update", to);
    check_contributing(i.contributing[0]);
    for (const int atom : i.contributing[0]) {
      if (!tables_.lives(atom)) continue;
      if (!made.place[atom].is_replicate())
        refuse("prove.update",
               name(from) + " is not the same on the ranks of which one makes the update", from,
               found.by);
      made.place[atom] = Placement::partial();
    }
  }
  const Dims dims_made = *found.dims;
  const Dtype dtype = found.dtype;
  Tensor& operand = overwrite(from);  // MatrixOp::run overwrites it
  operand.content.what = ContentKind::nothing;
  operand.by = where_;
  make(to, std::move(made), dims_made, dtype);
  const Bucket& bucket = program_.buckets[i.bucket];
  for (const int kept : bucket.flat.of_matrix) advance(kept, i.parameter, Region::Kind::state);
}

// The last step's gradients in host memory, from which the update that it has left is made.
const Flat& StageProof::left_gradients(int index) {
  const FlatView v = view(index);
  if (v.flat < 0 || v.part == FlatView::Part::parameter || !flat(v).there || flat(v).writing ||
      !flat(v).settled)
    refuse("prove.missing", name(index) + " does not hold gradients of the step before", index);
  return flat(v);
}

// An update with a second output also writes the updated parameters there, in the dtype that
// computes.
void StageProof::cast_updated(const Instruction& i) {
  if (i.outputs.size() < 2) return;
  const int to = i.outputs[1];
  if (i.outputs.size() > 2 || i.bucket < 0 ||
      to != program_.buckets[i.bucket].flat.parameters_on_host)
    refuse("prove.operands", "it writes what is updated to another place than its bucket's", to);
  check_same_part(i.outputs[0], to);
  write(open(to), view(to), there(i.outputs[0], false).regions);
}

void StageProof::apply_update(const Instruction& i, const Bucket& bucket) {
  const bool sums = i.parameter < 0 && bucket.rule && !bucket.rule->sums.empty();
  const int from = sums && !i.inputs.empty() ? i.inputs[0] : one(i.inputs, "input");
  const int to = i.outputs.size() == 2 ? i.outputs[0] : one(i.outputs, "output");
  if (sums) need_sums(i, 1, bucket.rule->rounds());
  if (!lasting(to) || view(to).flat < 0 || flat(view(to)).bucket != i.bucket)
    refuse("prove.update", name(to) + " does not belong to " + bucket.name, to);
  if (i.parameter < 0) {
    if (bucket.rule && bucket.rule->whole != nullptr)
      refuse("prove.update", bucket.name + " is updated by matrices, one after the other");
    const bool left = completes_update(program_, i);
    if (left && first_step_) return cast_updated(i);  // no earlier step has left an update
    need_gradients(i, bucket, to, left);
    if (bucket.rule) advance_states(i, bucket, from);
    if (sums) {
      for (const int kept : bucket.flat.of_matrix) advance(kept, -1, Region::Kind::state);
    }
    advance(to, -1, Region::Kind::parameter);
    return cast_updated(i);
  }
  const ProgramParameter& parameter = program_.parameters[i.parameter];
  const Operand found = read(from);
  check_states(i, bucket);
  if (!bucket.rule || bucket.rule->whole == nullptr || found.content->what != ContentKind::update ||
      found.content->id != parameter.value)
    refuse("prove.value", fmt::format("{} is {}", name(from), text_of(*found.content)), from,
           found.by);
  // The stored part of the parameter must lie within the updated part.
  const Layout &place = found.content->place, &stored = parameters_[i.parameter].place;
  for (std::size_t a = 0; a < stored.size(); ++a) {
    bool within = place[a] == stored[a] || place[a].is_replicate();
    for (std::size_t inner = a + 1; within && place[a] != stored[a] && inner < stored.size();
         ++inner)
      within = place[inner] != stored[a];
    if (!within) misplaced(from, found, stored, "what is added to the parameter");
  }
  advance(to, i.parameter, Region::Kind::parameter);
}

// Checks that the step has updated each copy of each parameter, and each state, once.
void StageProof::check_versions() {
  if (!totalled_) refuse("prove.totals", "the step's totals are never made");
  for (const Bucket& bucket : program_.buckets) {
    const bool updates = bucket.rule || bucket.counts;
    if (bucket.frozen && updates) refuse("prove.update", bucket.name + " is frozen, and updated");
    if (program_.optimizer && !updates && !bucket.frozen)
      refuse("prove.update", bucket.name + " has no rule to be updated by");
    // An update that is left to the next step's forward needs its gradients at this step's end.
    const int expected = updates && !bucket.update_overlaps_forward ? 1 : 0;
    if (bucket.update_overlaps_forward) {
      const int gradients = bucket.flat.gradients_on_host;
      const Flat& f = there(gradients, false);
      for (std::size_t n = 0; n < f.regions.size(); ++n)
        need_complete(f.regions[n], bucket.parameters[n], gradients);
    }
    std::vector<int> slots = bucket.flat.states;
    slots.insert(slots.end(), bucket.flat.of_matrix.begin(), bucket.flat.of_matrix.end());
    const std::size_t states = slots.size();
    slots.insert(slots.end(), {bucket.flat.parameters, bucket.flat.stored, bucket.flat.master});
    for (const int& index : slots) {
      if (index < 0 || flats_[view(index).flat].writing) continue;
      const Flat& f = flats_[view(index).flat];
      if (!f.there) continue;
      for (std::size_t n = 0; n < f.regions.size(); ++n) {
        const std::string& what = program_.name_of_parameter(bucket.parameters[n]);
        const Region& region = f.regions[n];
        const bool state = &index - slots.data() < static_cast<std::ptrdiff_t>(states);
        if (region.kind != (state ? Region::Kind::state : Region::Kind::parameter))
          refuse("prove.update",
                 fmt::format("{} ends the step with something else than {} of {}", name(index),
                             state ? "a state" : "the numbers", what),
                 index, f.by);
        if (region.version != expected)
          refuse("prove.update", fmt::format("{} is not updated in {}", what, name(index)), index,
                 f.by);
        if (view(index).part == FlatView::Part::whole && region.rest_differs)
          refuse("prove.gather",
                 fmt::format("{} ends the step with each rank's own shard of {} updated alone: "
                             "a gather is missing",
                             name(index), what),
                 index, f.by);
      }
    }
  }
}

}  // namespace mw::proving
