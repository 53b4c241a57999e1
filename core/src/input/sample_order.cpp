// Finds a sample's offset: arithmetic in order, a permutation where it is shuffled.
#include "input/sample_order.h"

#include <fmt/core.h>

#include "base/hash.h"
#include "input/permutation.h"

namespace mw {

std::int64_t SampleOrder::offset(std::int64_t k, std::int64_t sequence, std::int64_t tokens) const {
  if (sequential_) return k * sequence % (tokens - sequence - 1);
  const std::int64_t windows = (tokens - 1) / sequence, epoch = k / windows;
  const Permutation shuffled(windows, mix64(seed_) ^ mix64(~static_cast<std::uint64_t>(epoch)));
  return static_cast<std::int64_t>(shuffled(k % windows)) * sequence;
}

void SampleOrder::check_length(std::int64_t tokens, std::int64_t sequence, const std::string& what,
                               Problems& problems) const {
  // Sequential offsets are taken mod (tokens - S - 1), which must not be zero.
  const std::int64_t beside = sequential_ ? 2 : 1;
  if (tokens >= sequence + beside) return;
  problems.add(
      Stage::options, "data.too-short", "path",
      fmt::format("{} holds {} tokens, one {} sample of sequence = {} needs {}", what, tokens,
                  sequential_ ? "sequential" : "shuffled", sequence, sequence + beside),
      tokens < 3 ? "give it a longer text"
                 : fmt::format("use a longer text, or sequence = {} or less", tokens - beside));
}

}  // namespace mw
