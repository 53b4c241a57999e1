// Declared options: defaults, ranges, sizes in bytes, and every problem at once with the nearest
// valid choice.
#include <catch2/catch.hpp>

#include "meshwright/choice.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "support/problems.h"

using mw::Json;
using mw::Options;
using mw::Problems;

namespace {

Options pipeline() {
  return Options()
      .integer("ways", "stages")
      .at_least(1)
      .choice("schedule", {"gpipe", "1f1b", "zb-h1"}, "order of the actions")
      .fallback("1f1b")
      .integer("chunks", "model parts of a stage")
      .range(1, 8)
      .fallback(1)
      .bytes("bucket", "size")
      .fallback("25MiB")
      .at_least(1024)
      .number("factor", "a factor")
      .optional()
      .boolean("overlap", "overlap")
      .fallback(true)
      .list("layout", "layers per stage")
      .optional()
      .table("extra", "anything")
      .optional()
      .function("hook", "called")
      .optional()
      .positional("ways");
}

// What is wrong with `text` (JSON) at plan[2].
std::string problems_of(const std::string& text) {
  Problems problems;
  pipeline().read(Json::parse(text), "plan[2]", problems);
  return mw::test::codes(problems);
}

}  // namespace

TEST_CASE("defaults are filled in and bytes become integers") {
  Problems problems;
  const auto values = pipeline().read(Json::parse(R"({"ways": 4.0, "factor": 2})"), "", problems);
  REQUIRE(problems.empty());
  CHECK(values.integer("ways") == 4);
  CHECK(values.json()["ways"].is_number_integer());
  CHECK(values.text("schedule") == "1f1b");
  CHECK(values.integer("bucket") == 25 << 20);
  CHECK(values.number("factor") == 2.0);
  CHECK(values.flag("overlap"));
  CHECK_FALSE(values.has("layout"));
}

TEST_CASE("a bare value stands for the positional key") {
  Problems problems;
  CHECK(pipeline().read(Json(3), "plan[1]", problems).integer("ways") == 3);
  const Json mixed = Json::parse(R"({"$value": 2, "chunks": 3, "$at": "a.lua:1"})");
  CHECK(pipeline().read(mixed, "plan[1]", problems).integer("ways") == 2);
  CHECK(problems.empty());
  CHECK(problems_of(R"({"$value": 2, "ways": 3})") == "option.twice plan[2].ways");
  Problems none;
  Options().integer("a", "").optional().read(Json(3), "sp", none);
  CHECK(mw::test::codes(none) == "option.unnamed sp");
}

TEST_CASE("a value without a name may stand in a table or alone") {
  const auto read = [](const char* text, const char* key) {
    Problems problems;
    const auto values = Options()
                            .integer("ways", "")
                            .optional()
                            .list("into", "")
                            .optional()
                            .positional(key)
                            .read(Json::parse(text), "op", problems);
    return problems.empty() ? values.json().dump() : mw::test::codes(problems);
  };
  for (const char* text : {"2", "[2]", R"({"$value": 2})", R"({"$value": [2]})"})
    CHECK(read(text, "ways") == R"({"ways":2})");
  for (const char* text : {"[2, 3]", "[[2, 3]]", R"({"$value": [2, 3]})"})
    CHECK(read(text, "into") == R"({"into":[2,3]})");
  for (const char* text : {"2", "[2]", R"({"$value": 2})"})
    CHECK(read(text, "into") == R"({"into":[2]})");
  CHECK(read("[2, 3]", "ways") == "option.type op.ways");
}

TEST_CASE("a choice is a name, or a table that has the name first or as its kind") {
  using mw::named_choice;
  for (const char* text : {R"("a")", R"(["a"])", R"({"kind": "a"})", R"({"$value": "a"})"}) {
    const auto choice = named_choice(Json::parse(text));
    REQUIRE(choice);
    CHECK((choice->name == "a" && choice->options.empty()));
  }
  const auto pair = named_choice(Json::parse(R"({"$value": ["a", 2], "pair": true})"));
  REQUIRE(pair);
  CHECK(pair->name == "a");
  CHECK(pair->options == Json::parse(R"({"pair": true, "$value": 2})"));
  for (const char* text : {"1", "{}", "[]", "[1]", R"({"kind": 1})", R"({"pair": true})"})
    CHECK_FALSE(named_choice(Json::parse(text)));
}

TEST_CASE("words of the field lead to what has another name here") {
  const std::vector<std::string> strategies{"dp", "ep", "pp", "sp", "tp", "zero"};
  using mw::did_you_mean;
  CHECK(did_you_mean("fsdp", strategies) == "did you mean \"zero\"? fsdp is zero { N, stage = 3 }");
  CHECK(did_you_mean("Context-Parallel", strategies) ==
        "did you mean \"sp\"? Context-Parallel is sp { N, form = \"ring\" }");
  CHECK(did_you_mean("ddp", strategies) == "did you mean \"dp\"? ddp is dp(N)");
  CHECK(did_you_mean("grad_clip", {"lr", "clip"}) == "did you mean \"clip\"?");
  CHECK(did_you_mean("DualPipe", {"1f1b", "dualpipev"}) == "did you mean \"dualpipev\"?");
  CHECK(did_you_mean("fsdp", {"lr", "clip"}).empty());
  CHECK(did_you_mean("zerro", strategies) == "did you mean \"zero\"?");
}

TEST_CASE("every problem is reported at once, each with its key path") {
  CHECK(problems_of(R"({"wayz": 2, "chunks": 9, "schedule": "1f2b", "overlap": 1})") ==
        "option.unknown plan[2].wayz; option.missing plan[2].ways; option.choice plan[2].schedule; "
        "option.range plan[2].chunks; option.type plan[2].overlap");
}

TEST_CASE("each kind of value that will not do has its code") {
  CHECK(problems_of(R"({"ways": 0})") == "option.range plan[2].ways");
  CHECK(problems_of(R"({"ways": 2.6})") == "option.type plan[2].ways");
  CHECK(problems_of(R"({"ways": "4"})") == "option.type plan[2].ways");
  CHECK(problems_of(R"({"ways": 1, "bucket": "8 XB"})") == "option.type plan[2].bucket");
  CHECK(problems_of(R"({"ways": 1, "bucket": "1B"})") == "option.range plan[2].bucket");
  CHECK(problems_of(R"({"ways": 1, "hook": 3})") == "option.type plan[2].hook");
  CHECK(problems_of(R"({"ways": 1, "extra": [1, 2]})") == "option.type plan[2].extra");
  CHECK(problems_of("{}") == "option.missing plan[2].ways");
}

TEST_CASE("an empty table is a list where a list is due, and the reverse") {
  Problems problems;
  const auto values =
      pipeline().read(Json::parse(R"({"ways": 1, "layout": {}, "extra": []})"), "", problems);
  REQUIRE(problems.empty());
  CHECK(values.at("layout").is_array());
  CHECK(values.at("extra").is_object());
  pipeline().read(Json::parse(R"({"ways": 1, "hook": {"$function": 1}})"), "", problems);
  CHECK(problems.empty());
}

TEST_CASE("byte sizes") {
  CHECK(mw::parse_bytes("8MiB") == 8 << 20);
  CHECK(mw::parse_bytes("1.5 GB") == 1500000000);
  CHECK(mw::parse_bytes("512") == 512);
  CHECK(mw::parse_bytes("2kb") == 2000);
  for (const char* bad :
       {"", "MiB", "-1", "1e3", "0x10", "inf", "1.2.3", "8 parsecs", "9999999TiB"}) {
    INFO(bad);
    CHECK_FALSE(mw::parse_bytes(bad));
  }
  CHECK(mw::format_bytes(0) == "0 B");
  CHECK(mw::format_bytes(1536) == "1.5 KiB");
  CHECK(mw::format_bytes(1024 * 1024 - 1) == "1 MiB");
  CHECK(mw::format_bytes(123456789) == "118 MiB");
  CHECK(mw::format_bytes(-2048) == "-2 KiB");
}

TEST_CASE("the nearest name") {
  const std::vector<std::string> names = {"llama",    "gpt", "adamw", "optimizer",
                                          "kv_heads", "dp",  "tp"};
  CHECK(mw::nearest("lama", names) == "llama");
  CHECK(mw::nearest("lamla", names) == "llama");
  CHECK(mw::nearest("AdamW", names) == "adamw");
  CHECK(mw::nearest("tpp", {"pp", "tp"}) == "tp");
  CHECK(mw::nearest("optim", names) == "optimizer");
  CHECK(mw::nearest("kv-heads", names) == "kv_heads");
  CHECK(mw::nearest("xy", names) == "");
  CHECK(mw::nearest("tpp", names) == "tp");
  CHECK(mw::nearest("resnet", names) == "");
  CHECK(mw::nearest("", names) == "");
}
