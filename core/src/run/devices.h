// Assigns devices to ranks, and checks that a platform has any.
#pragma once

#include "meshwright/platform.h"

namespace mw {

// Loads the platform. Throws Error (environment) with the key `device` if this process has no such
// device. For the thread that reads scripts, before ranks start.
void check_devices(const Platform& platform);

// Ranks of a machine take its devices in turn: where they are more than devices, some share one.
// `local`: which rank of the machine, from 0 on.
at::Device device_of(const Platform& platform, int local);

}  // namespace mw
