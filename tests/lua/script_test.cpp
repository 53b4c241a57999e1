// Scripts: what their tables become, where errors are placed, --set, modules, the prompt.
#include "lua/script.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/interrupt.h"
#include "base/json_text.h"

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using mw::Json;

namespace {

fs::path build_folder() {
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path();
}

// A host that checks the options of what it gets and keeps it.
class RecordingHost : public mw::Host {
 public:
  RecordingHost() : plugins_({build_folder() / "lib/meshwright/test-plugins"}) {
    llama_.integer("layers", "").at_least(1).integer("hidden", "").fallback(64);
    text_.any("path", "").list("more", "").optional().positional("path");
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
    return {{"llama", "model", "", &llama_}, {"text", "data", "", &text_}};
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
      llama_.read(model, "model", problems);
    }
    for (const Json& extra : extra_problems)
      problems.add(mw::Stage::plan, extra.get<std::string>());
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
  std::vector<Json> extra_problems;

 private:
  mw::Options llama_, text_, experiment_;
  mw::PluginRegistry plugins_;
};

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
  // Runs the script; returns the error's text, or "".
  std::string run(const std::string& text) {
    mw::Script script(host, options);
    try {
      script.run_text("local mw = require 'meshwright'\n" + text, "s.lua");
    } catch (const mw::Error& error) {
      stage = error.problems().front().stage;
      return error.what();
    }
    unprinted = script.unprinted();
    return "";
  }
  mw::Stage stage = mw::Stage::run;
  const Json& experiment(std::size_t call = 0) { return host.calls.at(call).experiments.at(0); }
};

}  // namespace

TEST_CASE_METHOD(Fixture, "a script's tables arrive as they were written") {
  REQUIRE(run(R"(local good = mw.plugins("good")
    mw.train { model = mw.llama { layers = 2, hidden = 8.0 }, data = mw.text { "a", "b", more = {} },
      plan = { good(2), good { ways = 4, form = "fancy" }, good }, steps = 4, log = "x\ny" })") ==
          "");
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

TEST_CASE_METHOD(Fixture,
                 "results are tables that print as text, and are printed if the script does not") {
  REQUIRE(run(R"(local run = mw.train { model = mw.llama(nil and {} or { layers = 1 }) }
    assert(run.losses[2] == 2.25 and math.type(run.steps) == "integer" and run.kind == "train")
    assert(tostring(run) == "ran train")
    mw.plan { model = mw.llama { layers = 1 } })") == "");
  CHECK(unprinted == std::vector<std::string>{"ran plan"});
}

TEST_CASE_METHOD(Fixture, "problems are placed at the table that they are about") {
  const std::string text = run(R"(
    mw.train {
      model = mw.llama {
        layers = 0 },
      plan = {
        mw.plugin("good")(3) },
      stepz = 3,
    })");
  CHECK(stage == mw::Stage::options);
  CHECK_THAT(text, Contains("s.lua:4: model.layers must be at least 1; got 0"));
  CHECK_THAT(text, Contains("s.lua:3: stepz is not a known option [did you mean \"steps\"?"));
  host.extra_problems = {"good(3) cannot split 4 heads", "no such thing"};
  const std::string plan = run(R"(
    mw.train {
      model = mw.llama { layers = 1 }, plan = {
        mw.plugin("good")(3) } })");
  CHECK(stage == mw::Stage::plan);
  CHECK(plan == "s.lua:5: good(3) cannot split 4 heads\ns.lua:3: no such thing");
}

TEST_CASE_METHOD(Fixture, "a script's own errors have file, line and a hint") {
  CHECK_THAT(run("\nlocal x = nil\nx.y = 1"),
             Contains("s.lua:4: attempt to index a nil value (local 'x')"));
  CHECK(stage == mw::Stage::script);
  CHECK_THAT(run("\nlocal function f() error('boom') end\nf()"),
             Contains("s.lua:3: boom [called from s.lua:4]"));
  CHECK_THAT(run("mw.train {"), Contains("s.lua:2: ") && Contains("near <eof>"));
  CHECK_THAT(run("mw.trian {}"),
             Contains("s.lua:2: there is no mw.trian [did you mean \"train\"?]"));
  CHECK_THAT(run("mw.resnet {}"),
             Contains("there is no mw.resnet [there are: bar_chart, compare, llama, "));
  CHECK_THAT(run("mw.steps = 3"), Contains("s.lua:2: mw.steps cannot be set"));
  CHECK_THAT(run("mw.plugins('god')"), Contains("s.lua:2: there is no plugin \"god\" in ") &&
                                           Contains("did you mean \"good\"?"));
  CHECK(stage == mw::Stage::options);
  CHECK_THAT(run("mw.plugins('wrong_abi')"),
             Contains("s.lua:2: plugin \"wrong_abi\": ") && Contains("ABI 999"));
  CHECK_THAT(run("mw.plugins()"), Contains("s.lua:2: mw.plugins takes names of plugins; got none"));
  CHECK_THAT(run("mw.plugins('good')(1, 2)"),
             Contains("good takes one table or one value; got 2 values"));
  CHECK_THAT(run("mw.llama(missing)"), Contains("s.lua:2: llama got nil [a misspelt variable?]"));
  CHECK_THAT(run("mw.llama { kind = 3 }"), Contains("the key kind is not yours to set"));
  CHECK_THAT(run("mw.train()"), Contains("s.lua:2: mw.train takes 1 experiment table; got 0"));
  CHECK_THAT(run("mw.train(3)"),
             Contains("s.lua:2: mw.train takes an experiment table; got number"));
  CHECK_THAT(run("os.exit(0)"), Contains("os.exit is not available"));
  CHECK_THAT(run("error { code = 3 }"), Contains("table: 0x"));
  CHECK(host.calls.empty());
}

TEST_CASE_METHOD(Fixture, "tables that are no trees of plain values are refused with their path") {
  CHECK_THAT(run("local t = {} t.t = { t } mw.train { model = t }"),
             Contains("s.lua:2: model.t[1] contains itself"));
  CHECK_THAT(run("mw.train { plan = { 1, nil, 3 } }"),
             Contains("s.lua:2: plan has holes: 2 values up to [3] [one of its entries is nil"));
  CHECK_THAT(run("mw.train { model = { [true] = 1 } }"),
             Contains("model has a key that is a boolean"));
  CHECK_THAT(run("mw.train { log = io.stdout }"), Contains("log is a userdata"));
  CHECK_THAT(run("mw.train { log = coroutine.create(print) }"), Contains("log is a thread"));
  CHECK_THAT(run("mw.train { plan = { [0] = 1 } }"), Contains("plan has the entry [0]"));
  CHECK_THAT(run("local t = {} for i = 1, 200 do t = { t } end mw.train { model = t }"),
             Contains("nested more than 100 tables deep"));
  CHECK_THAT(run("mw.train { 1, 2 }"), Contains("takes a table with names; got a list"));
}

TEST_CASE_METHOD(Fixture, "a table used twice is no cycle") {
  CHECK(run("local m = mw.llama { layers = 1 } mw.train { model = m, data = m }") == "");
}

TEST_CASE_METHOD(Fixture, "functions are called from other threads while the script waits") {
  CHECK(run(R"(local seen
    local run = mw.train { model = mw.llama { layers = 1 },
      observe = function(step) seen = step return { twice = step * 2 } end }
    assert(seen == 7 and run.observed.twice == 14))") == "");
  CHECK_THAT(
      run("mw.train { model = mw.llama { layers = 1 },\nobserve = function() local x x() end }"),
      Contains("s.lua:3: attempt to call a nil value (local 'x')"));
  CHECK_THAT(run("local e = { model = mw.llama { layers = 1 } }\ne.observe = function() mw.plan(e) "
                 "end\nmw.train(e)"),
             Contains("s.lua:3: mw.plan cannot run inside a function that another verb calls"));
  CHECK(run(R"(local e = { model = mw.llama { layers = 1 }, observe = function() error("x") end }
    assert(not pcall(mw.train, e))
    e.observe = nil
    mw.train(e))") == "");
}

TEST_CASE_METHOD(Fixture, "pcall catches what verbs throw, with its text") {
  CHECK(run(R"(local ok, why = pcall(mw.train, { model = mw.llama { layers = 0 } })
    assert(not ok and tostring(why):find("model.layers must be at least 1", 1, true), tostring(why)))") ==
        "");
}

TEST_CASE_METHOD(Fixture, "Setting: --set changes experiments and says so once") {
  options.settings = {"steps=5",           "model.layers=3", "plan[2].ways=8",
                      "plan.1.form=fancy", "log=runs/a.h5",  "data=nil"};
  const std::string two = R"(local good = mw.plugins("good")
    local e = { model = mw.llama { layers = 1 }, data = mw.text "t", plan = { good(2), good(2) }, steps = 100 }
    mw.train(e) mw.train(e) assert(e.steps == 100))";
  REQUIRE(run(two) == "");
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
  REQUIRE(run("mw.train { model = mw.llama { layers = 1 } }") == "");
  CHECK(mw::without_hidden(experiment()["plan"]) ==
        Json::parse(R"([{"plugin": "good", "ways": 2}, {"plugin": "good", "ways": 4}])"));
  CHECK(experiment()["steps"] == 16);
  CHECK(experiment()["log"] == "1");
  CHECK(experiment()["model"]["layers"] == 9);
}

TEST_CASE_METHOD(Fixture, "a bad --set is blamed, not the script") {
  const std::string script =
      "mw.train { model = mw.llama { layers = 1 }, plan = { mw.plugin('good')(2) } }";
  const auto with = [&](const std::string& setting) {
    options.settings = {setting};
    return run(script);
  };
  CHECK(with("steps=many") == "--set steps=many: steps must be an integer; got \"many\"");
  CHECK(stage == mw::Stage::options);
  CHECK_THAT(with("stepz=3"),
             Contains("--set stepz=3: stepz is not a known option [did you mean \"steps\"?"));
  CHECK_THAT(with("plan[3].ways=1"), Contains("plan is a list of 1 and has no entry 3"));
  CHECK_THAT(with("model.layers.x=1"), Contains("model.layers is 1, which has no keys"));
  CHECK_THAT(with("plan={good(2}"),
             Contains("--set plan={good(2}: ") && Contains("expected near '}'"));
  CHECK_THAT(with("steps"), Contains("is not of the form key=value"));
  CHECK_THAT(with("=3"), Contains("is not of the form key=value"));
}

TEST_CASE_METHOD(Fixture, "plan and verify turn mw.train into themselves") {
  options.train_as = "plan";
  REQUIRE(run("local r = mw.train { model = mw.llama { layers = 1 } } assert(r.kind == 'plan')") ==
          "");
  CHECK(host.calls[0].verb == "plan");
  CHECK_THAT(run("local r = mw.train { model = mw.llama { layers = 1 } } print(#r.grad_norms)"),
             Contains("[under this command mw.train returns what mw.plan does"));
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
      return error.what();
    }
    return "";
  };
  CHECK(text_of("good.lua") == "");
  CHECK(experiment()["$at"] == (folder / "good.lua").string() + ":2");
  CHECK_THAT(text_of("bad.lua"),
             Contains((folder / "bad.lua").string() + ":3: attempt to perform arithmetic"));
  CHECK_THAT(text_of("worse.lua"),
             Contains((folder / "worse.lua").string() + ":2: <name> expected"));
  CHECK_THAT(text_of("god.lua"), Contains("there is no such script [did you mean " +
                                          (folder / "good.lua").string() + "?]"));
  CHECK_THAT(text_of("mixes"), Contains("this is a folder"));
  fs::remove_all(folder.parent_path());
}

TEST_CASE_METHOD(Fixture, "the wish to stop ends an endless script") {
  mw::request_stop();
  CHECK(run("while true do end") == "interrupted");
  CHECK(run("mw.train { model = mw.llama { layers = 1 } }") == "interrupted");
  mw::forget_stop_request();
  CHECK(host.calls.empty());
}

TEST_CASE_METHOD(Fixture, "the prompt prints expressions, keeps globals and goes on after errors") {
  mw::Script script(host, options);
  std::istringstream in(
      "=1+1\nx = 3\nx * 2\nfor i = 1, 2 do\nx = x + i\nend\nx, 'a'\nmw.nix\nmw.llama { layers = 2 "
      "}\nlocal\n");
  std::ostringstream out;
  script.repl(in, out, false);
  const std::string text = out.str();
  CHECK_THAT(text, Catch::StartsWith("2\n6\n6\ta\nrepl:1: there is no mw.nix"));
  CHECK_THAT(text, Contains("llama { layers = 2 }\n"));
}
