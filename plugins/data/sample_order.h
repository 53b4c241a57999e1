// Chooses the tokens of a source that a sample has: consecutive tokens, or a window of a shuffled
// order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "meshwright/data.h"

namespace mw {

// A pseudo-random permutation of [0, size) that needs no table: a Feistel network over the next
// even number of bits, walked along its cycle until it falls into the range (Black and Rogaway
// 2002, "Ciphers with arbitrary finite domains"). For shuffling; not for secrets.
class Permutation {
 public:
  // `size` at least 1. Different keys give unrelated orders.
  Permutation(std::uint64_t size, std::uint64_t key);
  // The image of `index` < size. Takes at most four rounds of the network on average.
  std::uint64_t operator()(std::uint64_t index) const;

 private:
  std::uint64_t size_, key_, mask_;
  int half_bits_;
};

// The place of item k of `count` items that come in a shuffled order, another one in each epoch.
std::int64_t shuffled_place(std::int64_t k, std::int64_t count, std::uint64_t seed);

// Refuses a file that is given twice, by two names, patterns or links: its tokens would come twice
// in each epoch.
class EachFileOnce {
 public:
  void take(const std::filesystem::path& file, Problems& problems);

 private:
  // by device and inode
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::filesystem::path> taken_;
};

// With S = sequence and N = tokens of the source's part,
//   sequential: sample k takes the S + 1 tokens from offset (k * S) mod (N - S - 1);
//   shuffled:   the n = (N - 1) / S windows [w * S, w * S + S] each once per epoch; sample k takes
//               window P(k mod n), P a permutation that depends on the seed and on k / n.
class SampleOrder {
 public:
  // Adds `order`, `part` and `sequence` to a source's options.
  static void add_options(Options& options);
  SampleOrder(const Values& values, const DataContext& context);

  // Says which of `all` tokens `part` selects, once they are counted. Adds problems of the keys
  // `part`, and `path` if there are too few for one sample. `what` holds the tokens: "a.txt".
  void take(std::int64_t all, const std::string& what, Problems& problems);
  std::int64_t tokens() const { return tokens_; }
  std::int64_t sequence() const { return sequence_; }
  // The place of sample k's first token among all tokens of the source.
  std::int64_t offset(std::int64_t k, std::int64_t sequence) const;

 private:
  bool sequential_;
  std::uint64_t seed_;
  std::int64_t sequence_;
  Json part_;  // the option `part` as the script has it; null: all tokens
  std::int64_t first_ = 0, tokens_ = 0;
};

}  // namespace mw
