// Registers an optimizer of a name that is built in.
#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"

namespace {

class Still final : public mw::Optimizer {
 public:
  double lr() const override { return 0; }
  double clip() const override { return 0; }
  mw::UpdateRule rule(int) const override { return {}; }
};

}  // namespace

MESHWRIGHT_PLUGIN("taken", "1.0.0", "an optimizer that leaves all as it is",
                  mw::optimizer<Still>("adamw", "not the one that is built in"))
