// Says where an op of the optimizer runs on a rank, what it casts and copies, and which part of a
// matrix the rank updates.
#include "program/update_steps.h"

#include <algorithm>

#include "meshwright/engine/program_facts.h"

namespace mw {
namespace {

// Whether these ranges of a contiguous tensor lie in one piece.
bool in_one_piece(const std::vector<std::int64_t>& whole, const std::vector<Range>& own) {
  std::size_t cut = own.size();
  while (cut > 0 && own[cut - 1].size == whole[cut - 1]) --cut;
  if (cut == 0) return true;
  return std::all_of(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(cut) - 1,
                     [](const Range& r) { return r.size == 1; });
}

// Elements of a piece whose op allocates tensors of its size, on the CPU: they stay in a core's
// cache, and malloc does not ask the system for them.
constexpr std::int64_t in_cache_at_a_time = 1 << 15;

// The elements of a parameter's local part that lie in the rank's shard of the bucket.
Range updated_elements(const RankView& rank, int bucket, int parameter) {
  const Range place = rank.place(parameter), shard = rank.shard(bucket);
  const auto within = [&](std::int64_t at) {
    return std::clamp<std::int64_t>(at - place.offset, 0, place.size);
  };
  const std::int64_t begin = within(shard.offset);
  return {begin, within(shard.offset + shard.size) - begin};
}

}  // namespace

MatrixUpdate matrix_update(const RankView& rank, const Instruction& update) {
  const Program& program = rank.program();
  const ProgramParameter& parameter = program.parameters[update.parameter];
  const Slot &stored = program.slots[parameter.slot], &whole = program.slots[update.inputs[0]];
  const std::vector<std::int64_t> shape = program.local_shape(whole, rank.at());
  MatrixUpdate made;
  static_cast<MatrixSizes&>(made) = program.matrices(parameter, rank.at());
  for (Dim dim : stored.dims) {
    const std::int64_t size = program.graph->size(dim);
    const Range here = local_range(dim, size, whole.layout, program.mesh, rank.at());
    Range own = local_range(dim, size, stored.layout, program.mesh, rank.at());
    own.offset -= here.offset;
    made.own.push_back(own);
  }
  const Range place = rank.place(update.parameter),
              updated = updated_elements(rank, update.bucket, update.parameter);
  made.first = place.offset;
  made.begin = updated.offset;
  made.end = updated.offset + updated.size;
  if (made.begin < made.end && !in_one_piece(shape, made.own))
    made.apart = bytes_of(program.optimizer_dtype) * place.size;
  return made;
}

std::optional<CutMatrices> cut_of_matrices(const Program& program, int parameter) {
  const ProgramParameter& own = program.parameters[parameter];
  const Dims& dims = program.graph->value(own.value).dims;
  CutMatrices rows{.rows = true}, columns;
  for (int a = 0; a < static_cast<int>(own.stored.size()); ++a) {
    const Placement& place = own.stored[static_cast<std::size_t>(a)];
    if (!place.is_shard() || program.mesh.atoms()[static_cast<std::size_t>(a)].ways < 2) continue;
    const auto at = std::find(dims.begin(), dims.end(), place.dim) - dims.begin();
    if (at >= own.stacked) (at < own.stacked + own.rows ? rows : columns).atoms.push_back(a);
  }
  if (rows.atoms.empty() == columns.atoms.empty()) return std::nullopt;
  return rows.atoms.empty() ? columns : rows;
}

MatrixParts matrix_parts(const RankView& rank, int parameter) {
  const Program& program = rank.program();
  const ProgramParameter& own = program.parameters[parameter];
  MatrixParts parts;
  static_cast<MatrixSizes&>(parts) =
      as_matrices(program.local_shape(program.slots[own.slot], rank.at()), own.stacked, own.rows);
  parts.rows_are_cut = cut_of_matrices(program, parameter)->rows;
  return parts;
}

namespace {

// Whether the ranks along these atoms have parts of one size of each parameter of a bucket, so that
// their shards of the bucket are alike.
bool cut_alike(const Program& program, int bucket, const std::vector<int>& atoms) {
  for (const int p : program.buckets[bucket].parameters) {
    const Layout& stored = program.parameters[p].stored;
    for (const int atom : atoms) {
      const Placement& place = stored[static_cast<std::size_t>(atom)];
      if (!place.is_shard()) continue;
      std::int64_t ways = 1;
      for (std::size_t a = 0; a < stored.size(); ++a)
        if (stored[a] == place) ways *= program.mesh.atoms()[a].ways;
      if (program.graph->size(place.dim) % ways != 0) return false;
    }
  }
  return true;
}

}  // namespace

bool takes_part(const RankView& rank, const Instruction& update) {
  if (update.owner >= 0) return rank.makes_update(update);
  const Program& program = rank.program();
  if (updated_elements(rank, update.bucket, update.parameter).size > 0) return true;
  if (update.update == Update::whole) return false;
  return !cut_alike(program, update.bucket, cut_of_matrices(program, update.parameter)->atoms);
}

UpdatedPart updated_part(const RankView& rank, int bucket, std::size_t n) {
  const Program& program = rank.program();
  const int p = program.buckets[bucket].parameters[n];
  const ProgramParameter& parameter = program.parameters[p];
  UpdatedPart part{.stacked = parameter.stacked, .rows = parameter.rows};
  for (Dim dim : program.graph->value(parameter.value).dims) {
    part.sizes.push_back(program.graph->size(dim));
    part.own.push_back(
        local_range(dim, part.sizes.back(), parameter.stored, program.mesh, rank.at()));
  }
  part.elements = updated_elements(rank, bucket, p);
  return part;
}

SumPlaces places_of_sums(const Program& program, int bucket) {
  const Bucket& b = program.buckets[bucket];
  SumPlaces places;
  places.of_round.resize(static_cast<std::size_t>(b.rule->rounds()));
  for (const int p : b.parameters) {
    const ProgramParameter& of = program.parameters[p];
    UpdatedPart whole{.stacked = of.stacked, .rows = of.rows};
    for (Dim dim : program.graph->value(of.value).dims)
      whole.sizes.push_back(program.graph->size(dim));
    std::vector<Range>& own = places.of_parameter.emplace_back();
    for (const UpdateSum& sum : b.rule->sums) {
      const auto [number, m, n] = whole.shape(sum);
      std::int64_t& end = places.of_round[static_cast<std::size_t>(sum.round)];
      own.push_back({end, number * m * n});
      end += number * m * n;
    }
  }
  return places;
}

UpdateSteps update_steps(const RankView& rank, const Instruction& update, bool accelerator) {
  const Program& program = rank.program();
  const Bucket& bucket = program.buckets[update.bucket];
  const Slot &from = program.slots[update.inputs[0]], &to = program.slots[update.outputs[0]];
  UpdateSteps steps;
  steps.host = bucket.offload != Offload::nothing && !bucket.update_on_device;
  if (update.update == Update::direction) {
    steps.elements = rank.bytes(update.outputs[0]) / bytes_of(to.dtype);
    steps.casts = from.dtype != program.optimizer_dtype;
    steps.at_a_time = steps.elements;  // directions are kept whole, for their matrices
    return steps;
  }
  steps.elements = rank.shard(update.bucket).size;
  if (update.parameter >= 0) {
    const MatrixUpdate matrices = matrix_update(rank, update);
    steps.elements = std::max<std::int64_t>(0, matrices.end - matrices.begin);
  }
  // A bucket without a rule, which experts' loads move, has few elements; directions have the
  // optimizer's dtype already.
  const UpdateRule* const rule = rule_of_update(program, update);
  const Dtype updated = update.update == Update::sums ? program.optimizer_dtype : to.dtype;
  steps.casts = rule != nullptr && update.parameter < 0 && from.dtype != updated;
  std::int64_t piece = accelerator && !steps.host ? cast_at_a_time_on_accelerators : cast_at_a_time;
  if (rule != nullptr && update.parameter < 0 && update.update != Update::outer_gradient)
    steps.temporaries = rule->apply->temporaries();
  if (steps.temporaries > 0 && (!accelerator || steps.host)) piece = in_cache_at_a_time;
  const bool pieces = (steps.casts || steps.temporaries > 0) && !(rule && rule->of_matrices());
  steps.at_a_time = pieces ? std::min(steps.elements, piece) : steps.elements;
  steps.fetches_parameters = steps.host && to.memory != Memory::host;
  return steps;
}

}  // namespace mw
