// `mw.synthetic`: endless tokens that are made from a seed, cost no file and can be learned.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <numeric>

#include "meshwright/data.h"
#include "meshwright/engine/hash.h"
#include "meshwright/inputs.h"
#include "meshwright/plugin.h"

namespace mw {

namespace {

// A random Markov chain. Each id has four successors, chosen by the seed, taken with probability
// 1/2, 1/4, 1/8 and 1/8. A model that has learned it reaches a mean loss of at most 1.75 ln 2
// = 1.213 nats (less where successors of an id coincide, as they must in a tiny vocab). Sample k is
// a function of (seed, k).
class SyntheticSource final : public TokenSource, public InputSource {
 public:
  static Options options();
  SyntheticSource(std::int64_t vocab, std::int64_t seed);
  SyntheticSource(const Values& values, const DataContext& context);
  std::int64_t vocab() const override { return vocab_; }
  std::int64_t tokens() const override { return 0; }
  bool masks_labels() const override { return masked_ > 0; }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;
  // Inputs are noise: reals are normal, indices are uniform.
  std::string lacks(const DataInput&) const override { return {}; }
  void reals(const DataInput& input, std::int64_t k, float* reals) const override;
  void indices(const DataInput& input, std::int64_t k, std::int64_t* indices) const override;

 private:
  // A random number that belongs to sample k of an input.
  std::uint64_t stream_of(const DataInput& input, std::int64_t k) const;

  std::int64_t vocab_;
  std::uint64_t seed_;
  double masked_ = 0;  // the share of labels that count nothing
};

std::int64_t elements_of(const DataInput& input) {
  return std::accumulate(input.shape.begin(), input.shape.end(), std::int64_t{1},
                         std::multiplies<>());
}

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
  // The share of a sample is uniform between two shares whose mean is the option's.
  const double least = std::max(0.0, 2 * masked_ - 1), most = std::min(1.0, 2 * masked_);
  const double uniform = static_cast<double>(mix64(stream ^ seed_) >> 11) / 0x1p53;
  const auto prompt = static_cast<std::int64_t>(
      std::lround((least + (most - least) * uniform) * static_cast<double>(sequence)));
  std::transform(labels, labels + prompt, labels, [](std::int64_t id) { return -1 - id; });
}

std::uint64_t SyntheticSource::stream_of(const DataInput& input, std::int64_t k) const {
  Fnv1a<std::uint64_t> name;
  name.add(input.name.data(), input.name.size());
  return mix64(seed_ ^ name.value() ^ mix64(static_cast<std::uint64_t>(k)));
}

// Pairs of normal numbers from pairs of uniform ones (Box and Muller 1958).
void SyntheticSource::reals(const DataInput& input, std::int64_t k, float* reals) const {
  const std::uint64_t stream = stream_of(input, k);
  const std::int64_t count = elements_of(input);
  for (std::int64_t i = 0; i < count; i += 2) {
    const std::uint64_t bits = mix64(stream + static_cast<std::uint64_t>(i));
    const double above_zero = (static_cast<double>(bits >> 32) + 1) / 4294967296.0;
    const double angle =
        2 * std::numbers::pi * static_cast<double>(bits & 0xffffffff) / 4294967296.0;
    const double radius = std::sqrt(-2 * std::log(above_zero));
    reals[i] = static_cast<float>(radius * std::cos(angle));
    if (i + 1 < count) reals[i + 1] = static_cast<float>(radius * std::sin(angle));
  }
}

void SyntheticSource::indices(const DataInput& input, std::int64_t k, std::int64_t* indices) const {
  const std::uint64_t stream = stream_of(input, k);
  const auto below = static_cast<std::uint64_t>(input.below);
  for (std::int64_t i = 0, count = elements_of(input); i < count; ++i)
    indices[i] = static_cast<std::int64_t>(mix64(stream + static_cast<std::uint64_t>(i)) % below);
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
      .number("masked",
              "the share of labels that count nothing, on average over the samples: the first ones "
              "of each, as those of a prompt")
      .range(0, 1)
      .fallback(0.0)
      .choice("order", {"shuffled", "sequential"},
              "accepted for all data; an endless stream has one order")
      .fallback("shuffled");
}

SyntheticSource::SyntheticSource(const Values& values, const DataContext& context)
    : SyntheticSource(context.vocab, values.has("seed") ? values.integer("seed") : context.seed) {
  masked_ = values.number("masked");
}

}  // namespace

MESHWRIGHT_BUILT_IN(data<SyntheticSource>(
    "synthetic",
    "Endless tokens of a random Markov chain over the model's vocab: learnable "
    "down to a loss of 1.213 nats."));

}  // namespace mw
