// Says where an op of the optimizer runs on a rank, what it casts and copies, and which part of a
// matrix the rank updates.
#include "program/update_steps.h"

#include <algorithm>

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
  const Range place = rank.place(update.parameter), shard = rank.shard(update.bucket);
  made.first = place.offset;
  made.begin = std::clamp<std::int64_t>(shard.offset - place.offset, 0, place.size);
  made.end = std::clamp<std::int64_t>(shard.offset + shard.size - place.offset, 0, place.size);
  if (made.begin < made.end && !in_one_piece(shape, made.own))
    made.apart = bytes_of(program.optimizer_dtype) * place.size;
  return made;
}

bool makes_update(const RankView& rank, const Instruction& update) {
  if (update.owner < 0) return true;
  const std::vector<int>& atoms = update.contributing[0];
  if (rank.index_among(atoms) != update.owner) return false;
  const Program& program = rank.program();
  const Bucket& bucket = program.buckets[update.bucket];
  const std::int64_t shards = program.mesh.ways(bucket.shard_atoms),
                     own = rank.index_among(bucket.shard_atoms);
  Coordinates at = rank.at();
  for (int other = 0, ways = program.mesh.ways(atoms); other < ways; ++other) {
    int left = other;
    for (std::size_t a = atoms.size(); a-- > 0;) {
      const auto atom = static_cast<std::size_t>(atoms[a]);
      at[atom] = left % program.mesh.atoms()[atom].ways;
      left /= program.mesh.atoms()[atom].ways;
    }
    Range place;  // of the parameter in the bucket
    for (const int p : bucket.parameters) {
      std::int64_t size = 1;
      for (const std::int64_t s :
           program.local_shape(program.slots[program.parameters[p].slot], at))
        size *= s;
      place.size = size;
      if (p == update.parameter) break;
      place.offset += size;
    }
    const std::int64_t part = program.shard_elements(bucket, at), begin = own * part;
    if (shards == 1 || (place.offset < begin + part && begin < place.offset + place.size))
      return true;
  }
  return false;
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
  const Range place = rank.place(p), shard = rank.shard(bucket);
  const std::int64_t begin = std::clamp<std::int64_t>(shard.offset - place.offset, 0, place.size),
                     end = std::clamp<std::int64_t>(shard.offset + shard.size - place.offset, 0,
                                                    place.size);
  part.elements = {begin, end - begin};
  return part;
}

namespace {

// How many numbers a sum of a parameter has.
std::int64_t numbers_of(const Program& program, int parameter, const UpdateSum& sum) {
  const ProgramParameter& of = program.parameters[parameter];
  UpdatedPart whole{.stacked = of.stacked, .rows = of.rows};
  for (Dim dim : program.graph->value(of.value).dims)
    whole.sizes.push_back(program.graph->size(dim));
  const auto [number, m, n] = whole.shape(sum);
  return number * m * n;
}

}  // namespace

Range place_of_sum(const Program& program, int bucket, std::size_t n, std::size_t sum) {
  const Bucket& b = program.buckets[bucket];
  const std::vector<UpdateSum>& sums = b.rule->sums;
  Range place;
  for (std::size_t p = 0; p < b.parameters.size(); ++p) {
    for (std::size_t k = 0; k < sums.size(); ++k) {
      if (sums[k].round != sums[sum].round) continue;
      place.size = numbers_of(program, b.parameters[p], sums[k]);
      if (p == n && k == sum) return place;
      place.offset += place.size;
    }
  }
  return place;
}

std::int64_t sums_of_round(const Program& program, int bucket, int round) {
  const Bucket& b = program.buckets[bucket];
  std::int64_t count = 0;
  for (const int p : b.parameters) {
    for (const UpdateSum& sum : b.rule->sums)
      if (sum.round == round) count += numbers_of(program, p, sum);
  }
  return count;
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
  steps.casts = bucket.rule && update.parameter < 0 && from.dtype != to.dtype;
  std::int64_t piece = accelerator && !steps.host ? cast_at_a_time_on_accelerators : cast_at_a_time;
  if (bucket.rule && update.parameter < 0) steps.temporaries = bucket.rule->apply->temporaries();
  if (steps.temporaries > 0 && !accelerator) piece = in_cache_at_a_time;
  const bool pieces =
      (steps.casts || steps.temporaries > 0) && !(bucket.rule && bucket.rule->of_matrices());
  steps.at_a_time = pieces ? std::min(steps.elements, piece) : steps.elements;
  steps.fetches_parameters = steps.host && to.memory != Memory::host;
  return steps;
}

}  // namespace mw
