// Kinds of files that hold neither bare tokens nor text, told by their first bytes.
#pragma once

#include <cstdint>
#include <string>

namespace mw {

// A format known by a file's first bytes, and how to make tokens or text of such a file.
struct KnownFormat {
  std::string name;  // "a file of numpy (.npy)"; empty: no format that is known
  std::string hint;
};
KnownFormat known_format(const std::uint8_t* data, std::int64_t size);

}  // namespace mw
