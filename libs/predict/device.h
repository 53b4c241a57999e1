// The speed of this machine's cores, measured once and kept in the user's cache folder: the
// roofline by which instructions are priced where ranks are threads of this machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "meshwright/json.h"
#include "predict/log_curve.h"

namespace mw {

// A GEMM of f operations takes overhead + f / rate seconds on one core (or device).
struct GemmFit {
  double rate = 0;
  double overhead = 0;
};

struct Device {
  std::string name;
  GemmFit gemm16, gemm32, gemm64;  // by an element's bits; 16: bf16
  double pointwise16 = 0, pointwise32 = 0,
         pointwise64 = 0;  // elementwise operations a second, in cache, one core
  // Shares of gemm32's rate that attention's kernel reaches, by the size of a head. An empty curve
  // means 1.
  LogCurve attention, attention_backward;
  double bandwidth = 0;  // bytes read and written a second, one core
  // Bytes read and written a second by each core while all cores copy.
  double bandwidth_at_once = 0;
  double own_cache = 0;    // bytes of a core's own cache; 0: not known
  double op_overhead = 0;  // seconds of a call that does nothing
  double latency = 0;      // seconds for one rank to wake another (latency of a collective's step)
  int cores = 1;
  double all_cores = 1;     // rate of one core while all are busy, over its rate alone
  std::int64_t memory = 0;  // bytes, of the whole machine
  double others = 0;        // cores that other programs used during the measurement; NaN: not known

  const GemmFit& gemm(int element) const {
    return element == 8 ? gemm64 : element == 4 ? gemm32 : gemm16;
  }
  double pointwise(int element) const {
    return element == 8 ? pointwise64 : element == 4 ? pointwise32 : pointwise16;
  }
  // Threads that each of `ranks` ranks computes with: see threads_of_rank.
  int threads_of(int ranks, int asked) const;
  // Highest GEMM rate of `ranks` ranks together: what MFU is a fraction of.
  double peak(int ranks, int element, int threads = 0) const;

  Json to_json() const;
  // Throws if a key is missing or not a positive number.
  static Device from_json(const Json& json);
};

// Measures this machine; takes about 0.3 s on one core and all of them for a moment.
Device measure_device();

// This machine as measured, from the cache in `folder` if it was measured before with this CPU and
// torch. If the cache cannot be read, the machine is measured anew; if it cannot be written, the
// measurement is not kept. A measurement during which other programs were busy (are_busy) is
// repeated by the next process that asks, and the one with fewer of their cores is kept.
Device this_device(const std::filesystem::path& folder);
// This machine, with its cache in $XDG_CACHE_HOME/meshwright or ~/.cache/meshwright; measured or
// read once per process.
const Device& this_device();

// Bytes of memory that this process may use: the machine's, or fewer where the process' control
// group (versions 1 and 2, and the groups around it: what containers and job schedulers set) or
// `ulimit -v` limits it. It does not depend on what is free at the moment, so it is the same in
// every run. `root`: root of the file system, for tests; the limits of the process itself count
// only for "/".
std::int64_t machine_memory(const std::filesystem::path& root = "/");

}  // namespace mw
