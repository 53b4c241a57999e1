// Work that the threads of a rank share, as ATen's kernels share theirs.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace mw::kernel {

// Calls work(begin, end) for parts of 0 to `count`, each of `least` pieces or more, on as many
// threads as the calling rank has. It may ask at::get_thread_num() which of them it runs on.
void on_threads(std::int64_t count, std::int64_t least,
                c10::function_ref<void(std::int64_t begin, std::int64_t end)> work);

// Does so with rows of `columns` numbers. Few numbers are not worth a second thread.
inline void rows_on_threads(std::int64_t rows, std::int64_t columns,
                            c10::function_ref<void(std::int64_t begin, std::int64_t end)> work) {
  constexpr std::int64_t few = 32768;  // as in ATen's kernels (at::internal::GRAIN_SIZE)
  on_threads(rows, columns > 0 ? 1 + (few - 1) / columns : few, work);
}

}  // namespace mw::kernel
