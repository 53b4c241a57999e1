// Memory that is freed and soon asked for again.
#pragma once

namespace mw {

// From now on the process keeps what it frees. What makes plans one after the other would else give
// their memory back to the kernel each time, and get pages of zeros again: a third of its time.
void keep_freed_memory();

}  // namespace mw
