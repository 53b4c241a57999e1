// Relative errors of what is zero but for rounding.
#include <catch2/catch.hpp>
#include <limits>

#include "check/observe.h"

using mw::relative;

TEST_CASE("What is zero but for rounding is measured against a floor") {
  CHECK(relative(3e-17, 1e-17, 1e-6) < 1e-10);
  CHECK(relative(1e-17, 0, 1e-6) < 1e-10);
  CHECK(relative(2.0, 1.0, 1e-6) == 1);  // what is not, is not
  CHECK(relative(1e-7, 2e-7, 1e-6) == Approx(0.1));
  CHECK(relative(std::numeric_limits<double>::quiet_NaN(), 0, 1e-6) ==
        std::numeric_limits<double>::infinity());
  const at::Tensor nothing = at::zeros({4}, at::kDouble), noise = at::full({4}, 1e-17, at::kDouble);
  CHECK(relative(noise, nothing, 1e-6) < 1e-10);
  CHECK(relative(nothing, noise, 1e-6) < 1e-10);
}
