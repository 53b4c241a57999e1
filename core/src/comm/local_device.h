// Rounds of thread ranks that share one accelerator: ATen ops on views of the ranks' buffers,
// ordered by events between the ranks' streams. Device-generic; not exercised where there is no
// device.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <span>

#include "meshwright/backend.h"

namespace mw::comm {

c10::Event record_event(at::Device device);  // on the current stream of this thread
void block_current_stream(const c10::Event& event, at::Device device);

// As Round's chunks on the host, all at once on the current stream.
void run_task_on_device(at::ScalarType dtype, Combine combine, at::Device device,
                        std::span<const std::byte* const> in, std::span<std::byte* const> out,
                        std::int64_t elements);

}  // namespace mw::comm
