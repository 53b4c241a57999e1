// The microbatch policy @NAME@: how each step's batch is cut.
#include <algorithm>

#include "meshwright/microbatch.h"
#include "meshwright/plugin.h"

namespace {

// The first steps in small microbatches, the others in larger ones.
class @CLASS@ final : public mw::Microbatching {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("first", "sequences of a microbatch in the first steps")
        .at_least(1)
        .fallback(1)
        .integer("later", "… and after them")
        .at_least(1)
        .fallback(2)
        .integer("steps", "how many steps are the first")
        .at_least(0)
        .fallback(2);
  }
  @CLASS@(const mw::Values& values, const mw::MicrobatchContext& context)
      : batch_(context.batch),
        first_(values.integer("first")),
        later_(values.integer("later")),
        steps_(values.integer("steps")) {}

  // Asked once for each step, before the run. `at_most`: a rank that has fewer sequences takes
  // those that it has.
  mw::StepShape shape(std::int64_t step, std::int64_t) const override {
    return {batch_, step < steps_ ? first_ : later_, {}, true};
  }

 private:
  std::int64_t batch_, first_, later_, steps_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "small microbatches at first, larger ones later",
                  mw::microbatch<@CLASS@>())
