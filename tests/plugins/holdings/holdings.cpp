// Says at every so many steps what the process holds: bytes that its malloc has given out and that
// were not given back, threads, open files. These are counted. A resident size is not: it has what
// malloc keeps for later, and that depends on which thread asked when.
#include <malloc.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <iterator>

#include "meshwright/lr_schedule.h"
#include "meshwright/plugin.h"

namespace {

int entries_in(const char* folder) {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

// The optimizer's rate at each step. The first rank that asks for the rate of a step is the one
// that says it: all ranks have then computed the step before.
class Holdings final : public mw::LearningRate {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("every", "steps between two lines")
        .at_least(2)
        .positional("every");
  }
  Holdings(const mw::Values& values, const mw::LrContext& context)
      : lr_(context.lr), every_(values.integer("every")) {}

  double at(std::int64_t step) const override {
    // Half-way between the steps that write checkpoints or evaluate.
    if (step % every_ == every_ / 2 && said_.exchange(step) < step) {
      const struct mallinfo2 heap = ::mallinfo2();
      std::fprintf(stderr, "holds %lld %zu %d %d\n", static_cast<long long>(step),
                   heap.uordblks + heap.hblkhd, entries_in("/proc/self/task"),
                   entries_in("/proc/self/fd"));
    }
    return lr_;
  }

 private:
  const double lr_;
  const std::int64_t every_;
  mutable std::atomic<std::int64_t> said_ = -1;
};

}  // namespace

MESHWRIGHT_PLUGIN("holdings", "1.0.0", "says what the process holds", mw::lr_schedule<Holdings>())
