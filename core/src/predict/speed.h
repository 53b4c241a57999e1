// How fast one of several ranks is on a device.
#pragma once

#include "predict/machine.h"
#include "program/footprint.h"

namespace mw {

struct Speed {
  GemmFit gemm;
  double pointwise = 0, bandwidth = 0, overhead = 0;
  double stretch = 1;  // ranks that share a core take turns on it
};

// The speed of one of `ranks` ranks that compute with reals of `element` bytes. `threads`: what was
// asked for; 0: nothing.
Speed speed_of(const Device& device, int ranks, int element, int threads);

// Seconds of a collective, send or receive of such a rank.
// `stage_atom`: that of the pipeline; -1: none.
double transfer_seconds(const Transfer& transfer, const Device& device, const Speed& speed,
                        int stage_atom);

}  // namespace mw
