// The rows of a run file's tables. Times in seconds, sizes in bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace mw {

inline constexpr double not_known = std::numeric_limits<double>::quiet_NaN();
inline constexpr std::int64_t no_bytes = -1;  // no prediction was made

// A row of /steps. A number that does not exist for a step is NaN, such as the bubble without a
// pipeline.
struct StepRow {
  std::int64_t step = 0;
  double seconds = not_known;  // the step's own time
  double loss = not_known;
  double grad_norm = not_known;
  double lr = not_known;
  std::int64_t tokens = 0;  // tokens of this step, over all ranks
  double tokens_per_second = not_known;
  double mfu = not_known;           // 0..1
  double bubble = not_known;        // 0..1
  double cpu_seconds = not_known;   // core-seconds of all ranks
  double others_cores = not_known;  // cores that other programs had meanwhile (common/core_meter.h)
  double throttled_cores = not_known;  // cores that a limit of the control group kept from the run
  double clock = not_known;            // mean clock rate of the cores, in Hz
};

struct MemoryRow {
  std::int32_t rank = 0, stage = 0;
  std::string category;
  std::int64_t bytes = 0, peak_bytes = 0, predicted_bytes = no_bytes;  // predicted_bytes: the peak
};

// All categories together. The peak is below the sum of the categories' peaks, which come at other
// moments.
struct RankMemoryRow {
  std::int32_t rank = 0, stage = 0;
  std::int64_t bytes = 0, peak_bytes = 0, predicted_bytes = no_bytes;
};

struct CommunicationRow {
  std::int64_t step = 0;
  std::int32_t rank = 0;
  std::string axis, op, phase;
  std::int64_t calls = 0, bytes = 0;
  double seconds = not_known;
  std::int64_t predicted_bytes = no_bytes;
  double predicted_seconds = not_known;
};

struct WorkRow {
  std::int64_t step = 0;
  std::int32_t rank = 0, stage = 0;
  std::string op, piece;  // kind of the op; "forward", "backward", "dgrad", "wgrad"
  std::int64_t calls = 0;
  double flops = 0;  // flops done by the kernels
  double seconds = not_known;
};

struct ExpertRow {
  std::int64_t step = 0;
  std::int32_t layer = 0, expert = 0;
  std::int64_t chosen = 0, taken = 0;  // tokens that chose the expert; tokens that it computed
};

struct ActionRow {
  std::int64_t step = 0;
  std::int32_t rank = 0, stage = 0, chunk = 0;
  std::string action;           // "F", "B", "I", "W", "receive F", ..., "finish"
  std::int32_t microbatch = 0;  // -1 for "finish"
  double start = 0, end = 0;    // seconds since the step began
};

// A span of a traced step: an op, a wait of the rank, or a transfer under way.
struct SpanRow {
  std::int64_t step = 0;  // -1 for the prediction
  std::int32_t rank = 0, stage = 0;
  std::string kind;              // "op", "wait", "transfer"
  std::string axis;              // axis of a transfer, and of a wait for one
  std::string name, phase;       // "linear forward"; "all-reduce"
  std::string label;             // op, value or bucket that the span serves
  std::int32_t microbatch = -1;  // -1: of no microbatch
  double start = 0, end = 0;     // seconds since the step began
  std::int64_t bytes = 0;        // bytes that a transfer sends
};

// The bytes that a rank held at a moment of a traced step, by category.
struct SpanMemoryRow {
  std::int64_t step = 0;
  std::int32_t rank = 0;
  double time = 0;  // seconds since the step began
  std::int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0, host = 0;
};

// The seconds of a step that a rank spent in the calls with one `name` and `shape`. A rank's rows
// add up to its step, but for those of the part "beside".
struct AccountRow {
  std::int64_t step = 0;
  std::int32_t rank = 0, stage = 0;
  std::string part;   // "products", "memory", "copies", "waits", "no core", "engine", ...
  std::string name;   // "linear dgrad"; "dp all-reduce, gradients"; "log"
  std::string shape;  // shapes of a product's operands: "512x128, 352x128"
  std::int64_t calls = 0, kernels = 0;  // instructions, and kernels that they started
  double seconds = 0;
  double flops = 0, bytes = 0;  // flops done by the kernels; bytes read and written
  // The seconds that the machine needs for the work: for the same products alone, for the bytes at
  // the rate of copies. NaN: not measured; 0: there is no work to do.
  double limit_seconds = not_known;
};

// How fast ranks read and write memory, as measured before the first step.
struct BandwidthRow {
  std::string kind;                     // "copy", "triad"
  std::int32_t ranks = 1;               // ranks that run at once
  std::int64_t bytes = 0;               // bytes that one rank reads and writes in a pass
  double bytes_per_second = not_known;  // rate of one rank
};

// An event of a run: why it ended as it did, or what a reader of its numbers has to know.
struct EventRow {
  double time = 0;         // seconds since the run file was created
  std::int64_t step = -1;  // step in which it happened; -1: in none
  std::int32_t rank = -1;  // rank on which it happened; -1: on none, or on all
  std::string kind;        // "diverged", "recovered", "skipped", "interrupted", "failed"
  std::string message;
};

}  // namespace mw
