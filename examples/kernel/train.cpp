// Trains a small model on the mix { dp(2), tp(2) } with the kernel and its plugins alone: no Lua, no
// run file, no command line. train.lua is the same run as a script; both print the same losses.
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <string>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/run.h"

namespace {

using mw::Json;

// What is registered under a name: the linked libraries' and those of the plugin path.
mw::PluginRegistry& registry() {
  static mw::PluginRegistry all(mw::PluginRegistry::search_path({}));
  return all;
}

// The options of something registered, checked. What it may ask of the other plugins it finds there.
mw::Values read(const mw::Registration& found, const std::string& key, const Json& options) {
  mw::Problems problems;
  mw::Values values = found.options().read(options, key, problems);
  problems.throw_if_any();
  values.set_reach(std::make_shared<mw::ScriptReach>(mw::ScriptReach{nullptr, {}, &registry()}));
  return values;
}

// A model, an optimizer, a source of tokens: made of the options that a script would give.
template <class Thing, class... Context>
std::shared_ptr<const Thing> make(const std::string& key, const std::string& name,
                                  const Json& options, const Context&... context) {
  const mw::Registration& found = registry().find(mw::KindOf<Thing>::kind, name);
  return mw::make<Thing>(found, read(found, key, options), context...);
}

mw::StrategyChoice strategy(const std::string& name, int ways) {
  const mw::Registration& found = registry().find(mw::Kind::strategy, name);
  const mw::Values values = read(found, "plan", {{"ways", ways}});
  mw::StrategyChoice choice{name, "plan", values.json(), nullptr};
  choice.strategy = mw::make<mw::Strategy>(found, values);
  return choice;
}

mw::RunSetup setup() {
  const Json sizes = {{"layers", 2}, {"hidden", 64}, {"heads", 4}, {"ffn", 128}, {"vocab", 128}};
  mw::RunSetup run;
  run.optimizer = make<mw::Optimizer>("optimizer", "adamw", {{"lr", 1e-3}});
  mw::PlanRequest request;
  request.model = make<mw::Model>("model", "llama", sizes);
  request.strategies = {strategy("dp", 2), strategy("tp", 2)};  // the last one's ranks are adjacent
  request.batch = 8;
  request.sequence = 32;
  request.precision = mw::Precision::fp64;
  request.optimizer = run.optimizer;
  mw::Problems problems;
  run.plan = mw::make_plan(request, problems);
  problems.throw_if_any();
  mw::DataContext context;
  context.sequence = request.sequence;
  context.vocab = request.model->vocab();
  run.data = make<mw::TokenSource>("data", "synthetic", Json::object(), context);
  run.schedule = [](std::int64_t) { return 1e-3; };
  run.steps = 5;
  return run;
}

}  // namespace

int main() try {
  const mw::RunSetup run = setup();
  fmt::print("{}\n", run.plan->mix());
  mw::OnStep print([](const mw::StepReport& report) {
    fmt::print("{} {:.12f}\n", report.step, report.loss);
    return false;  // goes on
  });
  mw::RunObserver* const observers[] = {&print};
  mw::train(run, observers, nullptr);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
