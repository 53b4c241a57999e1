// Endless tokens made from a seed: each token has four likely successors, so a model can learn
// them.
#include "synthetic_data.h"

#include <bit>
#include <cstdint>

#include "meshwright/engine/hash.h"
#include "meshwright/plugin.h"

namespace mw {

SyntheticSource::SyntheticSource(std::int64_t vocab, std::int64_t seed)
    : vocab_(vocab), seed_(mix64(static_cast<std::uint64_t>(seed))) {}

void SyntheticSource::sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                             std::int64_t* labels) const {
  const std::uint64_t stream = mix64(seed_ ^ mix64(static_cast<std::uint64_t>(k)));
  const auto vocab = static_cast<std::uint64_t>(vocab_);
  std::uint64_t token = stream % vocab;
  for (std::int64_t t = 0; t <= sequence; ++t) {
    if (t < sequence) inputs[t] = static_cast<std::int64_t>(token);
    if (t > 0) labels[t - 1] = static_cast<std::int64_t>(token);
    // Trailing zeros of three random bits: 0, 1, 2, 3 with probability 1/2, 1/4, 1/8, 1/8.
    const std::uint64_t bits = mix64(stream + static_cast<std::uint64_t>(t)) >> 61;
    const auto branch = static_cast<std::uint64_t>(std::countr_zero(bits | 8));
    token = mix64(seed_ + token * 4 + branch) % vocab;
  }
}

Options SyntheticSource::options() {
  return Options()
      .integer("seed", "which chain; the run's seed if left out")
      .range(INT64_MIN, INT64_MAX)
      .optional()
      .integer("sequence", "tokens of one sample")
      .optional()
      .at_least(1)
      .unit("tokens")
      .choice("order", {"shuffled", "sequential"},
              "accepted for all data; an endless stream has one order")
      .fallback("shuffled");
}

SyntheticSource::SyntheticSource(const Values& values, const DataContext& context)
    : SyntheticSource(context.vocab, values.has("seed") ? values.integer("seed") : context.seed) {}

MESHWRIGHT_BUILT_IN(data<SyntheticSource>(
    "synthetic",
    "Endless tokens of a random Markov chain over the model's vocab: learnable "
    "down to a loss of 1.213 nats."));

}  // namespace mw
