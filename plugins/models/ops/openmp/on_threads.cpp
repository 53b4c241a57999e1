// Shares work among threads. This file alone is compiled with OpenMP, without which ATen's header
// makes at::parallel_for a plain call.
#include "../on_threads.h"

#include <ATen/Parallel.h>

namespace mw::kernel {

void on_threads(std::int64_t count, std::int64_t least,
                c10::function_ref<void(std::int64_t begin, std::int64_t end)> work) {
// ThreadSanitizer does not see how OpenMP's threads wait for each other.
#if defined(__SANITIZE_THREAD__)
  if (count > 0) work(0, count);
#else
  at::parallel_for(0, count, least, work);
#endif
}

}  // namespace mw::kernel
