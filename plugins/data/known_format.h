// Kinds of files that hold neither bare tokens nor text, told by their first bytes.
#pragma once

#include <cstdint>
#include <string>

namespace mw {

// What the bytes begin as, and how to make tokens or text of it.
struct KnownFormat {
  std::string name;  // "a file of numpy (.npy)"; empty: nothing that is known
  std::string hint;
};
KnownFormat known_format(const std::uint8_t* data, std::int64_t size);

}  // namespace mw
