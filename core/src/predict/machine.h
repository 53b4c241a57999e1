// What a device can do: the roofline that instructions are priced with. This machine's is measured
// once and kept in the user's cache folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "meshwright/json.h"

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
  double bandwidth = 0;    // bytes read and written a second, one core
  double op_overhead = 0;  // seconds of a call that does nothing
  double latency = 0;      // seconds for one rank to wake another (latency of a collective's step)
  // Ranks that are threads of one machine share its cores and memory, and copy their messages
  // themselves: nothing overlaps. 0: every rank has a device of its own, `link` to the others, and
  // transfers run beside compute.
  int cores = 1;
  double all_cores = 1;     // rate of one core while all are busy, over its rate alone
  double link = 0;          // bytes a second
  double host = 0;          // of a host's memory, where what is offloaded is updated; 0: as `link`
  std::int64_t memory = 0;  // bytes; of the whole machine if cores are shared

  bool shared() const { return cores > 0; }
  const GemmFit& gemm(int element) const {
    return element == 8 ? gemm64 : element == 4 ? gemm32 : gemm16;
  }
  double pointwise(int element) const {
    return element == 8 ? pointwise64 : element == 4 ? pointwise32 : pointwise16;
  }
  // Threads that each of `ranks` ranks computes with: see threads_of_rank where ranks share the
  // cores; one on a device of the rank's own.
  int threads_of(int ranks, int asked) const;
  // Highest GEMM rate of `ranks` ranks together: what MFU is a fraction of.
  double peak(int ranks, int element, int threads = 0) const;

  Json to_json() const;
  // Throws if a key is missing or not a positive number.
  static Device from_json(const Json& json);
};

// Measures this machine; takes about 0.25 s on one core and all of them for a moment.
Device measure_device();

// This machine, from the cache if it was measured before with this CPU and torch. A cache that
// cannot be read is measured anew; one that cannot be written is not.
Device this_device(const std::filesystem::path& folder);
// ... in $XDG_CACHE_HOME/meshwright or ~/.cache/meshwright; measured or read once a process.
const Device& this_device();

}  // namespace mw
