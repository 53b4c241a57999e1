// Communicators that lists name though nobody may have registered them: threads, which are none,
// and those that are built where their library is.
#pragma once

#include <span>

namespace mw {

inline constexpr const char* by_itself = "threads";  // no communicator: each process by itself

struct ShippedCommunicator {
  const char* name;
  const char* doc;
  const char* how;  // it is built; null: it is in the program
};

std::span<const ShippedCommunicator> shipped_communicators();

}  // namespace mw
