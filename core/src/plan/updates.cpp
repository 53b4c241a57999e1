// Writes the instructions that update a bucket by its optimizer's ops, and finds the weights that
// an optimizer may update as whole matrices.
#include "plan/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "meshwright/engine/activations.h"
#include "meshwright/error.h"
#include "meshwright/optimizer.h"
#include "plan/assembly.h"
#include "program/update_steps.h"

namespace mw {
namespace {

struct Shape {
  int stacked = 0, rows = 0;
  bool operator==(const Shape&) const = default;
};

// A weight's shape as matrices, if its dims come in this order: those that input and output share,
// those of the output, those of the input; else nothing.
std::optional<Shape> shape_of(const Op& op) {
  const Dims &in = op.inputs[0].dims, &weight = op.inputs[1].dims, &out = op.output_dims[0];
  const auto kind = [&](Dim dim) { return !contains(out, dim) ? 2 : contains(in, dim) ? 0 : 1; };
  Shape shape;
  int last = 0;
  for (Dim dim : weight) {
    const int next = kind(dim);
    if (next < last) return std::nullopt;
    last = next;
    if (next == 0) ++shape.stacked;
    if (next == 1) ++shape.rows;
  }
  if (shape.rows == 0 || last != 2) return std::nullopt;
  return shape;
}

// A parameter's shape as matrices, if it is the same in every op that reads it, and the layer of
// the first of these ops.
struct Read {
  bool read = false;
  int layer = -1;
  std::optional<Shape> shape;
};
std::vector<Read> reads_of(const Graph& graph) {
  std::vector<Read> all(graph.values().size());
  for (const Op& op : graph.ops()) {
    const bool multiplies = op.op_class() == OpClass::matrix_product && in_layers(op, graph);
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      if (graph.value(op.inputs[k].value).source != Value::Source::parameter) continue;
      Read& read = all[static_cast<std::size_t>(op.inputs[k].value)];
      const auto here = k == 1 && multiplies ? shape_of(op) : std::nullopt;
      if (!read.read) read = {true, in_layers(op, graph) ? op.layer : -1, here};
      if (!(read.shape == here)) read.shape.reset();
    }
  }
  return all;
}

// The parameter's layout with all dims whole but those that number matrices.
Layout gathered(const ProgramParameter& parameter, const Dims& dims) {
  Layout layout = parameter.stored;
  for (Placement& placement : layout) {
    const auto stacked = dims.begin() + parameter.stacked;
    if (placement.is_shard() && std::find(dims.begin(), stacked, placement.dim) == stacked)
      placement = Placement::replicate();
  }
  return layout;
}

Instruction update_of(const Program& program, int bucket, Update what, int from, int to) {
  Instruction i = of_bucket(Code::compute, bucket, program, Serves::update, "optimizer");
  i.update = what;
  i.inputs = {from};
  i.outputs = {to};
  return i;
}

Instruction update_of(const Program& program, int bucket, int parameter, Update what, int from,
                      int to) {
  Instruction i = update_of(program, bucket, what, from, to);
  i.parameter = parameter;
  i.label = program.name_of_parameter(parameter);
  return i;
}

// The update, given the copies of its bucket's states on the device.
Instruction with_states(const Program& program, Instruction update) {
  const std::vector<int>& states = program.buckets[update.bucket].flat.states_on_device;
  update.saved = {states.begin(), states.end()};
  return update;
}

Instruction copy_of(const Program& program, int bucket, int from, int to) {
  Instruction i = of_bucket(Code::copy, bucket, program, Serves::update, "optimizer");
  i.inputs = {from};
  i.outputs = {to};
  return i;
}

// The slots in host memory that come to the device for the bucket's update, each with its copy
// there.
std::vector<std::pair<int, int>> on_device(const Bucket& bucket) {
  const FlatSlots& flat = bucket.flat;
  std::vector<std::pair<int, int>> brought;
  if (flat.updated_on_device >= 0) brought.emplace_back(flat.updated(), flat.updated_on_device);
  for (std::size_t k = 0; k < flat.states_on_device.size(); ++k)
    brought.emplace_back(flat.states[k], flat.states_on_device[k]);
  return brought;
}

// The atoms over which several ranks have a parameter's whole direction: those that cut its
// matrices, and those that sum its gradient.
std::vector<int> atoms_of_owners(const Program& program, const Bucket& bucket, int parameter) {
  const Layout& stored = program.parameters[parameter].stored;
  const Layout whole = gathered(program.parameters[parameter],
                                program.graph->value(program.parameters[parameter].value).dims);
  std::vector<int> atoms;
  for (int a = 0; a < static_cast<int>(stored.size()); ++a) {
    const auto at = static_cast<std::size_t>(a);
    const bool sums = std::count(bucket.reduce_atoms.begin(), bucket.reduce_atoms.end(), a) > 0;
    if (program.mesh.atoms()[at].ways > 1 && (sums || stored[at] != whole[at])) atoms.push_back(a);
  }
  return atoms;
}

// The place of the rank that makes each parameter's update, among those that could: the costliest
// first, to the rank that has least so far.
std::map<int, int> owners_of(const Program& program, const Bucket& bucket) {
  std::map<int, int> owners;
  if (bucket.rule->matrices != MatrixRanks::owner) return owners;
  std::vector<std::pair<double, int>> costs;
  for (const int p : bucket.parameters) {
    const MatrixSizes sizes = program.matrices(program.parameters[p], program.first());
    const MatrixOp::Cost cost = bucket.rule->whole->cost(sizes.stacked, sizes.rows, sizes.columns,
                                                         bytes_of(program.optimizer_dtype));
    costs.emplace_back(-cost.flops, p);
  }
  std::sort(costs.begin(), costs.end());
  std::map<std::vector<int>, std::vector<double>> loads;  // key: the atoms of owners
  for (const auto& [cost, p] : costs) {
    const std::vector<int> atoms = atoms_of_owners(program, bucket, p);
    std::vector<double>& load = loads[atoms];
    load.resize(static_cast<std::size_t>(program.mesh.ways(atoms)));
    const auto least = std::min_element(load.begin(), load.end());
    *least -= cost;
    owners[p] = static_cast<int>(least - load.begin());
  }
  return owners;
}

// Adds the steps in which ranks update their parts of a parameter's matrices, each with a sum of
// Gram matrices before it. Returns the slot of the update, whose layout is the parameter's.
int add_gram_steps(Program& program, int bucket, int parameter, const CutMatrices& cut, int part,
                   std::vector<Instruction>& code) {
  const ProgramParameter own = program.parameters[parameter];
  const Dims& dims = program.graph->value(own.value).dims;
  const MatrixSizes sizes = program.matrices(own, program.first());
  const std::int64_t n = cut.rows ? sizes.columns : sizes.rows;
  Slot gram;
  gram.name = "Gram matrices of " + program.name_of_parameter(parameter);
  gram.dims = Dims(dims.begin(), dims.begin() + own.stacked);
  gram.layout = own.stored;
  for (const int atom : cut.atoms) gram.layout[static_cast<std::size_t>(atom)] = {};
  const Layout whole = gram.layout;
  for (const int atom : cut.atoms)
    gram.layout[static_cast<std::size_t>(atom)] = Placement::partial();
  gram.dtype = program.optimizer_dtype;
  gram.extra = n * n;
  const Layout partial = gram.layout;
  Slot made = program.slots[part];
  for (int step = 0; step < program.buckets[bucket].rule->whole->gram_steps(); ++step) {
    const int terms = add_slot(program, gram);
    code.push_back(update_of(program, bucket, parameter, Update::gram, part, terms));
    const int sum =
        emit_moves(program, code, moves(partial, whole, program.mesh), terms, partial, "optimizer");
    const int next = add_slot(program, made);
    code.push_back(update_of(program, bucket, parameter, Update::gram_step, part, next));
    code.back().inputs.push_back(sum);
    code.back().round = step;
    part = next;
  }
  return part;
}

void add_matrix_updates(Program& program, int bucket, int updated, std::vector<Instruction>& code) {
  const std::vector<int> parameters = program.buckets[bucket].parameters;
  const FlatSlots flat = program.buckets[bucket].flat;
  std::vector<int> slots;
  for (int p : parameters) {
    const ProgramParameter& parameter = program.parameters[p];
    Slot slot = slot_of(program, parameter.value, parameter.stored);
    slot.name = "update of " + slot.name;
    slot.value = -1;
    slot.dtype = program.optimizer_dtype;
    slots.push_back(add_slot(program, std::move(slot)));
  }
  const std::map<int, int> owners = owners_of(program, program.buckets[bucket]);
  // Owners gather all directions before they make the first update, and make all updates before
  // they send the first one: a rank would else wait while another one makes its update.
  std::vector<Instruction> made_later, sent_later;
  std::vector<Instruction>& making = owners.empty() ? code : made_later;
  std::vector<Instruction>& sending = owners.empty() ? code : sent_later;
  const bool together = flat.directions >= 0;
  if (together) {
    code.push_back(with_states(
        program, update_of(program, bucket, Update::direction, flat.reduced, flat.direction)));
    for (Instruction& i : gather_directions(program, bucket)) code.push_back(std::move(i));
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      Instruction view =
          update_of(program, bucket, parameters[k], Update::none, flat.directions, slots[k]);
      view.code = Code::alias;
      code.push_back(std::move(view));
    }
    if (program.slots[flat.directions].transient) code.back().release.push_back(flat.directions);
  }
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    const ProgramParameter parameter = program.parameters[parameters[k]];
    if (!together) {
      code.push_back(
          with_states(program, update_of(program, bucket, parameters[k], Update::direction,
                                         parameter.gradient_slot, slots[k])));
    }
    const std::optional<CutMatrices> cut =
        program.buckets[bucket].rule->matrices == MatrixRanks::shards
            ? cut_of_matrices(program, parameters[k])
            : std::nullopt;
    if (cut) {
      const int made = add_gram_steps(program, bucket, parameters[k], *cut, slots[k], code);
      code.push_back(with_states(
          program, update_of(program, bucket, parameters[k], Update::apply, made, updated)));
      continue;
    }
    const Layout whole = gathered(parameter, program.graph->value(parameter.value).dims);
    const int moved = emit_moves(program, code, moves(parameter.stored, whole, program.mesh),
                                 slots[k], parameter.stored, "optimizer");
    const std::vector<int> owning =
        owners.empty() ? std::vector<int>()
                       : atoms_of_owners(program, program.buckets[bucket], parameters[k]);
    Slot made = program.slots[moved];
    for (const int atom : owning)
      made.layout[static_cast<std::size_t>(atom)] = Placement::partial();
    const Layout result = made.layout;
    int made_slot = add_slot(program, std::move(made));
    making.push_back(update_of(program, bucket, parameters[k], Update::whole, moved, made_slot));
    if (!owning.empty()) {
      making.back().owner = owners.at(parameters[k]);
      making.back().contributing = {owning};
      made_slot = emit_moves(program, sending, moves(result, parameter.stored, program.mesh),
                             made_slot, result, "optimizer");
    }
    sending.push_back(with_states(
        program, update_of(program, bucket, parameters[k], Update::apply, made_slot, updated)));
  }
  for (std::vector<Instruction>* later : {&made_later, &sent_later})
    code.insert(code.end(), later->begin(), later->end());
}

// The atoms over which ranks have parts of a parameter, or of their bucket's shard.
std::vector<int> atoms_of_parts(const Program& program, const Bucket& bucket, int parameter) {
  std::vector<int> atoms = bucket.shard_atoms;
  const Layout& stored = program.parameters[parameter].stored;
  for (int a = 0; a < static_cast<int>(stored.size()); ++a)
    if (stored[static_cast<std::size_t>(a)].is_shard()) atoms.push_back(a);
  std::sort(atoms.begin(), atoms.end());
  return atoms;
}

// Adds the rounds of sums that the bucket's update reads. Returns the slots of the sums.
std::vector<int> add_sums(Program& program, int bucket, int updated,
                          std::vector<Instruction>& code) {
  const Bucket& b = program.buckets[bucket];
  std::set<int> all;
  std::vector<std::vector<int>> of_parameter;
  for (const int p : b.parameters) {
    of_parameter.push_back(atoms_of_parts(program, b, p));
    all.insert(of_parameter.back().begin(), of_parameter.back().end());
  }
  const Layout whole(program.mesh.atoms().size());
  Layout partial = whole;
  for (const int atom : all) partial[static_cast<std::size_t>(atom)] = Placement::partial();
  std::vector<std::vector<int>> contributing;
  for (const std::vector<int>& atoms : of_parameter) {
    contributing.emplace_back();
    std::set_difference(all.begin(), all.end(), atoms.begin(), atoms.end(),
                        std::back_inserter(contributing.back()));
  }
  std::vector<int> made;
  for (const std::int64_t numbers : places_of_sums(program, bucket).of_round) {
    Slot slot;
    slot.name = fmt::format("{} sums {}", b.name, made.size() + 1);
    slot.layout = partial;
    slot.dtype = Dtype::fp64;
    slot.extra = numbers;
    const int to = add_slot(program, std::move(slot));
    Instruction sums =
        with_states(program, update_of(program, bucket, Update::sums, b.flat.reduced, to));
    sums.inputs.push_back(updated);
    for (const int before : made) sums.inputs.push_back(before);
    sums.contributing = contributing;
    code.push_back(std::move(sums));
    made.push_back(
        emit_moves(program, code, moves(partial, whole, program.mesh), to, partial, "optimizer"));
  }
  return made;
}

}  // namespace

void set_groups(std::vector<Program>& programs) {
  const Graph& graph = *programs.front().graph;
  const Optimizer* optimizer = programs.front().optimizer.get();
  if (optimizer == nullptr) return;
  const std::vector<Read> reads = reads_of(graph);
  std::vector<int> trained;
  std::vector<ParameterFacts> facts;
  for (const int value : graph.parameters()) {
    const Value& parameter = graph.value(value);
    if (parameter.counts || parameter.frozen) continue;
    const Read& read = reads[static_cast<std::size_t>(value)];
    trained.push_back(value);
    facts.push_back(
        {parameter.name, names_of(parameter.dims), {}, read.layer, read.shape.has_value()});
    for (const Dim dim : parameter.dims) facts.back().shape.push_back(graph.size(dim));
  }
  if (trained.empty())
    throw Error(Stage::plan, "optimizer.groups", "optimizer",
                "all parameters of the model are frozen, and there is nothing to train",
                "leave frozen = true out of some weights");
  const std::vector<int> groups = optimizer->groups_of(facts);
  std::vector<bool> takes_matrices;  // whether the rule of a group is for matrices
  for (int group = 0; group < optimizer->groups(); ++group)
    takes_matrices.push_back(optimizer->rule(group).of_matrices());
  std::vector<int> group_of(graph.values().size(), 0);
  std::vector<bool> whole(graph.values().size(), false);
  for (std::size_t k = 0; k < trained.size(); ++k) {
    const auto value = static_cast<std::size_t>(trained[k]);
    group_of[value] = groups[k];
    whole[value] = takes_matrices[static_cast<std::size_t>(groups[k])];
    if (!whole[value] || facts[k].matrix) continue;
    throw Error(Stage::plan, "optimizer.groups", "optimizer",
                "the rule for " + facts[k].name +
                    " treats it as a matrix, and it is no weight of a linear or of experts in a "
                    "layer",
                "leave it to another group");
  }
  for (Program& program : programs) {
    for (ProgramParameter& parameter : program.parameters) {
      const auto value = static_cast<std::size_t>(parameter.value);
      parameter.group = group_of[value];
      if (!whole[value]) continue;
      parameter.stacked = reads[value].shape->stacked;
      parameter.rows = reads[value].shape->rows;
    }
  }
}

std::vector<Instruction> bring_to_device(const Program& program, int bucket) {
  std::vector<Instruction> code;
  for (const auto& [host, device] : on_device(program.buckets[bucket]))
    code.push_back(copy_of(program, bucket, host, device));
  return code;
}

std::vector<Instruction> gradients_to_host(const Program& program, int bucket) {
  const FlatSlots& flat = program.buckets[bucket].flat;
  std::vector<Instruction> code;
  if (sums_of(program, bucket).back() == flat.reduced)
    code.push_back(settled(program, bucket, flat.reduced));
  code.push_back(copy_of(program, bucket, flat.reduced, flat.gradients_on_host));
  code.back().serves = Serves::gradients;
  code.back().phase = "gradients";
  return code;
}

std::vector<Instruction> update_on_host(const Program& program, int bucket) {
  const FlatSlots& flat = program.buckets[bucket].flat;
  std::vector<Instruction> code{
      update_of(program, bucket, Update::apply, flat.gradients_on_host, flat.updated())};
  if (flat.parameters_on_host >= 0) code[0].outputs.push_back(flat.parameters_on_host);
  if (program.slots[flat.stored].memory == Memory::device)
    code.push_back(copy_of(program, bucket, code[0].outputs.back(), flat.stored));
  return code;
}

void add_updates(Program& program, int bucket, std::vector<Instruction>& code) {
  const Bucket& b = program.buckets[bucket];
  const FlatSlots flat = b.flat;
  if (!b.rule && !b.counts) return;
  if (b.updated_on_host()) {
    for (Instruction& i : update_on_host(program, bucket)) code.push_back(std::move(i));
    return;
  }
  const int updated = flat.updated_on_device >= 0 ? flat.updated_on_device : flat.updated();
  if (b.rule && b.rule->whole != nullptr) {
    add_matrix_updates(program, bucket, updated, code);
  } else {
    std::vector<int> sums;
    if (b.rule && !b.rule->sums.empty()) sums = add_sums(program, bucket, updated, code);
    code.push_back(
        with_states(program, update_of(program, bucket, Update::apply, flat.reduced, updated)));
    for (const int sum : sums) code.back().inputs.push_back(sum);
  }
  const bool stored_on_host = program.slots[flat.stored].memory == Memory::host;
  if (flat.master >= 0 && !stored_on_host)
    code.push_back(copy_of(program, bucket, updated, flat.stored));
  for (const auto& [host, device] : on_device(b)) {
    code.push_back(copy_of(program, bucket, device, host));
    code.back().release.push_back(device);
  }
  if (flat.master >= 0 && stored_on_host)
    code.push_back(copy_of(program, bucket, flat.master, flat.stored));
}

}  // namespace mw
