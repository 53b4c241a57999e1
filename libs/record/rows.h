// The rows of a run file's tables. Times in seconds, sizes in bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace mw {

inline constexpr double not_known = std::numeric_limits<double>::quiet_NaN();
inline constexpr std::int64_t no_bytes = -1;  // a prediction that was not made

// Numbers that do not exist for a step (no clipping: still a norm; no pipeline: no bubble) are NaN.
struct StepRow {
  std::int64_t step = 0;
  double seconds = not_known;  // the step's own time
  double loss = not_known;
  double grad_norm = not_known;
  double lr = not_known;
  std::int64_t tokens = 0;  // of this step, over all ranks
  double tokens_per_second = not_known;
  double mfu = not_known;              // 0..1
  double bubble = not_known;           // 0..1
  double cpu_seconds = not_known;      // of cores, of all ranks
  double others_cores = not_known;     // that other programs had meanwhile (common/core_meter.h)
  double throttled_cores = not_known;  // that a limit of the control group kept from the run
  double clock = not_known;            // of the cores, in Hz
};

struct MemoryRow {
  std::int32_t rank = 0, stage = 0;
  std::string category;
  std::int64_t bytes = 0, peak_bytes = 0, predicted_bytes = no_bytes;  // predicted: the peak
};

// All categories together. A peak is less than the sum of theirs, which come at other moments.
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
  std::string op, piece;  // an op's kind; "forward", "backward", "dgrad", "wgrad"
  std::int64_t calls = 0;
  double flops = 0;  // done by the kernels
  double seconds = not_known;
};

struct ExpertRow {
  std::int64_t step = 0;
  std::int32_t layer = 0, expert = 0;
  std::int64_t chosen = 0, taken = 0;  // choices of tokens; those that it worked on
};

struct ActionRow {
  std::int64_t step = 0;
  std::int32_t rank = 0, stage = 0, chunk = 0;
  std::string action;           // "F", "B", "I", "W", "receive F", ..., "finish"
  std::int32_t microbatch = 0;  // of "finish": -1
  double start = 0, end = 0;    // since the step began
};

// What a step that is traced did: an op, what a rank waited for, or a transfer under way.
struct SpanRow {
  std::int64_t step = 0;  // of the prediction: -1
  std::int32_t rank = 0, stage = 0;
  std::string kind;              // "op", "wait", "transfer"
  std::string axis;              // of a transfer, and of what waits for one
  std::string name, phase;       // "linear forward"; "all-reduce"
  std::string label;             // what it serves: an op, a value, a bucket
  std::int32_t microbatch = -1;  // -1: of none
  double start = 0, end = 0;     // since the step began
  std::int64_t bytes = 0;        // that a transfer sends
};

// What a rank held at a moment of a traced step, by category.
struct SpanMemoryRow {
  std::int64_t step = 0;
  std::int32_t rank = 0;
  double time = 0;  // since the step began
  std::int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0, host = 0;
};

// Where the seconds of a step went on a rank, as far as `name` and `shape` took them: sums over the
// calls of the step. Rows of a rank add up to its step, but for those of the parts "beside".
struct AccountRow {
  std::int64_t step = 0;
  std::int32_t rank = 0, stage = 0;
  std::string part;   // "products", "memory", "copies", "waits", "no core", "engine", ...
  std::string name;   // "linear dgrad"; "dp all-reduce, gradients"; "log"
  std::string shape;  // of a product's operands: "512x128, 352x128"
  std::int64_t calls = 0;
  double seconds = 0;
  double flops = 0, bytes = 0;  // done by the kernels; read and written
  // What the machine takes for it: the same products alone, the bytes at the rate of copies. NaN:
  // it was not measured; 0: no work is asked for.
  double limit_seconds = not_known;
};

// How fast ranks read and write memory, before the first step.
struct BandwidthRow {
  std::string kind;                     // "copy", "triad"
  std::int32_t ranks = 1;               // at once
  std::int64_t bytes = 0;               // read and written by one of them in a pass
  double bytes_per_second = not_known;  // of one of them
};

// What happened to a run: why it ended as it did, and what a reader of its numbers has to know.
struct EventRow {
  double time = 0;         // since the run file was created
  std::int64_t step = -1;  // in which it happened; -1: in none
  std::int32_t rank = -1;  // on which; -1: on none, or on all
  std::string kind;        // "diverged", "recovered", "skipped", "interrupted", "failed"
  std::string message;
};

}  // namespace mw
