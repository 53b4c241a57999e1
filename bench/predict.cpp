// What resolving and pricing takes: each mw.plan of a script by its parts, and mw.search by its
// own. Milliseconds of one core, the least of several rounds.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "common/process.h"
#include "lua/script.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/registry.h"
#include "predict/pipeline.h"
#include "predict/prediction.h"
#include "predict/shared_cores.h"
#include "script/priced_for.h"
#include "script/read_experiment.h"
#include "script/read_search.h"
#include "search/search.h"

namespace {

using mw::Json;

class Timing final : public mw::Host {
 public:
  Timing(mw::PluginRegistry& plugins, int rounds, int sampled)
      : plugins_(plugins), rounds_(rounds), sampled_(sampled) {}

  std::vector<mw::Constructor> constructors() const override {
    std::vector<mw::Constructor> all;
    for (std::size_t i = 0; i < mw::built_in().count; ++i) {
      const mw::Registration& one = mw::built_in().registrations[i];
      if (std::string name = mw::constructor_of(one.kind, one.name); !name.empty())
        all.push_back({std::move(name), &one});
    }
    return all;
  }
  std::vector<mw::Verb> verbs() const override {
    return {{"train", "", 1}, {"plan", "Times it.", 1}, {"search", "Times it.", 1}};
  }
  const mw::Options& experiment() const override { return mw::experiment_options(); }
  mw::PluginRegistry& plugins() override { return plugins_; }

  Json call(const std::string& verb, const std::vector<Json>& tables,
            const mw::CallFunction& function) override {
    mw::ReadContext context;
    context.catalog = &plugins_;
    context.roots = {"."};
    context.call = function;
    context.for_cluster = true;
    return verb == "search" ? search(tables.front(), context) : plan(tables.front(), context);
  }

 private:
  double least(const std::function<void()>& work) const {
    double least = 1e9;
    for (int round = 0; round < rounds_; ++round) {
      const double begun = mw::cpu_seconds_now();
      work();
      least = std::min(least, 1e3 * (mw::cpu_seconds_now() - begun));
    }
    return least;
  }

  Json plan(const Json& table, const mw::ReadContext& context) {
    mw::Experiment experiment;
    const double resolve = least([&] { experiment = mw::read_experiment(table, context); });
    const auto cluster = mw::machine_of(experiment);
    const mw::Machine& machine = cluster ? *cluster : mw::this_machine();
    const mw::Plan& plan = *experiment.plan;
    std::vector<mw::RankView> stages;
    std::size_t runs = 0, instructions = 0;
    for (const mw::Program& program : plan.programs) {
      stages.emplace_back(program, mw::rank_classes(program).front().at, 0, machine.scratch());
      runs += program.timeline.size();
      for (const mw::SegmentRun& run : program.timeline)
        instructions += program.segments[run.segment].code.size();
    }
    double step = 0;
    const double events = least([&] { step = mw::price_pipeline(stages, machine).step; });
    mw::Prediction prediction;
    const double predict = least([&] { prediction = mw::predict(plan, machine); });
    // Copies make their hash anew; `resolve` has it in its time.
    std::vector<mw::Plan> copies(rounds_, plan);
    std::size_t next = 0;
    const double hash = least([&] { static_cast<void>(copies[next++].hash()); });
    if (!headed_) {
      fmt::print("{:>7} {:>7} {:>7} {:>7} {:>9} {:>12} | {:>8} {:>8} {:>8} {:>8} {:>8}\n", "ranks",
                 "stages", "layers", "micro", "runs", "instructions", "resolve", "hash", "predict",
                 "events", "all, ms");
      headed_ = true;
    }
    fmt::print(
        "{:7} {:7} {:7} {:7} {:9} {:12} | {:8.1f} {:8.1f} {:8.1f} {:8.1f} {:8.1f}  {:.4g} s\n",
        plan.ranks(), plan.stages(), plan.graph->layers, plan.microbatches, runs, instructions,
        resolve, hash, predict, events, resolve + predict, step);
    std::fflush(stdout);
    Json result = prediction.to_json();
    result["text"] = "";
    return result;
  }

  Json search(const Json& table, const mw::ReadContext& context) {
    mw::ReadSearch read = mw::read_search(table, context);
    read.request.sampled = sampled_;
    const double begun = mw::cpu_seconds_now();
    const mw::SearchOutcome found = mw::search(read.request);
    const double core = mw::cpu_seconds_now() - begun;
    fmt::print(
        "search on {} ranks: {} candidates, {} refused, {} fit\n"
        "  {:.0f} candidates a second of a core: {:.3f} s for {} plans of few layers and orders of "
        "works, {:.3f} s for sums ({:.0f} a second by themselves)\n"
        "  {} plans whole in {:.2f} s; all {:.2f} s of a core, {:.0f} a second\n"
        "  best {}\n",
        read.request.ranks, found.candidates, found.refused, found.fitting, found.rate(),
        found.probing_seconds, found.probes, found.pricing_seconds,
        static_cast<double>(found.candidates) / found.pricing_seconds, found.checked.size(),
        found.checking_seconds, core, static_cast<double>(found.candidates) / core,
        found.best.empty() ? "none" : found.best.front().plan);
    for (const mw::FoundPlan& one : found.sample) {
      const auto hosts = static_cast<double>(one.predicted.host_needed);
      const auto peak = static_cast<double>(one.predicted.fullest().memory.peak);
      fmt::print("  time {:+6.1f} %, memory {:+6.1f} %,{} {:9.4g} s {:7.2f} GiB {}, {}, {}, {}\n",
                 100 * (one.closed_form_seconds / one.predicted.step_seconds - 1),
                 100 * (one.closed_form_bytes / peak - 1),
                 hosts > 0 ? fmt::format(" hosts {:+6.1f} %:",
                                         100 * (one.closed_form_host_bytes / hosts - 1))
                           : ":",
                 one.predicted.step_seconds, peak / 0x1p30, one.plan, one.microbatch,
                 one.recompute.dump(), one.offload.dump());
    }
    std::fflush(stdout);
    return {{"text", ""}, {"kind", "search"}, {"candidates", found.candidates}};
  }

  mw::PluginRegistry& plugins_;
  const int rounds_, sampled_;
  bool headed_ = false;
};

}  // namespace

// bench_predict SCRIPT [ROUNDS [SAMPLE]]; SAMPLE: of a search's candidates so many are planned
// whole, to see how far the closed form errs.
int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: bench_predict SCRIPT [ROUNDS [SAMPLE]]\n");
    return 2;
  }
  mw::keep_freed_memory();  // as in a sweep or a search, which plan again and again
  try {
    mw::PluginRegistry plugins(mw::PluginRegistry::search_path({}));
    Timing timing(plugins, argc > 2 ? std::stoi(argv[2]) : 3, argc > 3 ? std::stoi(argv[3]) : 0);
    mw::ScriptOptions options;
    options.train_as = "plan";
    options.library = mw::lua_library();
    mw::Script script(timing, options);
    script.run_file(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
