// Checksums of files: XXH3 with 64 bits, as `xxhsum -H3` gives it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace mw {

// Computes the checksum of bytes that are added piece by piece.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void add(const void* data, std::size_t size);
  std::string text() const;  // 16 hex digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(const void* data, std::size_t size);

}  // namespace mw
