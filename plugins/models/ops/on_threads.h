// Shares work among the threads of a rank, as ATen's kernels do.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace mw::kernel {

// Calls work(begin, end) for parts of the range from 0 to `count`, each of `least` items or more,
// on as many threads as the calling rank has. `work` may ask at::get_thread_num() for its thread.
void on_threads(std::int64_t count, std::int64_t least,
                c10::function_ref<void(std::int64_t begin, std::int64_t end)> work);

// Shares rows of `columns` numbers among threads. Few numbers are not worth a second thread.
inline void rows_on_threads(std::int64_t rows, std::int64_t columns,
                            c10::function_ref<void(std::int64_t begin, std::int64_t end)> work) {
  constexpr std::int64_t few = 32768;  // ATen's at::internal::GRAIN_SIZE
  on_threads(rows, columns > 0 ? 1 + (few - 1) / columns : few, work);
}

}  // namespace mw::kernel
