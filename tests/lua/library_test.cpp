// Texts that the Lua library makes: what is said where one is missing.
#include "lua/library.h"

#include <catch2/catch.hpp>

#include "support/problems.h"

TEST_CASE("a text that the library lacks is an error of the installation") {
  CHECK(mw::test::thrown([] { mw::call_library("texts.none", {}, {}); }) == "kit.templates");
}
