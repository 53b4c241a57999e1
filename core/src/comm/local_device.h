// Rounds of thread ranks whose tensors lie on accelerators, one that they share or several: ATen
// ops on views of the ranks' buffers.
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "meshwright/backend.h"

namespace mw::comm {

// As Round's chunks on the host, all at once on the current streams of the devices on which the
// buffers lie. What it allocates for itself is booked to no rank: whichever came last calls it.
void run_task_on_device(at::ScalarType dtype, Combine combine, at::DeviceType type,
                        std::span<const std::byte* const> in, std::span<std::byte* const> out,
                        std::int64_t elements);

}  // namespace mw::comm
