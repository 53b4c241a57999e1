// Errors and text for people: exit codes, places in scripts, tables, quotes.
#include <catch2/catch.hpp>

#include "base/json_text.h"
#include "base/text.h"
#include "meshwright/error.h"

using mw::Error;
using mw::Json;
using mw::Problem;
using mw::Stage;

TEST_CASE("the gravest problem decides the exit code") {
  CHECK(Error(Stage::run, "a").exit_code() == 1);
  CHECK(Error(Stage::environment, "a").exit_code() == 5);
  const Problem plan{Stage::plan, "p", ""}, options{Stage::options, "o", ""},
      run{Stage::run, "r", ""};
  CHECK(Error({run, plan}).exit_code() == 3);
  CHECK(Error({plan, run, options}).exit_code() == 2);
}

TEST_CASE("an error's text holds every message and hint") {
  CHECK(std::string(Error({{Stage::plan, "a", "b"}, {Stage::run, "c", ""}}).what()) == "a [b]\nc");
  mw::Problems problems;
  CHECK_NOTHROW(problems.throw_if_any());
  problems.add(Error(Stage::plan, "x"));
  problems.add(Stage::run, "y");
  CHECK_THROWS_WITH(problems.throw_if_any(), "x\ny");
}

TEST_CASE("the place of a key path is that of the nearest table that knows its own") {
  const Json root = Json::parse(R"({"$at": "s.lua:3", "model": {"$at": "s.lua:4", "layers": 1},
    "plan": [{"$at": "s.lua:5"}, {"$at": "s.lua:6", "ways": 2}], "batch": 4})");
  CHECK(mw::place_of(root, "model.layers") == "s.lua:4");
  CHECK(mw::place_of(root, "model.missing") == "s.lua:4");
  CHECK(mw::place_of(root, "plan[2].ways") == "s.lua:6");
  CHECK(mw::place_of(root, "plan[3].ways") == "s.lua:3");
  CHECK(mw::place_of(root, "batch must be 4") == "s.lua:3");
  CHECK(mw::place_of(root, "plan[99999999999999999999]") == "s.lua:3");
  CHECK(mw::place_of(Json(3), "a.b") == "");
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
