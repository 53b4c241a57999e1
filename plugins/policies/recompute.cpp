// Recompute policies that a script can name: nothing, attention, everything.
#include "meshwright/recompute.h"

#include "meshwright/plugin.h"

namespace mw {
namespace {

class Nothing final : public Recompute {
 public:
  bool takes(const Op&) const override { return false; }
};

// Recomputes attention: scores, softmax and their product with the values.
class Selective final : public Recompute {
 public:
  bool takes(const Op& op) const override { return op.op_class() == OpClass::attention; }
};

class Full final : public Recompute {
 public:
  bool takes(const Op&) const override { return true; }
};

}  // namespace

MESHWRIGHT_BUILT_IN(recompute<Nothing>("none", "All activations are kept."),
                    recompute<Selective>("selective",
                                         "Attention is recomputed (Korthikanti et al. 2022)."),
                    recompute<Full>("full",
                                    "Each layer is recomputed from its input (Chen et al. 2016)."));

}  // namespace mw
