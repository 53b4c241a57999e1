// When an instruction of a program ran on a rank, or would: measured and predicted alike.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "meshwright/ledger.h"

namespace mw {

// Where the seconds of an instruction went, in a step of which an account is taken.
struct InstructionParts {
  double kernel = 0;   // in its op's kernel
  double sent = 0;     // in calls of communicators, which copy and wait
  double copied = 0;   // of that, copying on the rank's own thread; 0 where nobody knows
  double watched = 0;  // in the run's Watcher
  // How long the rank's thread had no core although it did not wait, since the last instruction
  // that says so began. Negative: it was not asked here.
  double away = -1;
};

struct InstructionTime {
  enum class Kind : std::uint8_t {
    own,       // the instruction, in the rank's own time
    wait,      // of that, what it spent waiting for a transfer
    transfer,  // what it began, from there until it was there
    copy_wait,  // what it spent waiting for a copy to or from host memory beside what the rank computes
    copy,
    on_host,  // predicted: what the host does itself, in its own order, beside the device
  };
  Kind kind = Kind::own;
  int segment = -1, index = -1, microbatch = -1;  // which of the program's
  double start = 0, end = 0;                      // seconds since the step began
  int inner = -1;                                 // of a ring: which of ring_steps()
  InstructionParts parts = {};
};

// What a rank held after an instruction, by category.
struct MemoryMoment {
  double time = 0;  // since the step began
  std::array<std::int64_t, category_count> bytes{};
};

// Instructions of a rank's step beyond which it is not recorded.
inline constexpr std::size_t most_instructions_recorded = 20000;

}  // namespace mw
