// Numbers of options at the ends of what they may be, and beyond.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>

#include "base/divisors.h"
#include "meshwright/options.h"

using mw::Json;
using mw::Options;
using mw::Problems;

namespace {

// What reading `value` as the one key of `options` says; empty if it is taken.
std::string said(const Options& options, const Json& value) {
  Problems problems;
  options.read(Json{{"n", value}}, "", problems);
  return problems.empty() ? "" : mw::Error(problems.list()).what();
}

const std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                   most = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST_CASE("an integer without a declared range has that of 32 bits") {
  const Options options = Options().integer("n", "");
  CHECK(said(options, 2147483647).empty());
  CHECK(said(options, -2147483648).empty());
  CHECK(said(options, 4294967298) ==
        "n must be at most 2147483647; got 4294967298 [nearest: 2147483647]");
  CHECK(said(options, least) ==
        "n must be at least -2147483648; got -9223372036854775808 [nearest: -2147483648]");
  CHECK(said(options, 0x1p63) ==
        "n must be at most 2147483647; got 9.223372036854776e+18 [nearest: 2147483647]");
  CHECK(said(options, 1e300).find("nearest: 2147483647") != std::string::npos);
  CHECK(said(Options().integer("n", "").at_least(1), 4294967296) ==
        "n must be between 1 and 2147483647; got 4294967296 [nearest: 2147483647]");
  for (const double none : {std::nan(""), HUGE_VAL, -HUGE_VAL, 0.5})
    CHECK(said(options, none).find("n must be an integer") == 0);
}

TEST_CASE("integers are compared as integers, beyond what a double tells apart") {
  const Options options = Options().integer("n", "").range(0, 9007199254740992);
  CHECK(said(options, 9007199254740992).empty());
  CHECK(
      said(options, 9007199254740993) ==
      "n must be between 0 and 9007199254740992; got 9007199254740993 [nearest: 9007199254740992]");
  const Options all = Options().integer("n", "").range(least, most);
  CHECK(said(all, most).empty());
  CHECK(said(all, least).empty());
  CHECK_FALSE(said(all, 0x1p63).empty());
}

TEST_CASE("whole numbers") {
  CHECK(mw::whole_number(Json(8.0)) == 8);
  CHECK(mw::whole_number(Json(-8)) == -8);
  CHECK(mw::whole_number(Json(-0x1p63)) == least);
  for (const Json& none : {Json(8.5), Json(0x1p63), Json("8"), Json(true), Json(HUGE_VAL),
                           Json(std::nan("")), Json(std::uint64_t{1} << 63), Json()})
    CHECK_FALSE(mw::whole_number(none));
}

TEST_CASE("a number that 32 bits do not hold is none of theirs") {
  Problems problems;
  const auto values =
      Options().integer("n", "").range(0, most).read(Json{{"n", 4294967298}}, "", problems);
  REQUIRE(problems.empty());
  CHECK(values.integer("n") == 4294967298);
  CHECK_THROWS_AS(values.int32("n"), mw::Error);
}

TEST_CASE("sizes have a range too") {
  const Options options = Options().bytes("n", "");
  CHECK(said(options, "1EiB").empty());
  CHECK(said(options, -1) == "n must be at least 0 B; got -1 [nearest: 0 B]");
  CHECK(said(options, most).find("n must be at most 1 EiB") == 0);
}

TEST_CASE("divisors next to a value, of large primes too") {
  using List = std::vector<std::int64_t>;
  CHECK(mw::divisors_near(12, 5) == List{4, 6});
  CHECK(mw::divisors_near(12, 4) == List{3, 6});
  CHECK(mw::divisors_near(12, 1) == List{2});
  CHECK(mw::divisors_near(12, 100) == List{12});
  CHECK(mw::divisors_near(1, 3) == List{1});
  CHECK(mw::divisors_near(2147483647, 7) == List{1, 2147483647});
}

TEST_CASE("the standard library's exceptions are given words") {
  CHECK(mw::problem_of(std::bad_alloc()).message.find("not enough memory") != std::string::npos);
  CHECK(mw::problem_of(std::length_error("vector::_M_fill_insert")).message.find("vector") ==
        std::string::npos);
  CHECK_FALSE(mw::problem_of(std::out_of_range("map::at")).hint.empty());
  CHECK(mw::problem_of(std::runtime_error("a plugin's own")).message == "a plugin's own");
}
