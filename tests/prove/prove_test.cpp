// Plans that are right are proved, and plans with one fault are refused where the fault is.
#include "prove/prove.h"

#include <cstdlib>

#include "support/mixes.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

// Of a setup's plan, as it would run.
Proof proof_of(const Setup& setup) {
  return prove(experiment(setup).plan->programs);
}

}  // namespace

TEST_CASE("Mixes of all forms are proved") {
  for (const NamedMix& mix : all_mixes()) {
    DYNAMIC_SECTION(mix.name) {
      const Proof proof = proof_of(mix.setup);
      INFO(proof.text());
      CHECK(proof.proved());
      CHECK(proof.rules > 0);
      CHECK_FALSE(proof.lemmas.empty());
    }
  }
}
