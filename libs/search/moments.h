// What a stage holds while a work of its order runs, counted in layers and microbatches: of these a
// search's closed form makes bytes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "meshwright/schedule.h"

namespace mw {

// What is counted. Of the stage: its layers, and which of the model's ends (embedding, loss) is on
// it, or both. Of microbatches between F and B or I: layers, and how often an end. Of those between
// I and W the same. Of the tensors between chunks: those received and not yet used, and those made
// and not yet known to be there. Of whole gradients that are reduced when the stage turns to
// another chunk: layers, and ends; of the shards of their sums that arrive the same. Of the work:
// layers in whose course it lets go of one thing and makes another: of an I all but the first, of a
// B or W those whose whole gradients come, and those whose sums begin.
enum class Counted : std::uint8_t {
  layers,
  first_end,
  last_end,
  both_ends,
  kept,
  kept_first,
  kept_last,
  waiting,
  waiting_last,
  sent,
  pending,
  pending_first,
  pending_last,
  arriving,
  arriving_first,
  arriving_last,
  turning,
  reducing,
};
constexpr std::size_t counted_kinds = 18, counted_padded = 20;

// Kinds of works, by what they take beside what is held: F, B, I and W of layers, the same of a
// chunk with the loss, and the step's end.
constexpr std::size_t work_kinds = 9;
constexpr std::size_t work_of_end = 8;
constexpr std::size_t kind_of(Work work, bool loss) {
  return static_cast<std::size_t>(work) + (loss ? 4 : 0);
}

struct Moment {
  std::array<float, counted_padded> counts{};
  std::size_t work = work_of_end;
  float& operator[](Counted what) { return counts[static_cast<std::size_t>(what)]; }
  float operator[](Counted what) const { return counts[static_cast<std::size_t>(what)]; }
};

// Of all stages, without those beside which another one of the same work has no less of anything.
// An F is counted with what it leaves, the others with what they find. `layers`: of the model.
struct Moments {
  std::vector<Moment> usual, by_chunk;  // `usual`: nothing is reduced by chunk
  // What each stage holds once in any order: when its last chunk begins its first backward, that
  // microbatch in each of its chunks.
  std::vector<Moment> sure;
};
Moments moments_of(const Schedule& schedule, std::int64_t layers);
// Of one stage that has it all, and so many microbatches.
Moments moments_of_one(std::int64_t layers, std::int64_t microbatches);

// Layers of a virtual stage, as a plan gives them: as even as can be, the first ones more.
inline int layers_of(std::int64_t layers, int vstages, int v) {
  return static_cast<int>(layers / vstages + (v < layers % vstages ? 1 : 0));
}

}  // namespace mw
