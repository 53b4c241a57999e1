// Scripts through the front end, up to the plans of their experiments. They have no libraries of
// Lua's, and what could go on without end, or grow, is left out, so that what does is a fault.
#include <algorithm>
#include <array>

#include "fuzz/readers.h"
#include "lua/host.h"
#include "lua/script.h"
#include "meshwright/engine/plugin_call.h"

namespace mw::fuzz {
namespace {

// Functions and loops are the ways to run long, ".." and these methods the ways to grow.
constexpr std::array left_out = {"while", "for",  "repeat", "goto",   "function", "..",   "rep",
                                 "gsub",  "find", "match",  "format", "load",     "text", "shards"};

class Planner final : public Host {
 public:
  std::vector<Constructor> constructors() const override {
    std::vector<Constructor> all;
    for (const Registration& one : registrations_of(built_in()))
      if (std::string name = constructor_of(one.kind, one.name); !name.empty())
        all.push_back({std::move(name), &one});
    return all;
  }
  std::vector<Verb> verbs() const override {
    return {{"train", "", 1}, {"plan", "", 1}, {"compare", "", 2}};
  }
  const Options& experiment() const override { return experiment_options(); }
  PluginRegistry& plugins() override { return test_plugins(); }
  Json call(const std::string& verb, const std::vector<Json>& experiments,
            const CallFunction& function) override {
    Json plans = Json::array();
    for (const Json& table : experiments) {
      const auto experiment = small_experiment(table, function);
      if (experiment) plans.push_back(experiment->hash);
    }
    return {{"kind", verb}, {"plans", plans}, {"text", "planned"}};
  }
};

void read_whole_script(Bytes input) {
  const std::string text = text_of(input);
  const bool bounded = std::none_of(left_out.begin(), left_out.end(), [&](const char* word) {
    return text.find(word) != std::string::npos;
  });
  if (!bounded) return;
  Planner host;
  ScriptOptions options;
  options.library = lua_library();
  options.settings = {"seed=3"};
  Script script(host, std::move(options));
  script.run_text(
      "local mw = require 'meshwright'; local _ENV = { mw = mw, math = math, pcall = pcall, "
      "tostring = tostring, type = type }; " +
          text,
      "input");
  script.unprinted();
}

const AddReader registered_scripts({"scripts", read_whole_script, 60});

}  // namespace
}  // namespace mw::fuzz
