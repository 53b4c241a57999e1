// Books each allocation and free of a rank's thread in the ledger, and reports a lack of memory by
// an error code of its own. libtorch's allocators report to a profiler of the thread. But the CPU
// allocator then keeps the sizes of the blocks of all threads in one table behind one lock, for
// which ranks would wait. So tensors on the CPU come from an allocator without that table.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <mutex>
#include <new>
#include <utility>

#include "comm/streams.h"
#include "meshwright/error.h"
#include "meshwright/ledger.h"

namespace mw {
namespace {

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* pointer = nullptr;
    try {
      pointer = c10::alloc_cpu(bytes);
    } catch (const c10::Error&) {
      c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), 0, 0, c10::kCPU);
      throw;
    }
    if (pointer != nullptr && bytes > 0)
      c10::reportMemoryUsageToProfiler(pointer, static_cast<std::int64_t>(bytes), 0, 0, c10::kCPU);
    return {pointer, pointer, &free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free(void* pointer) {
    if (pointer == nullptr) return;
    // The size is not needed: the ledger knows it.
    c10::reportMemoryUsageToProfiler(pointer, -1, 0, 0, c10::kCPU);
    c10::free_cpu(pointer);
  }
};

// Sets the CPU allocator of the whole process. Blocks of the allocator before are still freed by
// that one.
void use_cpu_allocator() {
  constexpr std::uint8_t above_the_default = 1;
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(new CpuAllocator, above_the_default); });
}

class Reporter final : public c10::MemoryReportingInfoBase {
 public:
  explicit Reporter(Ledger& ledger) : ledger_(ledger) {}

  void reportMemoryUsage(void* pointer, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (bytes < 0) {
      ledger_.freed(pointer);
    } else if (bytes == 0 || device.type() != rank_device().type()) {
      return;  // no memory, or host memory of a rank on an accelerator
    } else if (!device.is_cpu()) {
      ledger_.allocated_past_limit(pointer, bytes);
    } else {
      try {
        ledger_.allocated(pointer, bytes);
      } catch (...) {
        // The allocator reports a block before a tensor owns it, so that it would leak here.
        c10::free_cpu(pointer);
        throw;
      }
    }
  }

  // The CPU allocator calls this before it throws an error that differs from others only in its
  // text. Allocators of accelerators throw c10::OutOfMemoryError, which problem_of() knows.
  void reportOutOfMemory(std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (!device.is_cpu()) return;
    Problem problem = problem_of(std::bad_alloc());
    problem.message += fmt::format(": {} bytes more", bytes);
    throw Error(std::move(problem));
  }

  bool memoryProfilingEnabled() const override { return true; }
  Ledger& ledger() const { return ledger_; }

 private:
  Ledger& ledger_;
};

}  // namespace

struct MemoryWatch::State {
  explicit State(Ledger& ledger)
      : guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Reporter>(ledger)) {}
  c10::DebugInfoGuard guard;
};

MemoryWatch::MemoryWatch(Ledger& ledger) : state_(std::make_unique<State>(ledger)) {
  use_cpu_allocator();
}
MemoryWatch::~MemoryWatch() = default;

Ledger* ledger_of_thread() {
  const auto* reporter = dynamic_cast<const Reporter*>(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
  return reporter == nullptr ? nullptr : &reporter->ledger();
}

}  // namespace mw
