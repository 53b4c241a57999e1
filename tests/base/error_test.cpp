// Errors and text for people: exit codes, places in scripts, tables, quotes.
#include <catch2/catch.hpp>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "support/problems.h"

using mw::Error;
using mw::Json;
using mw::Problem;
using mw::Stage;

TEST_CASE("the gravest problem decides the exit code") {
  const auto of = [](Stage stage) { return Problem{stage, "a.code", "", "what happened"}; };
  const auto exit_code = [](std::vector<Problem> problems) {
    return Error(std::move(problems)).exit_code();
  };
  CHECK(exit_code({of(Stage::run)}) == 1);
  CHECK(exit_code({of(Stage::environment)}) == 5);
  CHECK(exit_code({of(Stage::run), of(Stage::plan)}) == 3);
  CHECK(exit_code({of(Stage::plan), of(Stage::run), of(Stage::options)}) == 2);
}

TEST_CASE("an error's text holds every place, message and hint") {
  const std::vector<Problem> two{{Stage::plan, "x.y", "plan", "a", "b"},
                                 {Stage::run, "z", "", "c", "", "s.lua:3"}};
  CHECK(std::string(Error(two).what()) == "a [b]\ns.lua:3: c");
  mw::Problems problems;
  CHECK_NOTHROW(problems.throw_if_any());
  problems.add(Error(Stage::plan, "x.y", "plan", "x"));
  problems.add(Stage::run, "z", "", "y");
  mw::Problems all;
  all.add(problems);
  CHECK(mw::test::thrown([&] { all.throw_if_any(); }) == "x.y plan; z");
}

TEST_CASE("the place of a key path is that of the nearest table that knows its own") {
  const Json root = Json::parse(R"({"$at": "s.lua:3", "model": {"$at": "s.lua:4", "layers": 1},
    "plan": [{"$at": "s.lua:5"}, {"$at": "s.lua:6", "ways": 2}], "batch": 4})");
  CHECK(mw::place_of(root, "model.layers") == "s.lua:4");
  CHECK(mw::place_of(root, "model.missing") == "s.lua:4");
  CHECK(mw::place_of(root, "plan[2].ways") == "s.lua:6");
  CHECK(mw::place_of(root, "plan[3].ways") == "s.lua:3");
  CHECK(mw::place_of(root, "batch") == "s.lua:3");
  CHECK(mw::place_of(root, "") == "s.lua:3");
  CHECK(mw::place_of(root, "plan[99999999999999999999]") == "s.lua:3");
  CHECK(mw::place_of(Json(3), "a.b") == "");
}

TEST_CASE("a key lies in a table, or is put there") {
  for (const char* inside : {"plan[2]", "plan[2].ways", "plan[2][1]"}) {
    CHECK(mw::lies_in(inside, "plan[2]"));
    CHECK(mw::key_in("plan[2]", inside) == inside);
  }
  CHECK_FALSE(mw::lies_in("plan[21]", "plan[2]"));
  CHECK_FALSE(mw::lies_in("plans", "plan"));
  CHECK(mw::lies_in("plan", ""));
  CHECK(mw::key_in("plan[2]", "ways") == "plan[2].ways");
  CHECK(mw::key_in("plan[2].schedule", "[1][3]") == "plan[2].schedule[1][3]");
  CHECK(mw::key_in("plan[2]", "") == "plan[2]");
  CHECK(mw::key_in("", "ways") == "ways");
}

TEST_CASE("hidden keys are taken out at any depth, functions stay") {
  const Json value =
      Json::parse(R"({"$at": "x", "a": [{"$at": "y", "b": 1}], "f": {"$function": 2}})");
  CHECK(mw::without_hidden(value) == Json::parse(R"({"a": [{"b": 1}], "f": {"$function": 2}})"));
}

TEST_CASE("tables align columns by what is seen") {
  mw::TextTable table({"name", "bytes"}, {1});
  table.add({"µ-batch", "12"});
  table.add({"a", "3456"});
  CHECK(table.text("  ") ==
        "  name     bytes\n"
        "  -------  -----\n"
        "  µ-batch     12\n"
        "  a         3456\n");
  mw::TextTable bare({"", ""});
  bare.add({"a", "b"});
  bare.add({"long"});
  CHECK(bare.text() == "a     b\nlong\n");
}

TEST_CASE("text helpers") {
  CHECK(mw::quote("a\"b\n\x01") == "\"a\\\"b\\n\\x01\"");
  CHECK(mw::plural(1, "rank") == "1 rank");
  CHECK(mw::plural(0, "rank") == "0 ranks");
  CHECK(mw::plural(2, "microbatch") == "2 microbatches");
  CHECK(mw::format_number(1e-8) == "1e-08");
  CHECK(mw::format_number(3) == "3");
  CHECK(mw::describe(Json::parse(R"({"$function": 1})")) == "a function");
}
