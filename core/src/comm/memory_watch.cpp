// Hears of each allocation and free of a rank's thread from libtorch's allocators, books it in the
// ledger, and says by a code of its own when there is no memory for one.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fmt/format.h>

#include <new>
#include <utility>

#include "comm/streams.h"
#include "meshwright/error.h"
#include "meshwright/ledger.h"

namespace mw {
namespace {

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

 private:
  Ledger& ledger_;
};

}  // namespace

struct MemoryWatch::State {
  explicit State(Ledger& ledger)
      : guard(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Reporter>(ledger)) {}
  c10::DebugInfoGuard guard;
};

MemoryWatch::MemoryWatch(Ledger& ledger) : state_(std::make_unique<State>(ledger)) {}
MemoryWatch::~MemoryWatch() = default;

}  // namespace mw
