// The lemmas of a proof, tried: what `prove` takes for granted of ops and optimizers, since it
// knows no kernel, is run on the spot, at small sizes, in float64.
//
// What is tried of an op, by itself (operands at random; sizes 2 to 20, and for an op that the
// tests of this library do not try also one dim after the other, cut by one axis, at 137 and
// 1097 elements and at the size that it has in the model):
// - shapes: what it makes has the shapes that its dims have;
// - cut: on parts as the prover's tables say (prove/tables.h), each output and each gradient is the
//   part of the whole's, or what adds up to it; dims that need not be even are cut unevenly; a dim
//   that follows another one is cut with it or whole, as in the plan; tokens permuted, where the
//   plan permutes them; rows of experts; operands that are sums over ranks (additive, linear);
// - ring: after all steps, on each rank, with the gradient of what goes round;
// - adjoint: backward is the derivative of forward, by differences;
// - contract: gradients written, added, in place, over saved inputs, one alone, one missing;
// - additivity: a loss is the sum of those of parts of the batch;
// and of an optimizer, that elements and matrices are treated each by itself.
//
// What this cannot see: a kernel that is wrong at larger sizes alone, or in other types; an error
// below 1e-9 of the largest number (1e-6 of a gradient's norm in its derivative); a window or a
// capacity that these sizes never reach.
#pragma once

#include <string>
#include <typeinfo>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/program.h"
#include "prove/prove.h"

namespace mw {

struct LemmaReport {
  int checked = 0;  // lemmas that were tried, those that failed among them
  double seconds = 0;
  std::vector<Problem> failures;  // of Stage::plan, code "prove.lemma"
  // What was left out and why: "the op gate was not tried, because …".
  std::vector<std::string> not_checked;
};

struct LemmaOptions {
  std::vector<Dim> permuted;  // dims whose tokens lie in another order than their own
  // The step has several microbatches: each op has to make of a part of the batch that part of what
  // it makes of the whole batch.
  bool microbatches = false;
  // Passes over ops of this library, which its tests have tried in every cut (tests/lemmas): for
  // plans that are looked at each time they are resolved.
  bool of_plugins_alone = false;
  bool large = false;  // tries large sizes of ops of this library too
};

// Whether a class is of a library that is linked in and has registered what is built in.
bool is_built_in(const std::type_info& type);

// Tries these lemmas of the graph's ops, and what holds for each op that they name. Results are
// remembered in this process: a lemma of the same op type over the same small sizes is tried once.
// Throws nothing but what memory and interrupts do. Any thread may call it.
LemmaReport check_lemmas(const Graph& graph, const std::vector<Lemma>& lemmas,
                         const LemmaOptions& options = {});

// Tries the lemmas of a plan's programs, and those of their optimizer's rules. Sets `permuted` and
// `microbatches` of the options from the programs.
LemmaReport check_lemmas(const std::vector<Program>& stages, const std::vector<Lemma>& lemmas,
                         LemmaOptions options = {});

// Forgets what is remembered; for tests.
void forget_lemmas();

}  // namespace mw
