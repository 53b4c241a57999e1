// Hears of each allocation and free of a rank's thread from libtorch's allocators and books it
// in the ledger.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "comm/streams.h"
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
