// Tries the lemmas of a proof: what `prove` takes for granted about ops and optimizers, since it
// knows no kernel, is checked by running their kernels at small sizes in float64.
//
// Each op is tried by itself, on random operands of sizes 2 to 20. An op that the tests of this
// library do not try is also run with one dim after the other, cut by one axis, at 137 and 1097
// elements and at the size that the dim has in the model. The checks of an op:
// - shapes: results have the shapes that their dims say;
// - cut: run on the shards that the prover's tables say (prove/tables.h), each output and each
//   gradient is the shard of the whole one, or the shares add up to it; dims that need not be even
//   are cut unevenly; a dim that follows another one is cut with it or whole, as in the plan;
//   tokens are permuted where the plan permutes them; the check also takes rows of experts, and
//   operands of which each rank has a partial sum (additive, linear);
// - ring: results after all ring steps on each rank, and gradients of operands that go round;
// - adjoint: backward is the derivative of forward, by differences;
// - contract: gradients are right when written, added, in place, over saved inputs, when only one
//   is asked for, and when one of an output is missing;
// - additivity: a loss is the sum of the losses of parts of the batch.
// An optimizer must treat each element, or each matrix, by itself.
//
// What the checks cannot see: a kernel that is wrong at larger sizes alone, or in other types; an
// error below 1e-9 of the largest number (1e-6 of a gradient's norm in its derivative); a window or
// a capacity that these sizes never reach.
#pragma once

#include <string>
#include <typeinfo>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/program.h"
#include "prove/prove.h"

namespace mw {

struct LemmaReport {
  int checked = 0;  // number of lemmas that were tried, with those that failed
  double seconds = 0;
  std::vector<Problem> failures;  // problems of Stage::plan with the code "prove.lemma"
  // The checks that were left out, and why: "the op gate was not tried, because …".
  std::vector<std::string> not_checked;
};

struct LemmaOptions {
  std::vector<Dim> permuted;  // dims whose tokens the plan permutes (Draft::permute_tokens)
  // The step has several microbatches, so each op must make, of a part of the batch, that part of
  // what it makes of the whole batch.
  bool microbatches = false;
  // Skips ops of this library, which its tests try in every cut (tests/lemmas): for plans that are
  // checked each time they are resolved.
  bool of_plugins_alone = false;
  bool large = false;  // large sizes also for ops of this library
};

// Whether a class is defined in a library that registers built-in classes, not in a plugin.
bool is_built_in(const std::type_info& type);

// Tries these lemmas of the graph's ops, and their ops without a cut. Results are remembered in
// this process: a lemma of the same op type over the same small sizes is tried once. Throws only
// std::bad_alloc and Stopped. Any thread may call it.
LemmaReport check_lemmas(const Graph& graph, const std::vector<Lemma>& lemmas,
                         const LemmaOptions& options = {});

// Tries the lemmas of a plan's programs, and those of their optimizer's rules. Sets `permuted` and
// `microbatches` of the options from the programs.
LemmaReport check_lemmas(const std::vector<Program>& stages, const std::vector<Lemma>& lemmas,
                         LemmaOptions options = {});

// Forgets the remembered results; for tests.
void forget_lemmas();

}  // namespace mw
