// Splits buckets by segment and layer, makes their flat slots, and makes the instructions that
// reduce, gather and await them.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/optimizer.h"
#include "meshwright/outer_steps.h"
#include "plan/assembly.h"
#include "plan/build.h"

namespace mw {
namespace {

// The segments that write each gradient slot.
std::map<int, std::set<int>> writers_of(const Program& program) {
  std::map<int, std::set<int>> writers;
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    for (const Instruction& i : program.segments[s].code) {
      for_each_slot(i, [&](int slot) {
        if (program.slots[slot].category == Category::gradients)
          writers[slot].insert(static_cast<int>(s));
      });
    }
  }
  return writers;
}

// For each value of the graph, the layer of the last op that reads it.
std::vector<int> layers_of(const Graph& graph) {
  std::vector<int> layer(graph.values().size(), 0);
  for (const Op& op : graph.ops()) {
    for (const Use& use : op.inputs) layer[use.value] = op.layer;
  }
  return layer;
}

class Flattener {
 public:
  Flattener(Program& program, int bucket)
      : program_(program), bucket_(bucket), b_(program.buckets[bucket]) {}

  void run() {
    const bool shards = !b_.shard_atoms.empty();
    const Layout replicate(program_.mesh.atoms().size());
    Layout partial = replicate, shard = replicate;
    for (int atom : b_.reduce_atoms) partial[atom] = Placement::partial();
    for (int atom : b_.shard_atoms) shard[atom] = Placement::shard("flat");
    FlatSlots& flat = b_.flat;

    flat.parameters = add("parameters", program_.dtype, replicate, Category::parameters,
                          b_.sharded_state >= ShardedState::parameters);
    flat.stored = flat.parameters;
    if (shards) {
      flat.stored = add("shard of parameters", program_.dtype, shard, Category::parameters);
      own_or_view(flat.stored, flat.parameters);
      if (b_.offload == Offload::parameters) program_.slots[flat.stored].memory = Memory::host;
    }
    if (!b_.frozen) gradients(partial, shard);
    if (shards) flat.gather = program_.pendings++;
    if (program_.slots[flat.stored].memory == Memory::host) {
      flat.on_device =
          add("shard of parameters on the device", program_.dtype, shard, Category::buffers, true);
    }
    if (!b_.frozen) optimizer(shard);
    if (b_.fragment >= 0) outer(shard);
    for (int p : b_.parameters) {
      const ProgramParameter& parameter = program_.parameters[p];
      program_.slots[parameter.slot].alias_of = flat.parameters;
      if (!b_.frozen) program_.slots[parameter.gradient_slot].alias_of = flat.gradients;
    }
  }

 private:
  // Adds the slots of gradients and of their reduction.
  void gradients(const Layout& partial, const Layout& shard) {
    FlatSlots& flat = b_.flat;
    const bool shards = !b_.shard_atoms.empty();
    const Dtype gradient = program_.gradient_dtype, sum = wider(gradient, program_.reduce_dtype);
    flat.gradients = add("gradients", gradient, partial, Category::gradients,
                         b_.sharded_state >= ShardedState::gradients);
    flat.reduced = flat.gradients;
    if (!b_.reduce_atoms.empty()) {
      flat.reduced = add("reduced gradients", gradient, shard, Category::gradients);
      own_or_view(flat.reduced, flat.gradients);
      flat.reduction = program_.pendings++;
      const bool apart = b_.sharded_state >= ShardedState::gradients;
      if ((!b_.hook || apart) && !program_.shard_reduction(b_).atoms.empty())
        flat.shard_reduction = program_.pendings++;
      if (sum != gradient && !b_.hook)
        flat.cast =
            add(std::string("gradients in ") + name_of(sum), sum, partial, Category::buffers, true);
      if (b_.hook && apart) {
        flat.arriving = add("shard of summed gradients", gradient, shard, Category::gradients);
        program_.slots[flat.arriving].alias_of = flat.gradients;
      } else if (shards && (flat.cast >= 0 || apart))
        flat.arriving = add("arriving gradients", sum, shard, Category::buffers, true);
      if (flat.cast >= 0 && apart)
        flat.cast_back = add(std::string("arriving gradients in ") + name_of(gradient), gradient,
                             shard, Category::buffers, true);
    }
  }

  // Adds the slots of what the optimizer keeps, and of the directions of sharded matrices.
  void optimizer(const Layout& shard) {
    FlatSlots& flat = b_.flat;
    const Dtype dtype = program_.optimizer_dtype;
    const auto keep = [&](const std::string& what) {
      const int slot = add(what, dtype, shard, Category::optimizer);
      if (b_.offload != Offload::nothing) program_.slots[slot].memory = Memory::host;
      return slot;
    };
    const bool updates = program_.optimizer && !b_.counts;
    if (updates) b_.rule = std::make_shared<const UpdateRule>(program_.optimizer->rule(b_.group));
    if (updates && !b_.rule->sums.empty() && b_.offload != Offload::nothing && !b_.update_on_device)
      throw Error(
          Stage::plan, "optimizer.offload", "offload",
          "the update reads sums over whole parameters, which are made on the device alone, "
          "and offload keeps its state in host memory",
          "update = \"device\" beside offload, or an update without sums");
    const bool on_host = updates && b_.offload != Offload::nothing && !b_.update_on_device &&
                         b_.rule->whole == nullptr;
    const bool leaves = on_host && program_.slots[flat.stored].memory == Memory::device;
    if (leaves || (program_.has_masters() && (updates || b_.counts))) flat.master = keep("masters");
    if (!updates) return;
    if (on_host)
      flat.gradients_on_host =
          on_host_too("gradients", program_.gradient_dtype, shard, Category::gradients);
    if (on_host && program_.has_masters())
      flat.parameters_on_host =
          leaves ? on_host_too("shard of parameters", program_.dtype, shard, Category::parameters)
                 : flat.stored;
    for (const std::string& name : b_.rule->states) flat.states.push_back(keep(name));
    if (b_.rule->average >= 0) flat.average = flat.states[b_.rule->average];
    make_room_on_device(shard);
    for (const MatrixState& state : b_.rule->of_matrix)
      flat.of_matrix.push_back(add(state.name, dtype, Layout(shard.size()), Category::optimizer));
    if (b_.rule->whole == nullptr || b_.shard_atoms.empty()) return;
    const bool casts = dtype != program_.gradient_dtype;
    flat.direction =
        casts ? add("shard of directions", dtype, shard, Category::buffers, true) : flat.reduced;
    flat.directions = casts || program_.slots[flat.gradients].transient
                          ? add("directions", dtype, Layout(shard.size()), Category::buffers, true)
                          : flat.gradients;
    flat.gather_directions = program_.pendings++;
  }

  // Adds the slots of outer steps.
  void outer(const Layout& shard) {
    FlatSlots& flat = b_.flat;
    const OuterSteps& outer = *program_.outer;
    if (b_.offload != Offload::nothing)
      throw Error(Stage::plan, "replicas.offload", "offload",
                  "the optimizer's state lies in host memory, and outer steps update replicas on "
                  "the device alone",
                  "leave offload out, or the entry that lets replicas differ");
    if (b_.rule && std::ranges::count(b_.rule->states, "anchor") > 0)
      throw Error(Stage::plan, "replicas.state", "optimizer",
                  "optimizer: it keeps a state \"anchor\", as outer steps do",
                  "give the optimizer's state another name");
    const auto keep = [&](const std::string& what) {
      return add(what, program_.optimizer_dtype, shard, Category::optimizer);
    };
    flat.anchor = keep("anchor");
    for (const std::string& state : rule_of_outer_step(program_, bucket_).states)
      flat.outer_states.push_back(keep("outer " + state));
    // A plan in float64, as verify makes them, sums in float64 too (widen() does so for a plan that
    // was made in fp32).
    const Dtype dtype = program_.optimizer_dtype;
    flat.outer_gradient =
        add("outer gradient", dtype == Dtype::fp64 ? dtype : outer.dtype.value_or(dtype), shard,
            Category::optimizer, outer.delay == 0);
    if (program_.replicas() > 1) flat.outer_sum = program_.pendings++;
  }

  int on_host_too(const std::string& what, Dtype dtype, const Layout& shard, Category category) {
    const int slot = add(what + " in host memory", dtype, shard, category);
    program_.slots[slot].memory = Memory::host;
    return slot;
  }

  // Adds the slots on the device of what lies in host memory and is updated on the device.
  void make_room_on_device(const Layout& shard) {
    FlatSlots& flat = b_.flat;
    if (b_.offload == Offload::nothing || !b_.update_on_device) return;
    const auto on_device = [&](const std::string& what, int host) {
      const Dtype dtype = program_.slots[host].dtype;
      return add(what + " on the device", dtype, shard, Category::buffers, true);
    };
    if (program_.slots[flat.updated()].memory == Memory::host)
      flat.updated_on_device = on_device("what is updated", flat.updated());
    for (std::size_t k = 0; k < flat.states.size(); ++k)
      flat.states_on_device.push_back(on_device(b_.rule->states[k], flat.states[k]));
  }

  int add(const std::string& what, Dtype dtype, const Layout& layout, Category category,
          bool transient = false) {
    Slot slot;
    slot.name = b_.name + " " + what;
    slot.dims = {"flat"};
    slot.layout = layout;
    slot.dtype = dtype;
    slot.persistent = true;
    slot.transient = transient;
    slot.bucket = bucket_;
    slot.category = transient ? Category::buffers : category;
    return add_slot(program_, std::move(slot));
  }
  void own_or_view(int slot, int of) {
    if (!program_.slots[of].transient) program_.slots[slot].alias_of = of;
  }

  Program& program_;
  const int bucket_;
  Bucket& b_;
};

Instruction between(const Program& program, int bucket, Code code, Serves serves, int from, int to,
                    const char* phase) {
  Instruction i = of_bucket(code, bucket, program, serves, phase);
  i.inputs = {from};
  i.outputs = {to};
  return i;
}

// The start of a collective from one flat slot to another. Its wait differs in the code alone.
Instruction flat_move(const Program& program, int bucket, Move::Kind kind, const RankSet& ranks,
                      Serves serves, int pending, int from, int to, const char* phase) {
  Instruction i = between(program, bucket, Code::start, serves, from, to, phase);
  i.move.kind = kind;
  i.move.atoms = ranks.atoms;
  i.move.stages = ranks.stages;
  if (kind == Move::Kind::reduce_scatter) i.move.to = "flat";
  if (kind == Move::Kind::all_gather) i.move.from = "flat";
  i.pending = pending;
  return i;
}

constexpr const char* reducing = "gradients";

Instruction reduction(const Program& program, int bucket) {
  const Bucket& b = program.buckets[bucket];
  const FlatSlots& flat = b.flat;
  if (b.hook) {
    Instruction i =
        flat_move(program, bucket, Move::Kind::all_reduce, program.hooked_reduction(b),
                  Serves::gradients, flat.reduction, flat.gradients, flat.gradients, reducing);
    i.code = Code::hook_start;
    return i;
  }
  const int from = flat.cast >= 0 ? flat.cast : flat.gradients;
  if (b.shard_atoms.empty())
    return flat_move(program, bucket, Move::Kind::all_reduce, program.reduction(b),
                     Serves::gradients, flat.reduction, from, flat.cast >= 0 ? from : flat.reduced,
                     reducing);
  return flat_move(program, bucket, Move::Kind::reduce_scatter, {b.shard_atoms, {}},
                   Serves::gradients, flat.reduction, from,
                   flat.arriving >= 0 ? flat.arriving : flat.reduced, reducing);
}

// The all-reduce of gradients that are kept as shards, over the ranks that have the same shard.
Instruction shard_reduction(const Program& program, int bucket) {
  const Bucket& b = program.buckets[bucket];
  const int sum = b.flat.cast >= 0 && !b.hook ? b.flat.arriving : b.flat.reduced;
  return flat_move(program, bucket, Move::Kind::all_reduce, program.shard_reduction(b),
                   Serves::gradient_shards, b.flat.shard_reduction, sum, sum, reducing);
}

Instruction awaited(Instruction start) {
  start.code = start.code == Code::hook_start ? Code::hook_finish : Code::wait;
  return start;
}

// Has the instruction release the slot if it is transient.
void let_go(const Program& program, Instruction& i, int slot) {
  if (program.slots[slot].transient) i.release.push_back(slot);
}

Instruction emptied(const Program& program, int bucket, Code code, int from, int to) {
  Instruction i = between(program, bucket, code, Serves::gradients, from, to, reducing);
  let_go(program, i, from);
  return i;
}

// Settles the gradients, casts them where they are summed in another dtype, and starts the
// reduction.
std::vector<Instruction> begun(const Program& program, int from, const Instruction& start) {
  std::vector<Instruction> code;
  const std::vector<int> sums = sums_of(program, start.bucket);
  if (std::find(sums.begin(), sums.end(), from) != sums.end())
    code.push_back(settled(program, start.bucket, from));
  if (start.inputs[0] != from)
    code.push_back(emptied(program, start.bucket, Code::copy, from, start.inputs[0]));
  code.push_back(start);
  return code;
}

// Begins a new sum in a bucket that is reduced in every microbatch. All ranks hold the sum so far:
// one keeps it, so that the next reduction counts it once.
Instruction begun_anew(const Program& program, int bucket) {
  Instruction i = of_bucket(Code::begin_sum, bucket, program, Serves::gradients, reducing);
  i.outputs = {program.buckets[bucket].flat.gradients};
  i.contributing = {program.buckets[bucket].reduce_atoms};
  return i;
}

// Awaits a reduction and brings the sum to where it is kept. A cast to the gradients' dtype comes
// first, or is part of the copy.
std::vector<Instruction> ended(const Program& program, const Instruction& start, int cast_back,
                               bool adds) {
  std::vector<Instruction> code{awaited(start)};
  int sum = start.outputs[0];
  if (sum != start.inputs[0]) let_go(program, code[0], start.inputs[0]);
  const FlatSlots& flat = program.buckets[start.bucket].flat;
  const bool hook = start.code == Code::hook_start;
  const auto bring = [&](Code how, int to) {
    if (to < 0 || sum == to || hook) return;
    code.push_back(emptied(program, start.bucket, how, sum, to));
    sum = to;
  };
  bring(Code::copy, cast_back);
  bring(adds ? Code::add : Code::copy, flat.reduced);
  if (hook && adds) {  // a hook leaves the sum in the gradients, of which the rank keeps its shard
    code.push_back(between(program, start.bucket, Code::add, Serves::gradients, flat.arriving,
                           flat.reduced, reducing));
    let_go(program, code.back(), flat.gradients);
  }
  if (program.buckets[start.bucket].reduce_per_microbatch)
    code.push_back(begun_anew(program, start.bucket));
  return code;
}

Instruction gather(const Program& program, int bucket, const char* phase) {
  const Bucket& b = program.buckets[bucket];
  const int from = b.flat.on_device >= 0 ? b.flat.on_device : b.flat.stored;
  Instruction i = flat_move(program, bucket, Move::Kind::all_gather, {b.shard_atoms, {}},
                            Serves::parameters, b.flat.gather, from, b.flat.parameters, phase);
  if (b.gather_hook) i.code = Code::hook_start;
  return i;
}

}  // namespace

Instruction of_bucket(Code code, int bucket, const Program& program, Serves serves,
                      const char* phase) {
  Instruction i;
  i.code = code;
  i.serves = serves;
  i.bucket = bucket;
  i.phase = phase;
  i.label = program.buckets[bucket].name;
  return i;
}

void split_buckets(Program& program, bool by_layer) {
  const std::map<int, std::set<int>> writers = writers_of(program);
  const std::vector<int> layer = layers_of(*program.graph);
  std::vector<Bucket> split;
  for (const Bucket& bucket : program.buckets) {
    // stages that share a bucket must split it alike, whatever each writes
    if (!bucket.stages.empty()) {
      split.push_back(bucket);
      continue;
    }
    std::map<std::pair<int, std::set<int>>, std::vector<int>> units;
    for (int p : bucket.parameters) {
      const ProgramParameter& parameter = program.parameters[p];
      const auto written = writers.find(parameter.gradient_slot);
      units[{by_layer ? layer[parameter.value] : 0,
             written == writers.end() ? std::set<int>{} : written->second}]
          .push_back(p);
    }
    for (auto& [key, parameters] : units) {
      split.push_back(bucket);
      split.back().parameters = std::move(parameters);
    }
  }
  program.buckets = std::move(split);
  name_buckets(program);
}

std::vector<int> sums_of(const Program& program, int bucket) {
  const FlatSlots& flat = program.buckets[bucket].flat;
  if (flat.gradients < 0) return {};
  std::vector<int> sums{flat.gradients};
  if (flat.reduced != flat.gradients && program.slots[flat.reduced].alias_of < 0)
    sums.push_back(flat.reduced);
  return sums;
}

Instruction settled(const Program& program, int bucket, int slot) {
  Instruction i = of_bucket(Code::settle, bucket, program, Serves::gradients, reducing);
  i.outputs = {slot};
  return i;
}

void make_flat_slots(Program& program) {
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (program.buckets[b].flat.parameters < 0) Flattener(program, static_cast<int>(b)).run();
  }
}

std::vector<Instruction> begin_reduction(const Program& program, int bucket) {
  return begun(program, program.buckets[bucket].flat.gradients, reduction(program, bucket));
}

std::vector<Instruction> end_reduction(const Program& program, int bucket) {
  const Bucket& b = program.buckets[bucket];
  return ended(program, reduction(program, bucket), b.flat.cast_back,
               b.sharded_state >= ShardedState::gradients);
}

std::vector<Instruction> begin_shard_reduction(const Program& program, int bucket) {
  return begun(program, program.buckets[bucket].flat.reduced, shard_reduction(program, bucket));
}

std::vector<Instruction> end_shard_reduction(const Program& program, int bucket) {
  return ended(program, shard_reduction(program, bucket), -1, false);
}

std::vector<Instruction> begin_gather(const Program& program, int bucket, const char* phase) {
  const FlatSlots& flat = program.buckets[bucket].flat;
  std::vector<Instruction> code;
  if (flat.on_device >= 0)
    code.push_back(between(program, bucket, Code::copy, Serves::parameters, flat.stored,
                           flat.on_device, phase));
  code.push_back(gather(program, bucket, phase));
  return code;
}

Instruction end_gather(const Program& program, int bucket, const char* phase) {
  Instruction wait = awaited(gather(program, bucket, phase));
  if (program.buckets[bucket].flat.on_device >= 0) let_go(program, wait, wait.inputs[0]);
  return wait;
}

std::vector<Instruction> gather_directions(const Program& program, int bucket) {
  const Bucket& b = program.buckets[bucket];
  std::vector<Instruction> code{
      flat_move(program, bucket, Move::Kind::all_gather, {b.shard_atoms, {}}, Serves::directions,
                b.flat.gather_directions, b.flat.direction, b.flat.directions, "optimizer")};
  code.push_back(awaited(code[0]));
  let_go(program, code[1], b.flat.direction);
  return code;
}

}  // namespace mw
