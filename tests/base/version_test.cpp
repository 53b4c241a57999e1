// The version line names what the program was built with.
#include "meshwright/engine/text.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

TEST_CASE("the version line names the torch it was built with") {
  CHECK(mw::version_line().find("torch 2.15") != std::string::npos);
  CHECK(at::ones({2, 2}).sum().item<double>() == 4.0);
}
