// What a plugin throws, as people read it.
#include "meshwright/engine/plugin_call.h"

#include <catch2/catch.hpp>
#include <stdexcept>

#include "meshwright/engine/text.h"
#include "support/problems.h"

using namespace mw;

namespace {

struct Mine {};

template <class Thrown>
Error named(Thrown thrown) {
  try {
    call_plugin({"mine", "plan[2]"}, "edited the plan", [&]() -> int { throw thrown; });
  } catch (const Error& error) {
    return error;
  }
  return Error(Stage::run, "none", "", "nothing was thrown");
}

}  // namespace

TEST_CASE("Whatever is thrown names plugin and place") {
  const std::string before = "plan[2]: the plugin \"mine\" threw while it edited the plan: ";
  const auto said = [](const Error& error) { return error.problems().front().message; };
  CHECK(said(named(std::runtime_error("boom"))) == before + "boom");
  CHECK(said(named(std::runtime_error("a\xff\x01z"))) == before + "a\\xff\\x01z");
  CHECK(said(named(std::string("boom"))) == before + "\"boom\"");
  CHECK(said(named<const char*>("boom")) == before + "\"boom\"");
  CHECK(said(named<const char*>(nullptr)) == before + "a null pointer");
  CHECK(said(named(nullptr)) == before + "a null pointer");
  CHECK(said(named(42)) == before + "the integer 42");
  CHECK(said(named(-7L)) == before + "the integer -7");
  CHECK(said(named(Mine())) == before + "a value of type (anonymous namespace)::Mine");
  CHECK(said(named(2.5)) == before + "a value of type double");
  CHECK(test::codes(named(42).problems()) == "plugin.fault plan[2]");
  CHECK(named(42).exit_code() == 3);
}

TEST_CASE("An Error keeps its words, stage, code and hint, with its speaker before them") {
  const Problem of_all =
      named(Error(Stage::options, "ways.odd", "", "ways are odd", "make them even")).problems()[0];
  CHECK(of_all.stage == Stage::options);
  CHECK(test::codes({of_all}) == "ways.odd plan[2]");
  CHECK(of_all.message == "plan[2]: mine: ways are odd");
  CHECK(of_all.hint == "make them even");
  const Problem of_one = named(Error(Stage::plan, "ways.odd", "ways", "3 is odd")).problems()[0];
  CHECK(test::codes({of_one}) == "ways.odd plan[2].ways");
  CHECK(of_one.message == "plan[2].ways: 3 is odd");
  const auto said = [](const Error& error) { return error.problems()[0].message; };
  for (const char* text : {"mine(3) cannot be", "mine.ways is 3", "plan[2].ways is 3"}) {
    CHECK(said(named(Error(Stage::plan, "a.code", "ways", text))) == text);
  }
  CHECK(said(named(Error(Stage::plan, "a.code", "", "miner"))) == "plan[2]: mine: miner");
  // A script's own function says its own line.
  CHECK(test::codes(named(Error(Stage::script, "script.error", "", "boom")).problems()) ==
        "script.error");
}

TEST_CASE("What is returned comes through") {
  CHECK(call_plugin({"mine", ""}, "counted", [] { return 3; }) == 3);
}

TEST_CASE("Text that is no UTF-8 becomes readable") {
  CHECK(readable("plain, größer, 漢字, 🙂") == "plain, größer, 漢字, 🙂");
  CHECK(readable("a\nb\tc") == "a\nb\tc");
  CHECK(readable(std::string_view("\0\x1b[31m", 6)) == "\\x00\\x1b[31m");
  CHECK(readable("\xff\xfe") == "\\xff\\xfe");
  CHECK(readable("\xc3") == "\\xc3");                             // cut off
  CHECK(readable("\xc0\xaf") == "\\xc0\\xaf");                    // overlong
  CHECK(readable("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // a surrogate
  CHECK(readable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
}
