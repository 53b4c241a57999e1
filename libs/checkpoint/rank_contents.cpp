// Finds which elements of which parameters each flat slot of a rank holds, and whether the rank is
// the one that writes them to a checkpoint.
#include <algorithm>

#include "checkpoint/checkpoint.h"
#include "checkpoint/run_checkpoints.h"
#include "meshwright/optimizer.h"
#include "meshwright/outer_steps.h"

namespace mw {
namespace {

// Whether the rank is the first of those that keep the same elements: ranks that differ only on
// atoms which cut neither the parameter nor the slot, and stages that share a bucket. `differs`:
// the slot's numbers differ between replicas (OuterSteps).
bool is_first_of_replicas(const RankView& rank, const Bucket& bucket,
                          const ProgramParameter& parameter, const Slot& slot, bool differs) {
  const Program& program = rank.program();
  if (!bucket.stages.empty() && bucket.stages.front() != program.stage) return false;
  for (std::size_t a = 0; a < rank.at().size(); ++a) {
    if (static_cast<int>(a) == program.stage_atom || rank.at()[a] == 0) continue;
    if (differs && program.parts_replicas(static_cast<int>(a))) continue;
    if (!parameter.stored[a].is_shard() && !slot.layout[a].is_shard()) return false;
  }
  return true;
}

// A parameter's whole matrix state on a rank. Of the ranks that keep it, the one that updates the
// parameter's first element writes it.
KeptSlice of_matrix(const RankView& rank, const Bucket& bucket, int parameter, std::size_t which) {
  const Program& program = rank.program();
  const ProgramParameter& p = program.parameters[parameter];
  const int slot = bucket.flat.of_matrix[which];
  const MatrixState& state = bucket.rule->of_matrix[which];
  const MatrixSizes sizes = program.matrices(p, rank.at());
  const Range lies = rank.of_matrix(slot, parameter), all = rank.place(parameter),
              shard = rank.shard(program.slots[slot].bucket);
  ParameterPlace place = place_of(rank, parameter);
  bool writes = shard.offset <= all.offset && all.offset < shard.offset + shard.size &&
                (bucket.stages.empty() || bucket.stages.front() == program.stage);
  for (std::size_t a = 0; a < rank.at().size(); ++a) {
    const auto& shards = bucket.shard_atoms;
    if (static_cast<int>(a) == program.stage_atom || rank.at()[a] == 0 ||
        program.parts_replicas(static_cast<int>(a)) ||
        std::find(shards.begin(), shards.end(), static_cast<int>(a)) != shards.end())
      continue;
    const Dims& dims = program.graph->value(p.value).dims;
    const auto numbering = dims.begin() + p.stacked;
    writes = writes && p.stored[a].is_shard() &&
             std::find(dims.begin(), numbering, p.stored[a].dim) != numbering;
  }
  for (std::vector<std::int64_t>* list : {&place.shape, &place.box.offsets, &place.box.sizes}) {
    list->resize(static_cast<std::size_t>(p.stacked));
    for (const std::int64_t size : state.shape(sizes.rows, sizes.columns))
      list->push_back(list == &place.box.offsets ? 0 : size);
  }
  return {of_replica(program.replica_of(rank.at()), state_tensor(state.name, place.name)),
          std::move(place.shape),
          {std::move(place.box), 0, lies.size},
          slot,
          lies.offset,
          writes};
}

}  // namespace

ParameterPlace place_of(const RankView& rank, int parameter) {
  const Program& program = rank.program();
  const ProgramParameter& p = program.parameters[parameter];
  const Value& value = program.graph->value(p.value);
  ParameterPlace place{value.name, {}, {}};
  for (const Dim dim : value.dims) {
    place.shape.push_back(program.graph->size(dim));
    const Range range = local_range(dim, place.shape.back(), p.stored, program.mesh, rank.at());
    place.box.offsets.push_back(range.offset);
    place.box.sizes.push_back(range.size);
  }
  return place;
}

std::vector<KeptSlice> kept_slices(const RankView& rank) {
  const Program& program = rank.program();
  std::vector<KeptSlice> kept;
  for (const Bucket& bucket : program.buckets) {
    const FlatSlots& flat = bucket.flat;
    struct NamedSlot {
      int slot;
      std::string state;  // empty: the parameters
      bool differs;       // whether its numbers differ between replicas
    };
    const bool apart = bucket.fragment >= 0;
    std::vector<NamedSlot> slots = {{flat.updated(), "", apart}};
    for (std::size_t s = 0; s < flat.states.size(); ++s)
      slots.push_back({flat.states[s], bucket.rule->states.at(s), apart});
    for (const auto& [state, slot] : states_of_outer_steps(program, bucket))
      slots.push_back({slot, state, false});
    const int replica = apart ? program.replica_of(rank.at()) : 0;
    for (const auto& [slot, state, differs] : slots) {
      const Range part = rank.part(slot);
      for (const int p : bucket.parameters) {
        const Range all = rank.place(p);
        const std::int64_t begin = std::max(part.offset, all.offset);
        const std::int64_t end = std::min(part.offset + part.size, all.offset + all.size);
        if (begin >= end) continue;
        ParameterPlace place = place_of(rank, p);
        kept.push_back(
            {of_replica(differs ? replica : 0, state.empty() ? parameter_tensor(place.name)
                                                             : state_tensor(state, place.name)),
             std::move(place.shape),
             {std::move(place.box), begin - all.offset, end - begin},
             slot,
             begin - part.offset,
             is_first_of_replicas(rank, bucket, program.parameters[p], program.slots[slot],
                                  differs),
             state.empty()});
      }
    }
    for (std::size_t k = 0; k < flat.of_matrix.size(); ++k) {
      for (const int p : bucket.parameters) {
        if (rank.of_matrix(flat.of_matrix[k], p).size > 0)
          kept.push_back(of_matrix(rank, bucket, p, k));
      }
    }
  }
  return kept;
}

}  // namespace mw
