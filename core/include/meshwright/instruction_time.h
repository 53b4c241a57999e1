// The times of instructions of a rank's step, measured or predicted.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "meshwright/ledger.h"

namespace mw {

// How an instruction spent its seconds, in a step of which an account is taken.
struct InstructionParts {
  double kernel = 0;   // seconds in the op's kernel
  double sent = 0;     // seconds in calls of communicators, which copy and wait
  double copied = 0;   // part of `sent`: copying on the rank's own thread; 0 if not known
  double watched = 0;  // seconds in the run's Watcher
  // Seconds in which the rank's thread had no core although it did not wait, since the start of the
  // last instruction that measured this. Negative: not measured at this instruction.
  double away = -1;
  std::int64_t kernels = 0;  // kernels that the rank's thread started (KernelMeter)
};

struct InstructionTime {
  enum class Kind : std::uint8_t {
    own,        // the instruction, in the rank's own time
    wait,       // part of `own`: waiting for a transfer
    transfer,   // the transfer that the instruction began, until it arrived
    copy_wait,  // part of `own`: waiting for an asynchronous copy to or from host memory
    copy,       // the asynchronous copy that the instruction began
    on_host,    // predicted: the host's own work, which runs in order beside the device
  };
  Kind kind = Kind::own;
  int segment = -1, index = -1, microbatch = -1;  // the instruction: code[index] of the segment
  double start = 0, end = 0;                      // seconds since the step began
  int inner = -1;                                 // in a ring: index into ring_steps()
  InstructionParts parts = {};
};

// The bytes that a rank held after an instruction, by category.
struct MemoryMoment {
  double time = 0;  // seconds since the step began
  std::array<std::int64_t, category_count> bytes{};
};

// The most instructions of a rank's step that a trace records; an account records all.
inline constexpr std::size_t most_instructions_recorded = 20000;

}  // namespace mw
