// Which CPU this is, and what the libraries' kernels may use of it.
#pragma once

#include <string>

namespace mw {

std::string cpu_model();  // "AMD EPYC 9354"
int core_count();         // at least 1

// Threads that OpenMP gives a rank at most: OMP_THREAD_LIMIT, else no limit. Kernels that share
// work among more threads than they get leave some of it out (oneDNN's, in bf16), so nobody may ask
// for more.
int thread_limit();
void keep_thread_limit();  // where this thread's kernels, and those of threads to come, would

// Threads that the kernels of each of `ranks` ranks have where these share a machine: what was
// asked for (0: nothing), or the machine's cores over the ranks, at least one; within the limit.
int threads_of_rank(int ranks, int asked, int cores = core_count());

// What decides which kernels run: model and features, the instruction sets that the environment
// keeps libraries to, and torch's version. What is measured of kernels holds for one of these.
std::string kernels_key();

}  // namespace mw
