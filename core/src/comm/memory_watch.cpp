// Hears of each allocation and free of a rank's thread, books it in the ledger, and says by a code
// of its own when there is no memory for one. libtorch's allocators of accelerators report what
// they do to whoever profiles the thread. Its allocator of the CPU does so too, but then keeps the
// size of each block of all threads in one table behind one lock, at which ranks wait for each
// other. So a rank's tensors on the CPU come from an allocator without that table.
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
    // The ledger knows how many bytes they were.
    c10::reportMemoryUsageToProfiler(pointer, -1, 0, 0, c10::kCPU);
    c10::free_cpu(pointer);
  }
};

// From now on for the whole process: what another allocator gave is given back to that one.
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
      return;  // no memory behind it, or the host's beside a rank on an accelerator
    } else if (!device.is_cpu()) {
      ledger_.allocated_past_limit(pointer, bytes);
    } else {
      try {
        ledger_.allocated(pointer, bytes);
      } catch (...) {
        // The allocator reports a block before anyone owns it: without this it would leak.
        c10::free_cpu(pointer);
        throw;
      }
    }
  }

  // The CPU's allocator asks for this before it throws an error that only its words tell from
  // others. Those of accelerators throw c10::OutOfMemoryError, which problem_of() knows.
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
