// The parity tests' one demand: a mix equals one rank, raw gradients compared before the optimizer.
#pragma once

#include <catch2/catch.hpp>

#include "fixture.h"

namespace mw::test {

inline void check_equal(const Setup& setup) {
  const Experiment e = experiment(setup);
  const VerifyOutcome outcome = verify(e);
  INFO(describe(outcome, e.plan->mix()));
  CHECK(outcome.equal);
}

}  // namespace mw::test
