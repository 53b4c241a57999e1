// Which tokens a sample has, of a source that holds so many: as they lie, or shuffled by windows.
#pragma once

#include <cstdint>
#include <string>

#include "meshwright/error.h"

namespace mw {

// With S = sequence and N = tokens,
//   sequential: sample k takes the S + 1 tokens from offset (k * S) mod (N - S - 1);
//   shuffled:   the n = (N - 1) / S windows [w * S, w * S + S] each once per epoch; sample k takes
//               window P(k mod n), P a permutation that depends on the seed and on k / n.
class SampleOrder {
 public:
  SampleOrder(bool sequential, std::int64_t seed)
      : sequential_(sequential), seed_(static_cast<std::uint64_t>(seed)) {}

  // Of the first token of sample k.
  std::int64_t offset(std::int64_t k, std::int64_t sequence, std::int64_t tokens) const;
  // A problem of the key `path` if there are too few for one sample. `what` holds them: "a.txt".
  void check_length(std::int64_t tokens, std::int64_t sequence, const std::string& what,
                    Problems& problems) const;

 private:
  bool sequential_;
  std::uint64_t seed_;
};

}  // namespace mw
