// Memory that is freed and soon asked for again.
#pragma once

namespace mw {

// From now on the process keeps what it frees; for main(). A step frees what the next one allocates
// again, and so do plans made one after the other. By default glibc hands big blocks back to the
// system at once and faults every page in anew: 6 to 8 % of a small model's CPU time, a third of
// what a plan takes. 32 MiB is the largest threshold that it takes; the padding is what a thread's
// heap keeps.
void keep_freed_memory();

}  // namespace mw
