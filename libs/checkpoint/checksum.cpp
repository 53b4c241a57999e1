// Computes checksums with the xxHash library, whose functions are compiled in here.
#include "checkpoint/checksum.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mw {

struct Checksum::State {
  XXH3_state_t sum;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->sum);
}

Checksum::~Checksum() = default;

void Checksum::add(const void* data, std::size_t size) {
  XXH3_64bits_update(&state_->sum, data, size);
}

std::string Checksum::text() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(&state_->sum));
}

std::string checksum_of(const void* data, std::size_t size) {
  return fmt::format("{:016x}", XXH3_64bits(data, size));
}

}  // namespace mw
