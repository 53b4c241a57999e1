// The recompute policy @NAME@: which ops backward computes again, instead of keeping what they made.
#include "meshwright/op.h"
#include "meshwright/plugin.h"
#include "meshwright/recompute.h"

namespace {

// Everything but products: cheap to make again, and a good part of what is kept.
class @CLASS@ final : public mw::Recompute {
 public:
  // Asked once of each op of a layer, when the plan is made.
  bool takes(const mw::Op& op) const override {
    return op.kind() != "linear" && op.kind() != "attention";
  }
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "all ops of a layer but products are computed again",
                  mw::recompute<@CLASS@>())
