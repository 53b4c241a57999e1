// Numbers of options at the ends of what they may be, and beyond.
#include <c10/util/Exception.h>
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>

#include "base/divisors.h"
#include "meshwright/options.h"
#include "support/problems.h"

using mw::Json;
using mw::Options;
using mw::Problems;

namespace {

// What is wrong with `value` as the one key of `options`, and the hint.
std::string said(const Options& options, const Json& value) {
  Problems problems;
  options.read(Json{{"n", value}}, "", problems);
  return problems.empty() ? "none"
                          : mw::test::codes(problems) + ", " + problems.list().front().hint;
}

const std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                   most = std::numeric_limits<std::int64_t>::max();

}  // namespace

TEST_CASE("an integer without a declared range has that of 32 bits") {
  const Options options = Options().integer("n", "");
  CHECK(said(options, 2147483647) == "none");
  CHECK(said(options, -2147483648) == "none");
  CHECK(said(options, 4294967298) == "option.range n, nearest: 2147483647");
  CHECK(said(options, least) == "option.range n, nearest: -2147483648");
  CHECK(said(options, 0x1p63) == "option.range n, nearest: 2147483647");
  CHECK(said(options, 1e300) == "option.range n, nearest: 2147483647");
  CHECK(said(Options().integer("n", "").at_least(1), 4294967296) ==
        "option.range n, nearest: 2147483647");
  for (const double none : {std::nan(""), HUGE_VAL, -HUGE_VAL, 0.5})
    CHECK(said(options, none).starts_with("option.type n"));
}

TEST_CASE("integers are compared as integers, beyond what a double tells apart") {
  const Options options = Options().integer("n", "").range(0, 9007199254740992);
  CHECK(said(options, 9007199254740992) == "none");
  CHECK(said(options, 9007199254740993) == "option.range n, nearest: 9007199254740992");
  const Options all = Options().integer("n", "").range(least, most);
  CHECK(said(all, most) == "none");
  CHECK(said(all, least) == "none");
  CHECK(said(all, 0x1p63) == "option.range n, nearest: 9223372036854775807");
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
  CHECK(mw::test::thrown([&] { values.int32("n"); }) == "option.range n");
}

TEST_CASE("sizes have a range too") {
  const Options options = Options().bytes("n", "");
  CHECK(said(options, "1EiB") == "none");
  CHECK(said(options, -1) == "option.range n, nearest: 0 B");
  CHECK(said(options, most) == "option.range n, nearest: 1 EiB");
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

TEST_CASE("exceptions of libraries are given words and codes") {
  CHECK(mw::problem_of(std::bad_alloc()).code == "run.memory");
  CHECK(mw::problem_of(std::length_error("vector::_M_fill_insert")).code == "run.memory");
  CHECK(mw::problem_of(std::out_of_range("map::at")).code == "run.internal");
  CHECK(mw::problem_of(std::runtime_error("a plugin's own")).code == "run.exception");
  const c10::SourceLocation here{"function", "file.cpp", 1};
  CHECK(mw::problem_of(c10::OutOfMemoryError(here, "an accelerator's")).code == "run.memory");
  const mw::Problem of_torch = mw::problem_of(c10::Error(here, "bad_alloc is no code"));
  CHECK(of_torch.code == "run.exception");
  CHECK(of_torch.message == "bad_alloc is no code");  // without the backtrace
}
