// Digests the bytes of mapped files, each file once in a process while nobody writes it.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

#include "checkpoint/mapped_file.h"
#include "meshwright/engine/hash.h"

namespace mw {
namespace {

constexpr std::int64_t block = 64 << 10;

// Four lanes of 64 bits, each multiplied and turned as in XXH64 (Collet): memory is what limits it.
class Lanes {
 public:
  void add(const std::uint8_t* bytes, std::int64_t size) {
    for (; size >= 32; size -= 32, bytes += 32) {
      std::uint64_t words[4];
      std::memcpy(words, bytes, sizeof words);
      for (int i = 0; i < 4; ++i) turn(lanes_[i], words[i]);
    }
    for (; size > 0; size -= 8, bytes += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes, static_cast<std::size_t>(std::min<std::int64_t>(8, size)));
      turn(lanes_[0], word);
    }
  }
  std::uint64_t value(std::int64_t size) const {
    auto value = static_cast<std::uint64_t>(size);
    for (const std::uint64_t lane : lanes_) value = mix64(value ^ lane);
    return value;
  }

 private:
  static void turn(std::uint64_t& lane, std::uint64_t word) {
    lane = std::rotl(lane + word * 0xC2B2AE3D27D4EB4Full, 31) * 0x9E3779B185EBCA87ull;
  }
  std::uint64_t lanes_[4] = {1, 2, 3, 4};
};

std::uint64_t digest_of(const std::uint8_t* data, std::int64_t size, std::int64_t most) {
  Lanes lanes;
  const std::int64_t blocks = std::max<std::int64_t>(2, most / block);
  if (size <= most || size < blocks * block) {
    lanes.add(data, size);
  } else {
    const double apart = static_cast<double>(size - block) / static_cast<double>(blocks - 1);
    for (std::int64_t i = 0; i < blocks; ++i)
      lanes.add(data + static_cast<std::int64_t>(static_cast<double>(i) * apart), block);
  }
  return lanes.value(size);
}

}  // namespace

std::uint64_t MappedFile::digest(std::int64_t most) const {
  static std::mutex mutex;
  using Known = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t>;
  static std::map<Known, std::uint64_t> known;
  const std::lock_guard lock(mutex);
  const auto [found, fresh] = known.try_emplace({device_, inode_, size_, written_, most});
  if (fresh) found->second = digest_of(data_, size_, most);
  check();
  return found->second;
}

}  // namespace mw
