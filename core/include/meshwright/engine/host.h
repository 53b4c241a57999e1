// The machine that this process runs on: its CPU, the threads that kernels may use of
// it, its clock.
#pragma once

#include <chrono>
#include <ctime>
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

// Seconds of the clock that all threads of a process, and all processes of a machine, share.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds that a core worked, by such a clock of the system.
inline double core_seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The same of all threads of the process.
inline double cpu_seconds_now() {
  return core_seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

// Marks where a rank's thread waits for its accelerator on purpose. docs/gpu.md lists these places;
// anywhere else inside a step such a wait is a fault, which tests look for.
class HostWait {
 public:
  // `why`: as docs/gpu.md has it; a literal.
  explicit HostWait(const char* why);
  ~HostWait();
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

  // Why the calling thread waits; null where it does not.
  static const char* current();

 private:
  const char* const before_;
};

// Has the library of vector functions choose its kernels before several threads want them.
//
// The first call of exp, log, sqrt and their like, in float32 and float64, in this thread; once in
// a process, 1.4 ms. Before kernels run in more than one thread: oneMKL 2024, which libtorch has in
// it, chooses a function's kernel in the function's first call, and of two threads that make it at
// once one may be given a kernel of 11 bits (PyTorch's issue 188792). The numbers of that one call
// are then wrong in their fifth digit, and no later ones are.
void settle_vector_math();

}  // namespace mw
