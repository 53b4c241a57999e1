// Tells the C library's allocator to keep freed memory, where it can be told.
#include "common/heap.h"

#include <malloc.h>

#include <cstdlib>
#include <cstring>

namespace mw {

void keep_freed_memory() {
#ifdef __GLIBC__
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables != nullptr && std::strstr(tunables, "glibc.malloc.mmap_threshold") != nullptr) {
    return;  // the user knows better
  }
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace mw
