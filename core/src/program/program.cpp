// What a program says of itself: segments by name, groups of ranks, sizes of buckets and of dims
// on a rank.
#include "meshwright/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "meshwright/outer_steps.h"

namespace mw {

const char* name_of(Dtype dtype) {
  static constexpr std::array names{"fp64", "fp32", "bf16", "fp16", "int64"};
  return names.at(static_cast<std::size_t>(dtype));
}

const char* name_of(SegmentKind kind) {
  static constexpr std::array names{"forward", "backward", "dgrad",  "wgrad",  "post", "receive",
                                    "sent",    "begin",    "gather", "finish", "braid"};
  static_assert(names.size() == static_cast<std::size_t>(SegmentKind::braid) + 1);
  return names.at(static_cast<std::size_t>(kind));
}

Dtype Program::dtype_of(Scalar scalar, bool fp32_at_least) const {
  if (scalar == Scalar::index) return Dtype::int64;
  return fp32_at_least ? wider(dtype, Dtype::fp32) : dtype;
}

const std::string& Program::name_of_parameter(int parameter) const {
  return graph->value(parameters[static_cast<std::size_t>(parameter)].value).name;
}

int Program::segment(const std::string& name) const {
  for (std::size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

int Program::segment(SegmentKind kind, int vstage, bool gradient) const {
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    if (s.kind == kind && s.vstage == vstage && s.gradient == gradient && s.copy_of < 0)
      return static_cast<int>(i);
  }
  return -1;
}

int Program::chunk_of(int vstage) const {
  return static_cast<int>(
      std::count(stage_of.begin(), stage_of.begin() + vstage, stage_of[vstage]));
}

const std::vector<int>& Program::replica_atoms() const {
  static const std::vector<int> none;
  return outer ? outer->atoms : none;
}

int Program::replica_of(const Coordinates& at) const {
  int replica = 0;
  for (const int atom : replica_atoms()) replica = replica * mesh.atoms()[atom].ways + at[atom];
  return replica;
}

Coordinates Program::first() const {
  Coordinates at(mesh.atoms().size(), 0);
  if (stage_atom >= 0) at[stage_atom] = stage;
  return at;
}

std::vector<int> Program::ranks_of(const RankSet& set, int rank) const {
  std::vector<int> group = mesh.group(rank, set.atoms);
  if (set.stages.empty()) return group;
  std::erase_if(group, [&](int r) {
    const int at = mesh.coordinates(r)[stage_atom];
    return std::find(set.stages.begin(), set.stages.end(), at) == set.stages.end();
  });
  return group;
}

int Program::ways(const RankSet& set) const {
  const int all = mesh.ways(set.atoms);
  return set.stages.empty() ? all : all / stages * static_cast<int>(set.stages.size());
}

std::string Program::name_of(const RankSet& set) const {
  if (set.by_axis) {  // the name of the axis that borrowed these ranks, if one did
    for (auto axis = mesh.axes().rbegin(); axis != mesh.axes().rend(); ++axis) {
      if (axis->atoms == set.atoms) return axis->name;
    }
  }
  if (set.stages.empty()) {
    return !set.by_axis && set.atoms.size() != 1 && mesh.ways(set.atoms) == mesh.size()
               ? "world"
               : mesh.name_of(set.atoms);
  }
  std::string text;
  for (int atom : set.atoms) {
    text += (text.empty() ? "" : "*") + mesh.atoms()[atom].name;
    if (atom == stage_atom) text += fmt::format("[{}]", fmt::join(set.stages, ","));
  }
  return text;
}

RankSet Program::shard_reduction(const Bucket& bucket) const {
  RankSet set = reduction(bucket);
  std::erase_if(set.atoms, [&](int a) {
    return std::find(bucket.shard_atoms.begin(), bucket.shard_atoms.end(), a) !=
           bucket.shard_atoms.end();
  });
  return set;
}

std::int64_t Program::elements(const Bucket& bucket, const Coordinates& at) const {
  std::int64_t total = 0;
  for (int p : bucket.parameters) {
    std::int64_t count = 1;
    for (std::int64_t size : local_shape(slots[parameters[p].slot], at)) count *= size;
    total += count;
  }
  return total;
}

std::int64_t Program::shard_elements(const Bucket& bucket, const Coordinates& at) const {
  const std::int64_t total = elements(bucket, at), ways = mesh.ways(bucket.shard_atoms);
  return bucket.shard_atoms.empty() ? total : (total + ways - 1) / ways;
}

MatrixSizes as_matrices(const std::vector<std::int64_t>& shape, int stacked, int rows) {
  MatrixSizes sizes;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d)
    (d < stacked          ? sizes.stacked
     : d < stacked + rows ? sizes.rows
                          : sizes.columns) *= shape[static_cast<std::size_t>(d)];
  return sizes;
}

MatrixSizes Program::matrices(const ProgramParameter& parameter, const Coordinates& at) const {
  std::vector<std::int64_t> shape;
  for (Dim dim : graph->value(parameter.value).dims) {
    const bool numbers = static_cast<int>(shape.size()) < parameter.stacked;
    const std::int64_t size = graph->size(dim);
    shape.push_back(numbers ? local_range(dim, size, parameter.stored, mesh, at).size : size);
  }
  return as_matrices(shape, parameter.stacked, parameter.rows);
}

std::int64_t Program::flat_elements(const Slot& slot, std::int64_t shard) const {
  const std::vector<int>& atoms = buckets[slot.bucket].shard_atoms;
  return atoms.empty() || slot.layout[atoms.front()].is_shard() ? shard : shard * mesh.ways(atoms);
}

bool between_lasting(const Program& program, const Instruction& instruction) {
  if (instruction.op >= 0 || instruction.outputs.empty()) return false;
  const auto lasts = [&](int slot) { return slot < 0 || program.slots[slot].persistent; };
  return std::all_of(instruction.outputs.begin(), instruction.outputs.end(), lasts) &&
         std::all_of(instruction.inputs.begin(), instruction.inputs.end(), lasts);
}

const Slicing* Program::slicing_of(const Instruction& instruction) const {
  if (instruction.op < 0 || slicing.empty()) return nullptr;
  const auto found = slicing.find(instruction.op);
  return found == slicing.end() ? nullptr : &found->second;
}

int Program::sliced_at(const Instruction& instruction, int slot) const {
  const Slicing* sliced = slicing_of(instruction);
  if (sliced == nullptr || slot < 0 || slots[slot].slices > 1) return -1;
  const Dims& dims = slots[slot].dims;
  const auto found =
      std::find_if(dims.begin(), dims.end(), [&](Dim dim) { return contains(sliced->dims, dim); });
  return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
}

int Program::root(int slot) const {
  while (slots[slot].alias_of >= 0) slot = slots[slot].alias_of;
  return slot;
}

namespace {

// The coordinates `steps` ranks before `at`, round the ranks of `atoms`, of which the outermost
// counts most.
Coordinates before(const Mesh& mesh, Coordinates at, const std::vector<int>& atoms, int steps) {
  int index = 0, ways = 1;
  for (int atom : atoms) {
    index = index * mesh.atoms()[atom].ways + at[atom];
    ways *= mesh.atoms()[atom].ways;
  }
  index = ((index - steps) % ways + ways) % ways;
  for (auto atom = atoms.rbegin(); atom != atoms.rend(); ++atom) {
    at[*atom] = index % mesh.atoms()[*atom].ways;
    index /= mesh.atoms()[*atom].ways;
  }
  return at;
}

// The name of an op's dim in the value that has it: "seq" for an op's "keys".
Dim known_as(const Graph& graph, const Op& op, Dim dim) {
  for (const Use& use : op.inputs) {
    const auto found = std::find(use.dims.begin(), use.dims.end(), dim);
    if (found != use.dims.end()) return graph.value(use.value).dims[found - use.dims.begin()];
  }
  return dim;
}

}  // namespace

std::int64_t Program::batch_of(int microbatch) const {
  static const Dim batch("batch");
  return microbatch < 0 || batches.empty() ? graph->size(batch) : batches.at(microbatch);
}

std::vector<std::int64_t> Program::groups_of_rows() const {
  std::vector<std::int64_t> groups;
  for (int m = 0; m < microbatches; ++m)
    groups.insert(groups.end(), static_cast<std::size_t>(batch_ways), batch_of(m) / batch_ways);
  return groups;
}

std::int64_t Program::first_row(int microbatch) const {
  std::int64_t row = 0;
  for (int m = 0; m < microbatch; ++m) row += batch_of(m);
  return row;
}

std::int64_t Program::size(Dim dim, std::int64_t batch) const {
  static const Dim rows("batch");
  return batch > 0 && dim == rows ? batch : graph->size(dim);
}

LocalDims Program::local_dims(int op, const Coordinates& at, int part, std::int64_t batch) const {
  LocalDims local;
  const auto rotation = rotations.find(op);
  if (rotation != rotations.end()) local.set_ring_step(part);
  for (Dim dim : graph->ops()[op].space()) {
    const std::int64_t size = this->size(dim, batch);
    Range range = local_range(dim, size, cut[op], mesh, at);
    if (range.size == size) range = local_range(dim, size, follow[op], mesh, at);
    if (part > 0 && rotation != rotations.end() && rotation->second.dim == dim) {
      range =
          local_range(dim, size, follow[op], mesh, before(mesh, at, rotation->second.atoms, part));
    }
    if (const auto sliced = slicing.find(op);
        sliced != slicing.end() && contains(sliced->second.dims, dim)) {
      range.size /= sliced->second.slices;
      range.offset += part * range.size;
    }
    LocalDim own{dim, range.offset, range.size, size, {}};
    if (!token_permutation.empty())
      own.runs = permuted(known_as(*graph, graph->ops()[op], dim), range);
    local.set(own);
  }
  if (!graph->sparse.dims.empty()) {
    Sparse sparse = graph->sparse;
    const Dim group = sparse.dims.front();
    if (local.has(group) && local.at(group).size < local.at(group).global)
      sparse.share *= imbalance;
    local.set_sparse(sparse);
  }
  return local;
}

std::vector<Range> Program::permuted(Dim dim, Range part) const {
  const auto found = token_permutation.find(dim);
  return found == token_permutation.end() ? std::vector<Range>{part}
                                          : lying_at(found->second, part);
}

std::vector<std::int64_t> Program::local_shape(const Slot& slot, const Coordinates& at,
                                               std::int64_t batch) const {
  if (slot.is_flat()) return {flat_elements(slot, shard_elements(buckets[slot.bucket], at))};
  std::vector<std::int64_t> shape;
  shape.reserve(slot.dims.size() + 1);
  const Sparse& sparse = graph->sparse;
  const bool rows = sparse.has(slot.dims);
  const Coordinates of = slot.ring_step > 0 ? before(mesh, at, slot.ring, slot.ring_step) : at;
  double cells = 1;
  for (Dim dim : slot.dims) {
    const std::int64_t size = this->size(dim, batch);
    std::int64_t part = local_range(dim, size, slot.layout, mesh, of).size;
    if (slot.slices > 1 && dim == slot.slice_dim) part /= slot.slices;
    if (!rows || std::find(sparse.dims.begin(), sparse.dims.end(), dim) == sparse.dims.end()) {
      shape.push_back(part);
      continue;
    }
    cells *= static_cast<double>(part);
    if (dim == sparse.dims.front() && part < size) cells *= imbalance;
  }
  if (rows) shape.insert(shape.begin(), sparse.rows(cells));
  if (slot.extra > 0) shape.push_back(slot.extra);
  return shape;
}

std::int64_t Program::local_bytes(const Slot& slot, const Coordinates& at,
                                  std::int64_t batch) const {
  std::int64_t bytes = bytes_of(slot.dtype);
  for (std::int64_t size : local_shape(slot, at, batch)) bytes *= size;
  return bytes;
}

}  // namespace mw
