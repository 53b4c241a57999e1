// From placements to a program: forward and backward segments over slots.
#pragma once

#include <memory>

#include "meshwright/program.h"
#include "plan/derive.h"

namespace mw {

struct BuildOptions {
  int microbatches = 1;
  int element = 4;     // bytes of a real
  bool split = false;  // also segments "dgrad" and "wgrad", for schedules that part them
};

// Segments "forward" and "backward" (and the split ones), parameters and one bucket for each set of
// reduction and storage axes. Passes may then edit it; complete() makes it runnable.
Program build(std::shared_ptr<const Graph> graph, const Mesh& mesh, const Derived& derived,
              const BuildOptions& options);

// Adds the "finish" segment and the timeline (unless a schedule brought one), grants in-place work
// where nobody reads the old value later, and notes for each instruction which slots it releases.
void complete(Program& program);

}  // namespace mw
