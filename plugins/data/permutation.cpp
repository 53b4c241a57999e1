// Shuffles [0, size) without a table, by a Feistel network that is walked until it falls into
// the range.
#include "permutation.h"

#include <bit>

#include "meshwright/engine/hash.h"

namespace mw {

Permutation::Permutation(std::uint64_t size, std::uint64_t key) : size_(size), key_(key) {
  const int bits = std::bit_width(size - 1);
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  mask_ = (std::uint64_t{1} << half_bits_) - 1;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  constexpr int rounds = 6;
  do {
    std::uint64_t left = index >> half_bits_, right = index & mask_;
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t next = left ^ (mix64(key_ + mix64(right * rounds + round)) & mask_);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

}  // namespace mw
