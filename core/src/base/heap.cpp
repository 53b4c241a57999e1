// Tells the C library's allocator to keep freed memory, where it can be told.
#include "base/heap.h"

#include <malloc.h>

namespace mw {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int most = 1 << 30;
  ::mallopt(M_TRIM_THRESHOLD, most);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 25);  // the highest it takes
  ::mallopt(M_TOP_PAD, 1 << 24);
#endif
}

}  // namespace mw
