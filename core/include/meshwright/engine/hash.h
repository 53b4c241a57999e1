// Hashes that are the same in every run and on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace mw {

// FNV-1a over bytes. Word: std::uint32_t or std::uint64_t. Bytes may be added in any pieces.
template <typename Word>
class Fnv1a {
  static_assert(std::is_same_v<Word, std::uint32_t> || std::is_same_v<Word, std::uint64_t>);
  static constexpr bool wide = sizeof(Word) == 8;

 public:
  void add(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) value_ = (value_ ^ bytes[i]) * prime;
  }
  Word value() const { return value_; }

 private:
  static constexpr auto prime = static_cast<Word>(wide ? 1099511628211ull : 16777619ull);
  Word value_ = static_cast<Word>(wide ? 14695981039346656037ull : 2166136261ull);
};

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection that mixes all 64 bits.
constexpr std::uint64_t finalise64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
// The output of SplitMix64 for the state `x`.
constexpr std::uint64_t mix64(std::uint64_t x) {
  return finalise64(x + 0x9e3779b97f4a7c15u);
}

}  // namespace mw
