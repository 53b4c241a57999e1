// Scripts: what their tables become, where errors are placed, --set, modules, the prompt.
#include "lua/script.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "support/problems.h"

namespace fs = std::filesystem;
using Catch::Contains;
using mw::Json;

namespace {

fs::path build_folder() {
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path();
}

const mw::Options& llama_options() {
  static const mw::Options options =
      mw::Options().integer("layers", "").at_least(1).integer("hidden", "").fallback(64);
  return options;
}

const mw::Options& text_options() {
  static const mw::Options options =
      mw::Options().any("path", "").list("more", "").optional().positional("path");
  return options;
}

// A host that checks the options of what it gets and keeps it.
class RecordingHost : public mw::Host {
 public:
  RecordingHost() : plugins_({build_folder() / "lib/meshwright/test-plugins"}) {
    experiment_.table("model", "")
        .any("data", "")
        .optional()
        .list("plan", "")
        .fallback(Json::array())
        .integer("steps", "")
        .fallback(10)
        .any("log", "")
        .optional()
        .function("observe", "")
        .optional();
  }
  std::vector<mw::Constructor> constructors() const override {
    static const mw::Registration llama{mw::Kind::model, "llama", "", &llama_options, nullptr};
    static const mw::Registration text{mw::Kind::data, "text", "", &text_options, nullptr};
    return {{"llama", &llama}, {"text", &text}};
  }
  std::vector<mw::Verb> verbs() const override {
    return {{"train", "", 1}, {"plan", "", 1}, {"compare", "", 2}};
  }
  const mw::Options& experiment() const override { return experiment_; }
  mw::PluginRegistry& plugins() override { return plugins_; }
  Json call(const std::string& verb, const std::vector<Json>& experiments,
            const mw::CallFunction& function) override {
    calls.push_back({verb, experiments});
    mw::Problems problems;
    const auto values = experiment_.read(experiments.at(0), "", problems);
    if (values.has("model")) {
      Json model = values.at("model");
      model.erase("kind");
      llama_options().read(model, "model", problems);
    }
    for (const std::string& key : extra_keys)
      problems.add(mw::Stage::plan, "a.code", key, "what happened");
    problems.throw_if_any();
    Json result = {{"kind", verb}, {"losses", {3.5, 2.25}}, {"steps", values.integer("steps")}};
    result["text"] = "ran " + verb;
    if (values.has("observe")) {
      // From another thread, as the engine's rank 0 does.
      std::exception_ptr failure;
      std::thread([&] {
        try {
          result["observed"] =
              function(values.at("observe")["$function"].get<std::int64_t>(), {Json(7)});
        } catch (...) {
          failure = std::current_exception();
        }
      }).join();
      if (failure) std::rethrow_exception(failure);
    }
    return result;
  }

  struct Call {
    std::string verb;
    std::vector<Json> experiments;
  };
  std::vector<Call> calls;
  std::vector<std::string> extra_keys;

 private:
  mw::Options experiment_;
  mw::PluginRegistry plugins_;
};

std::string with_places(const mw::Error& error) {
  std::string text;
  for (const mw::Problem& problem : error.problems()) {
    text += (text.empty() ? "" : "; ") + problem.place + (problem.place.empty() ? "" : ": ");
    text += mw::test::codes({problem});
  }
  return text;
}

struct Fixture {
  RecordingHost host;
  mw::ScriptOptions options;
  std::vector<std::string> said;
  std::vector<std::string> unprinted;
  Fixture() {
    options.library = fs::path(std::getenv("MESHWRIGHT_SOURCE") != nullptr
                                   ? fs::path(std::getenv("MESHWRIGHT_SOURCE")) / "lua"
                                   : mw::lua_library());
    options.say = [this](const std::string& text) { said.push_back(text); };
  }
  // Runs the script; returns each problem's place, code and key, or "none".
  std::string run(const std::string& text) {
    mw::Script script(host, options);
    try {
      script.run_text("local mw = require 'meshwright'\n" + text, "s.lua");
    } catch (const mw::Error& error) {
      problem = error.problems().front();
      return with_places(error);
    }
    unprinted = script.unprinted();
    return "none";
  }
  mw::Problem problem;  // the first of the last run
  const Json& experiment(std::size_t call = 0) { return host.calls.at(call).experiments.at(0); }
};

}  // namespace

TEST_CASE_METHOD(Fixture, "a script's tables arrive as they were written") {
  REQUIRE(run(R"(local good = mw.plugins("good")
    mw.train { model = mw.llama { layers = 2, hidden = 8.0 }, data = mw.text { "a", "b", more = {} },
      plan = { good(2), good { ways = 4, form = "fancy" }, good }, steps = 4, log = "x\ny" })") ==
          "none");
  const Json& e = experiment();
  CHECK(mw::without_hidden(e) ==
        Json::parse(R"({"data": {"kind": "text", "more": {}, "path": ["a", "b"]},
    "log": "x\ny", "model": {"hidden": 8.0, "kind": "llama", "layers": 2},
    "plan": [{"plugin": "good", "ways": 2}, {"form": "fancy", "plugin": "good", "ways": 4},
             {"plugin": "good"}], "steps": 4})"));
  CHECK(e["steps"].is_number_integer());
  CHECK(e["model"]["hidden"].is_number_float());
  CHECK(e["$at"] == "s.lua:3");
  CHECK(e["plan"][1]["$at"] == "s.lua:4");
}

TEST_CASE_METHOD(Fixture, "a strategy of the script's own arrives with its table") {
  REQUIRE(run(R"(local mine = mw.strategy { name = "mine", axis = "rows", rules = { "ffn" } }
    assert(tostring(mine) == "mine {}" and tostring(mine(2)) == "mine { ways = 2 }")
    mw.train { model = mw.llama { layers = 2 }, plan = { mine, mine(2),
      mine { ways = 4 } } })") == "none");
  const Json& plan = experiment()["plan"];
  CHECK(mw::without_hidden(plan) ==
        Json::parse(R"([{"plugin": "mine"}, {"plugin": "mine", "ways": 2},
    {"plugin": "mine", "ways": 4}])"));
  for (const Json& entry : plan) CHECK(entry[mw::strategy_key]["rules"] == Json::array({"ffn"}));
  CHECK(plan[0]["$at"] == "s.lua:2");
  CHECK(plan[2]["$at"] == "s.lua:5");
  // What the entry has not is the table's, and so is its line.
  CHECK(mw::place_of(experiment(), "plan[3].ways") == "s.lua:5");
  CHECK(mw::place_of(experiment(), "plan[3].rules[1].where") == "s.lua:2");
  CHECK(run("mw.strategy { name = 'good' }") == "s.lua:2: plugin.twice good.name");
  CHECK(run("\nmw.strategy { name = 'mine', rules = { { dims = 'ffn' } } }") ==
        "s.lua:3: option.unknown mine.rules[1].dims; s.lua:3: option.missing mine.rules[1].dim");
}

TEST_CASE_METHOD(Fixture,
                 "results are tables that print as text, and are printed if the script does not") {
  REQUIRE(run(R"(local run = mw.train { model = mw.llama(nil and {} or { layers = 1 }) }
    assert(run.losses[2] == 2.25 and math.type(run.steps) == "integer" and run.kind == "train")
    assert(tostring(run) == "ran train")
    mw.plan { model = mw.llama { layers = 1 } })") == "none");
  CHECK(unprinted == std::vector<std::string>{"ran plan"});
}

TEST_CASE_METHOD(Fixture, "problems are placed at the table that they are about") {
  CHECK(run(R"(
    mw.train {
      model = mw.llama {
        layers = 0 },
      plan = {
        mw.plugin("good")(3) },
      stepz = 3,
    })") == "s.lua:3: option.unknown stepz; s.lua:4: option.range model.layers");
  CHECK(problem.stage == mw::Stage::options);
  host.extra_keys = {"plan[1].ways", "plan[1]", "plan[2]", "nothing", ""};
  CHECK(run(R"(
    mw.train {
      model = mw.llama { layers = 1 }, plan = {
        mw.plugin("good")(3) } })") ==
        "s.lua:5: a.code plan[1].ways; s.lua:5: a.code plan[1]; s.lua:3: a.code plan[2]; "
        "s.lua:3: a.code nothing; s.lua:3: a.code");
  CHECK(problem.stage == mw::Stage::plan);
}

TEST_CASE_METHOD(Fixture, "of two experiments a problem has the place of the one that it is of") {
  host.extra_keys = {"a.steps", "b.steps", "b.model.layers", "steps"};
  CHECK(run(R"(
    local a = { model = mw.llama { layers = 1 } }
    mw.compare(a, {
      model = mw.llama { layers = 2 } }))") ==
        "s.lua:4: a.code a.steps; s.lua:4: a.code b.steps; s.lua:5: a.code b.model.layers; "
        "s.lua:4: a.code steps");
}

TEST_CASE_METHOD(Fixture, "a script's own errors have file, line and a hint") {
  CHECK(run("\nlocal x = nil\nx.y = 1") == "s.lua:4: script.error");
  CHECK(problem.stage == mw::Stage::script);
  CHECK(run("\nlocal function f() error('boom') end\nf()") == "s.lua:3: script.error");
  CHECK(problem.message == "boom");
  CHECK(problem.hint == "called from s.lua:4");
  CHECK(run("mw.train {") == "s.lua:2: script.error");
  CHECK(run("mw.trian {}") == "s.lua:2: script.unknown");
  CHECK(run("mw.steps = 3") == "s.lua:2: script.argument");
  CHECK(run("mw.plugins('god')") == "s.lua:2: plugin.unknown");
  CHECK(problem.stage == mw::Stage::options);
  CHECK(run("mw.plugins('wrong_abi')") == "s.lua:2: plugin.abi");
  for (const char* wrong :
       {"mw.plugins()", "mw.plugins('good')(1, 2)", "mw.llama(missing)", "mw.llama { kind = 3 }"}) {
    CHECK(run(wrong) == "s.lua:2: script.argument");
  }
  CHECK(run("mw.train()") == "s.lua:2: script.call");
  CHECK(run("mw.train(3)") == "s.lua:2: script.call");
  CHECK(run("os.exit(0)") == "s.lua:2: script.error");
  CHECK(run("error { code = 3 }") == "script.error");
  CHECK(host.calls.empty());
}

TEST_CASE_METHOD(Fixture, "tables that are no trees of plain values are refused with their path") {
  CHECK(run("local t = {} t.t = { t } mw.train { model = t }") ==
        "s.lua:2: script.table model.t[1]");
  CHECK(run("mw.train { plan = { 1, nil, 3 } }") == "s.lua:2: script.table plan");
  CHECK(run("mw.train { model = { [true] = 1 } }") == "s.lua:2: script.table model");
  CHECK(run("mw.train { log = io.stdout }") == "s.lua:2: script.table log");
  CHECK(run("mw.train { log = coroutine.create(print) }") == "s.lua:2: script.table log");
  CHECK(run("mw.train { plan = { [0] = 1 } }") == "s.lua:2: script.table plan");
  CHECK(run("local t = {} for i = 1, 200 do t = { t } end mw.train { model = t }")
            .starts_with("s.lua:2: script.table model[1][1]"));
  CHECK(run("mw.train { 1, 2 }") == "s.lua:2: script.call");
}

TEST_CASE_METHOD(Fixture, "a table used twice is no cycle") {
  CHECK(run("local m = mw.llama { layers = 1 } mw.train { model = m, data = m }") == "none");
}

TEST_CASE_METHOD(Fixture, "functions are called from other threads while the script waits") {
  CHECK(run(R"(local seen
    local run = mw.train { model = mw.llama { layers = 1 },
      observe = function(step) seen = step return { twice = step * 2 } end }
    assert(seen == 7 and run.observed.twice == 14))") == "none");
  CHECK(
      run("mw.train { model = mw.llama { layers = 1 },\nobserve = function() local x x() end }") ==
      "s.lua:3: script.error");
  CHECK(run("local e = { model = mw.llama { layers = 1 } }\ne.observe = function() mw.plan(e) "
            "end\nmw.train(e)") == "s.lua:3: script.call");
  CHECK(run(R"(local e = { model = mw.llama { layers = 1 }, observe = function() error("x") end }
    assert(not pcall(mw.train, e))
    e.observe = nil
    mw.train(e))") == "none");
}

TEST_CASE_METHOD(Fixture, "pcall catches what verbs throw, with its text") {
  CHECK(run(R"(local ok, why = pcall(mw.train, { model = mw.llama { layers = 0 } })
    assert(not ok and tostring(why):find("model.layers", 1, true), tostring(why)))") == "none");
}

TEST_CASE_METHOD(Fixture, "Setting: --set changes experiments and says so once") {
  options.settings = {"steps=5",           "model.layers=3", "plan[2].ways=8",
                      "plan.1.form=fancy", "log=runs/a.h5",  "data=nil"};
  const std::string two = R"(local good = mw.plugins("good")
    local e = { model = mw.llama { layers = 1 }, data = mw.text "t", plan = { good(2), good(2) }, steps = 100 }
    mw.train(e) mw.train(e) assert(e.steps == 100))";
  REQUIRE(run(two) == "none");
  const Json& e = experiment(1);
  CHECK(e["steps"] == 5);
  CHECK(e["model"]["layers"] == 3);
  CHECK(e["plan"][0]["form"] == "fancy");
  CHECK(e["plan"][1]["ways"] == 8);
  CHECK(e["log"] == "runs/a.h5");
  CHECK(e["data"].is_null());
  REQUIRE(said.size() == 6);
  CHECK(said[0] == "--set steps = 5 (was 100)");
  CHECK(said[2] == "--set plan[2].ways = 8 (was 2)");
  CHECK(said[3] == "--set plan[1].form = \"fancy\" (it was not set)");
}

TEST_CASE_METHOD(Fixture, "Setting: --set takes Lua expressions, with plugins by name") {
  options.settings = {"plan={good(2), good{ways=4}}", "steps=2*8", "log='1'",
                      "model=llama{layers=9}"};
  REQUIRE(run("mw.train { model = mw.llama { layers = 1 } }") == "none");
  CHECK(mw::without_hidden(experiment()["plan"]) ==
        Json::parse(R"([{"plugin": "good", "ways": 2}, {"plugin": "good", "ways": 4}])"));
  CHECK(experiment()["steps"] == 16);
  CHECK(experiment()["log"] == "1");
  CHECK(experiment()["model"]["layers"] == 9);
}

TEST_CASE_METHOD(Fixture, "[+] in the key of --set adds an entry to a list") {
  options.settings = {"plan[+]=good(2)", "plan[+]=good(4)"};
  const Json both =
      Json::parse(R"([{"plugin": "good", "ways": 2}, {"plugin": "good", "ways": 4}])");
  for (const std::string plan : {"", ", plan = {}"}) {
    REQUIRE(run("mw.train { model = mw.llama { layers = 1 }" + plan + " }") == "none");
    CHECK(mw::without_hidden(experiment()["plan"]) == both);
  }
}

TEST_CASE_METHOD(Fixture, "a bad --set is blamed, not the script") {
  const std::string script =
      "mw.train { model = mw.llama { layers = 1 }, plan = { mw.plugin('good')(2) } }";
  const auto with = [&](const std::string& setting) {
    options.settings = {setting};
    return run(script);
  };
  CHECK(with("steps=many") == "--set steps=many: option.type steps");
  CHECK(problem.stage == mw::Stage::options);
  CHECK(with("stepz=3") == "--set stepz=3: option.unknown stepz");
  CHECK(with("plan[3].ways=1") == "--set plan[3].ways=1: set.path plan");
  CHECK(with("model.layers.x=1") == "--set model.layers.x=1: set.path model.layers");
  CHECK(with("model[+]=1") == "--set model[+]=1: set.path model");
  CHECK(with("plan={good(2}") == "--set plan={good(2}: set.value plan");
  CHECK(with("steps") == "set.form");
  CHECK(with("=3") == "set.form");
  host.extra_keys = {"plan[1].ways", "plan[1]"};
  CHECK(with("plan[1].ways=3") ==
        "--set plan[1].ways=3: a.code plan[1].ways; s.lua:2: a.code plan[1]");
}

TEST_CASE_METHOD(Fixture, "plan and verify turn mw.train into themselves") {
  options.train_as = "plan";
  REQUIRE(run("local r = mw.train { model = mw.llama { layers = 1 } } assert(r.kind == 'plan')") ==
          "none");
  CHECK(host.calls[0].verb == "plan");
  CHECK(run("local r = mw.train { model = mw.llama { layers = 1 } } print(#r.grad_norms)") ==
        "s.lua:2: script.error");
  CHECK_THAT(problem.hint, Contains("mw.plan"));
}

TEST_CASE_METHOD(Fixture, "a script file finds modules beside it and is named whole in errors") {
  std::string name = (fs::temp_directory_path() / "meshwright-XXXXXX").string();
  const fs::path folder = fs::path(::mkdtemp(name.data())) /
                          "a-folder-with-a-name-that-is-longer-than-lua-cares-to-print";
  fs::create_directories(folder / "mixes");
  std::ofstream(folder / "mixes/llama.lua") << "return { layers = 3 }";
  std::ofstream(folder / "good.lua") << "local mw = require 'meshwright'\n"
                                        "mw.train { model = mw.llama(require 'mixes.llama') }\n";
  std::ofstream(folder / "bad.lua") << "\n\nlocal x = nil + 1\n";
  std::ofstream(folder / "worse.lua") << "\nlocal = 3\n";
  const auto text_of = [&](const char* file) -> std::string {
    mw::Script script(host, options);
    try {
      script.run_file(folder / file);
    } catch (const mw::Error& error) {
      return with_places(error);
    }
    return "none";
  };
  CHECK(text_of("good.lua") == "none");
  CHECK(experiment()["$at"] == (folder / "good.lua").string() + ":2");
  CHECK(text_of("bad.lua") == (folder / "bad.lua").string() + ":3: script.error");
  CHECK(text_of("worse.lua") == (folder / "worse.lua").string() + ":2: script.error");
  CHECK(text_of("god.lua") == "script.unreadable");
  CHECK(text_of("mixes") == "script.unreadable");
  fs::remove_all(folder.parent_path());
}

TEST_CASE_METHOD(Fixture, "the wish to stop ends an endless script") {
  mw::request_stop();
  CHECK(run("while true do end") == "run.stopped");
  CHECK(run("mw.train { model = mw.llama { layers = 1 } }") == "run.stopped");
  mw::forget_stop_request();
  CHECK(host.calls.empty());
}

TEST_CASE_METHOD(Fixture, "the prompt prints expressions, keeps globals and goes on after errors") {
  mw::Script script(host, options);
  std::istringstream in(
      "=1+1\nx = 3\nx * 2\nfor i = 1, 2 do\nx = x + i\nend\nx, 'a'\nmw.nix\nmw.llama { layers = 2 "
      "}\nlocal\n");
  std::string text;
  script.repl({[&](const std::string&) -> std::optional<std::string> {
                 std::string line;
                 if (!std::getline(in, line)) return std::nullopt;
                 return line;
               },
               [&](const std::string& values) { text += values + "\n"; },
               [&](const mw::Error& error) { text += with_places(error) + "\n"; }});
  CHECK_THAT(text, Catch::StartsWith("2\n6\n6\ta\nrepl:1: script.unknown"));
  CHECK_THAT(text, Contains("llama { layers = 2 }\n"));
}
