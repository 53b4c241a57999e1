// A pseudo-random permutation of [0, size) that needs no table: a Feistel network over the next
// even number of bits, walked along its cycle until it falls into the range (Black and Rogaway
// 2002, "Ciphers with arbitrary finite domains"). For shuffling; not for secrets.
#pragma once

#include <cstdint>

namespace mw {

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

}  // namespace mw
