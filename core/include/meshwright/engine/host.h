// The machine on which this process runs: its CPU, the number of threads for kernels, its clocks.
#pragma once

#include <chrono>
#include <ctime>
#include <string>

namespace mw {

std::string cpu_model();  // "AMD EPYC 9354"
int core_count();         // at least 1

// The most threads that OpenMP gives a rank: OMP_THREAD_LIMIT, else no limit. No kernel may ask for
// more: a kernel that divides work among more threads than it gets leaves some of the work out
// (oneDNN's, in bf16). Throws Error (environment) if OMP_THREAD_LIMIT is no number of threads.
int thread_limit();
// Lowers torch's thread count, for this thread and threads to come, to thread_limit() and the
// number of cores.
void keep_thread_limit();

// Threads for the kernels of each of `ranks` ranks that share a machine: `asked`, or, if that is 0,
// the machine's cores divided by the ranks, at least one; at most thread_limit().
int threads_of_rank(int ranks, int asked, int cores = core_count());

// A key of all that decides which kernels run: CPU model and features, the instruction sets to
// which environment variables limit libraries, and the version of torch. Measurements of kernels
// are valid for one key.
std::string kernels_key();

// Seconds of the steady clock, which all threads and processes of a machine share.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of CPU time, by a clock such as CLOCK_THREAD_CPUTIME_ID.
inline double core_seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Seconds of CPU time of all threads of the process.
inline double cpu_seconds_now() {
  return core_seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

// Marks a place where a rank's thread waits for its accelerator on purpose. docs/gpu.md lists these
// places. A wait anywhere else inside a step is a fault, for which tests look.
class HostWait {
 public:
  // `why`: the reason, as docs/gpu.md has it; a string literal.
  explicit HostWait(const char* why);
  ~HostWait();
  HostWait(const HostWait&) = delete;
  HostWait& operator=(const HostWait&) = delete;

  // The reason why the calling thread waits; null if no HostWait lives on it.
  static const char* current();

 private:
  const char* const before_;
};

// Makes oneMKL choose its kernels for exp, log, sqrt and other vector functions, in float32 and
// float64, by calling each of them once in this thread; takes 1.4 ms, once in a process. Must be
// called before kernels run in several threads. oneMKL 2024, a part of libtorch, chooses a
// function's kernel in the first call of the function. If two threads make this call at the same
// time, one of them may get a kernel with 11 bits (PyTorch issue 188792), whose results are wrong
// in the fifth digit in this one call.
void settle_vector_math();

}  // namespace mw
