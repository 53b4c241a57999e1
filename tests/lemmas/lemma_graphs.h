// Lemmas for tests: all that a graph's ops may be asked for.
#pragma once

#include <vector>

#include "prove/prove.h"

namespace mw::test {

// The lemmas of each kind of op of the graph: not cut; cut by each dim that it need not have whole,
// and by each pair of them; with the dim that follows, and without; with operands that are sums; in
// ring steps. Pieces as the op has them.
std::vector<Lemma> every_lemma(const Graph& graph);

}  // namespace mw::test
