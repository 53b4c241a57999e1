// `meshwright plugins test`: tries all that a plugin registers, or the experiments of a script,
// alone and beside forms of parallelism, and reports each check.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <memory>
#include <span>
#include <string>

#include "app/app_host.h"
#include "app/command.h"
#include "app/kit/kit_checks.h"
#include "app/kit_sample.h"
#include "lua/names.h"
#include "lua/script.h"
#include "meshwright/carrier.h"
#include "meshwright/cluster.h"
#include "meshwright/data.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/platform.h"
#include "meshwright/reduction_hook.h"

namespace mw {
namespace {

// Makes the registered thing from its options, as a script would. Does nothing for kinds that are
// made of more than their options.
void construct(const Registration& one, const Json& options,
               const std::shared_ptr<const ScriptReach>& reach) {
  Problems problems;
  Values values = one.options().read(options, "", problems);
  problems.throw_if_any();
  values.set_reach(reach);
  call_plugin(
      {one.name, ""}, "was made",
      [&] {
        if (one.kind == Kind::strategy) make<Strategy>(one, values)->axes();
        if (one.kind == Kind::scheduler) make<Scheduler>(one, values)->fixed_chunks();
        if (one.kind == Kind::model) make<Model>(one, values)->vocab();
        if (one.kind == Kind::optimizer) make<Optimizer>(one, values)->rule(0);
        if (one.kind == Kind::hook) make<ReductionHook>(one, values);
        if (one.kind == Kind::cluster) make<ClusterSource>(one, values);
        if (one.kind == Kind::device) make<Platform>(one, values)->type();
        if (one.kind == Kind::observer) make<RunObserver>(one, values, ObservedRun{});
      },
      Stage::options);
}

// Whether scripts and --set can name a thing so: "zb-h1", "1f1b".
bool is_word(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.');
  });
}

// What is wrong with how an option is declared; empty: nothing.
std::string badly_declared(const Option& option, const Options& all) {
  if (!is_lua_name(option.name)) return "a script cannot write this name";
  if (option.name == "plugin" || option.name == "kind") return "entries have a key of this name";
  const auto same = [&](const Option& other) { return other.name == option.name; };
  if (std::count_if(all.list().begin(), all.list().end(), same) > 1) return "declared twice";
  if (option.doc.empty()) return "it has no doc";
  if (option.least && option.most && option.least->get<double>() > option.most->get<double>())
    return "its least value is above its most";
  if (option.name == "ways" && option.least && option.least->get<double>() < 1)
    return "no axis has fewer ranks than 1: say at_least(1)";
  if (option.type == OptionType::choice && option.choices.empty()) return "it has no choices";
  if (!option.fallback || option.fallback->is_null()) return "";
  std::vector<std::string> unknown;
  Json given = sample_options(all, false, unknown);
  given[option.name] = *option.fallback;
  Problems problems;
  all.read(given, "", problems);
  for (const Problem& problem : problems.list()) {
    if (problem.key == option.name) return "its own default is refused: " + problem.message;
  }
  return "";
}

class PluginTester {
 public:
  // `plugin_path`: where other processes of this program look for the plugin.
  PluginTester(PluginRegistry& plugins, std::vector<std::string> plugin_path, Output& output)
      : report_(output), plugin_path_(std::move(plugin_path)) {
    context_.catalog = &plugins;
    context_.roots = {"."};
    context_.unchecked = true;  // check_mixes() judges plans itself
    reach_ =
        std::make_shared<ScriptReach>(ScriptReach{context_.call, context_.roots, context_.catalog});
  }

  int run(const PluginDescriptor& plugin) {
    for (const Registration& one : std::span(plugin.registrations, plugin.count)) {
      report_.begin(fmt::format("{} {}", noun_of(one.kind), one.name));
      declared(one);
      std::vector<std::string> unknown;
      options_ = sample_options(one.options(), one.kind == Kind::model, unknown);
      if (!unknown.empty()) {
        report_.failed(
            "tried with values for its options",
            fmt::format("give a value for {}: the test cannot choose one", join(unknown)),
            "give them in a script: meshwright plugins test SCRIPT.lua");
        continue;
      }
      refuses(one);
      behaves(one);
    }
    report_.end();
    return report_.failures() > 0 ? 1 : 0;
  }

 private:
  void declared(const Registration& one) {
    std::vector<std::string> bad;
    if (one.doc == nullptr || *one.doc == '\0') bad.emplace_back("it has no line about itself");
    if (!is_word(one.name)) bad.emplace_back("a script cannot write its name");
    for (const Option& option : one.options().list()) {
      const std::string why = badly_declared(option, one.options());
      if (!why.empty()) bad.push_back(fmt::format("{}: {}", option.name, why));
    }
    const std::string check = fmt::format(
        "{} documented", plural(static_cast<std::int64_t>(one.options().list().size()), "option"));
    if (bad.empty()) {
      report_.ok(check);
    } else {
      report_.failed(check, join(bad, "; "), "see Options in meshwright/options.h");
    }
  }

  // Checks that an unknown key and values out of range are refused by name, and that the ends of a
  // range throw nothing but an Error.
  void refuses(const Registration& one) {
    const auto attempt = [&](const std::string& key, const Json& value, bool wrong) {
      Json given = options_;
      given[key] = value;
      const std::string what = fmt::format("{} = {}", key, value.dump());
      try {
        construct(one, given, reach_);
      } catch (const Error& error) {
        const Problem& first = error.problems().front();
        if (first.code == "plugin.fault" || (wrong && first.key != key))
          report_.failed(what, error);
        return first.code != "plugin.fault" && (!wrong || first.key == key);
      }
      if (wrong) report_.failed(what, "was taken", "see Options in meshwright/options.h");
      return !wrong;
    };
    bool good = attempt("no_such_option", 1, true);
    int tried = 1;
    for (const Option& option : one.options().list()) {
      const bool whole = option.type == OptionType::integer || option.type == OptionType::bytes;
      if (!whole && option.type != OptionType::number) continue;
      for (const auto& [end, step] : {std::pair(option.least, -1), std::pair(option.most, 1)}) {
        if (!end || (option.type == OptionType::bytes && step > 0)) continue;
        if (whole && step > 0 && end->get<std::int64_t>() == INT64_MAX) continue;
        const double beyond =
            end->get<double>() + step * (whole ? 1 : 1 + std::abs(end->get<double>()));
        const Json past = whole ? Json(end->get<std::int64_t>() + step) : Json(beyond);
        good = attempt(option.name, *end, false) && good;
        good = attempt(option.name, past, true) && good;
        tried += 2;
      }
    }
    if (good) report_.ok("refuses what it must", fmt::format("{} tried", plural(tried, "value")));
  }

  Json named(const Registration& one) const {
    Json table = options_;
    table[one.kind == Kind::strategy ? "plugin" : "kind"] = one.name;
    return table;
  }

  void behaves(const Registration& one) {
    Json experiment = small_experiment();
    const Json table = named(one);
    switch (one.kind) {
      case Kind::strategy:
        experiment["plan"] = Json::array({table});
        if (!goes(experiment) && goes(with(small_experiment(true), table)))
          experiment = with(small_experiment(true), table);
        break;
      case Kind::scheduler:
        if (!orders(one)) return;
        experiment["microbatch"] = 1;
        experiment["plan"] = plan_with("scheduler", table);
        break;
      case Kind::weave:
        experiment["microbatch"] = 1;
        experiment["plan"] = plan_with("weave", table);
        break;
      case Kind::hook:
        experiment["plan"] = plan_with("hook", table);
        break;
      case Kind::model:
      case Kind::data:
      case Kind::optimizer:
      case Kind::microbatch:
        experiment[name_of(one.kind)] = table;
        break;
      case Kind::lr_schedule:
        experiment["schedule"] = table;
        break;
      case Kind::packing:
        experiment["data"] = {
            {"kind", "pack"}, {"data", {{"kind", "synthetic"}}}, {"lengths", 3}, {"into", table}};
        break;
      case Kind::recompute:
        experiment["recompute"] = one.name;
        break;
      case Kind::observer:
        experiment["plan"] = Json::array({{{"plugin", "dp"}, {"ways", 2}}});
        check_observers(observed(experiment, table), experiment, context_, report_);
        return;
      case Kind::device:
        computes_on(one, experiment);
        return;
      case Kind::cluster:
        priced(one);
        return;
      case Kind::communicator:
        check_communicator({one.name, plugin_path_, launcher_of(one, kit_processes)}, report_);
        return;
      default:  // an op, whose operands only a model knows
        report_.failed(
            "runs somewhere", fmt::format("no experiment has {} by itself", noun_of(one.kind)),
            "test a script whose model has it: meshwright plugins test SCRIPT.lua --plugin-path …");
        return;
    }
    by_itself(one, experiment);
    check_mixes(experiment, context_, one.kind == Kind::model, report_);
    if (one.kind != Kind::optimizer) return;
    for (const KitMix& mix : kit_mixes("optimizer")) {
      const std::string check = "equals one rank, " + mix.name;
      const Json mixed = *beside(experiment, mix);
      const bool done = try_experiment(check, mixed, context_, report_,
                                       [&](const auto& e) { check_equal(check, e, report_); });
      if (done) check_all_books(mix.name, mixed, context_, report_);
    }
  }

  // Checks that ranks compute on the device what they compute on CPUs, alone and in mixes.
  void computes_on(const Registration& one, const Json& on_cpu) {
    try {
      const auto platform = make_by_default<Platform>(one);
      call_plugin({one.name, ""}, "was asked for its devices",
                  [&] { check_platform(*platform, report_); });
    } catch (const Error& error) {
      report_.failed("its devices are found", error);
      return;
    }
    Json there = on_cpu;
    there["device"] = one.name;
    check_device(there, on_cpu, context_, report_);
    for (const KitMix& mix : kit_mixes()) {
      const std::string check = "equals one rank, " + mix.name;
      try_experiment(check, *beside(there, mix), context_, report_,
                     [&](const Experiment& e) { check_equal(check, e, report_); });
    }
  }

  // Checks that a small plan can be priced for the cluster that the plugin describes.
  void priced(const Registration& one) {
    Json experiment = small_experiment(true);
    const char* check = "describes itself";
    try {
      Problems none;
      Values values = one.options().read(options_, "", none);
      values.set_reach(reach_);
      experiment["cluster"] = call_plugin({one.name, ""}, "described a cluster", [&] {
        return make<ClusterSource>(one, values)->describe();
      });
      report_.ok(check);
    } catch (const Error& error) {
      report_.failed(check, error);
      return;
    }
    const bool read = try_experiment("a plan on it", experiment, context_, report_,
                                     [&](const auto& e) { check_priced(e, e, report_); });
    if (!read) report_.failed("runs somewhere", "no plan could be priced for it", "see above");
  }

  // Checks updates, data and rates by themselves.
  void by_itself(const Registration& one, const Json& experiment) {
    const auto with = [&](const char* check, const auto& body) {
      try_experiment(check, experiment, context_, report_, body);
    };
    if (one.kind == Kind::optimizer) {
      with("the update by itself", [&](const auto& e) { check_updates(*e.optimizer, report_); });
    } else if (one.kind == Kind::data || one.kind == Kind::packing) {
      with("samples are a function of their number",
           [&](const auto& e) { check_data(*e.data, e.plan->request.sequence, report_); });
    } else if (one.kind == Kind::lr_schedule) {
      with("rates are a function of the step",
           [&](const auto& e) { check_rate(e.schedule, 8 * e.steps, report_); });
    }
  }

  static Json observed(Json experiment, const Json& observer) {
    experiment["observers"] = Json::array({observer});
    return experiment;
  }

  static Json with(Json experiment, const Json& entry) {
    experiment["plan"] = Json::array({entry});
    return experiment;
  }

  // Whether the experiment is not refused in some mix.
  bool goes(const Json& experiment) const {
    for (const KitMix& mix : kit_mixes()) {
      const auto table = beside(experiment, mix);
      try {
        if (table) read_experiment(*table, context_);
        if (table) return true;
      } catch (const Stopped&) {
        throw;
      } catch (const Error&) {
        continue;
      }
    }
    return false;
  }

  // Checks the scheduler's orders of many sizes. False: none is right, or one is wrong.
  bool orders(const Registration& one) {
    Problems none;
    Values values = one.options().read(options_, "", none);
    values.set_reach(reach_);
    std::unique_ptr<Scheduler> scheduler;
    int made = 0, refused = 0;
    std::string at;
    try {
      const int fixed = call_plugin({one.name, ""}, "was made", [&] {
        scheduler = make<Scheduler>(one, values);
        return scheduler->fixed_chunks();
      });
      for (const int stages : {1, 2, 3, 4, 8}) {
        for (const int microbatches : {1, 2, 3, 4, 8, 16}) {
          for (const int chunks : fixed > 0 ? std::vector{fixed} : std::vector{1, 2, 3}) {
            at = fmt::format("{} stages, {} chunks, {} microbatches", stages, chunks, microbatches);
            ScheduleRequest request;
            request.stages = stages;
            request.chunks = chunks;
            request.microbatches = microbatches;
            Problems problems;
            try {
              const Schedule schedule = call_plugin({one.name, ""}, "made a schedule",
                                                    [&] { return scheduler->make(request); });
              check(schedule, request, problems);
              ++made;
            } catch (const Error& error) {
              if (error.problems().front().code == "plugin.fault") throw;
              ++refused;
            }
            problems.throw_if_any();
          }
        }
      }
    } catch (const Error& error) {
      report_.failed("orders of " + at, error);
      return false;
    }
    if (made == 0) {
      report_.failed("orders of many sizes", "every size was refused", "see Scheduler::make");
      return false;
    }
    report_.ok("orders of many sizes", fmt::format("{} checked, {} refused", made, refused));
    return true;
  }

  KitReport report_;
  const std::vector<std::string> plugin_path_;
  ReadContext context_;
  std::shared_ptr<const ScriptReach> reach_;
  Json options_;
};

// The host of a script whose every verb tests its experiments instead.
class TestHost : public AppHost {
 public:
  TestHost(Output& output, PluginRegistry& plugins, std::filesystem::path folder)
      : AppHost(output, plugins), report_(output), plugins_(plugins), folder_(std::move(folder)) {}

  Json call(const std::string&, const std::vector<Json>& experiments,
            const CallFunction& function) override {
    ReadContext context;
    context.catalog = &plugins_;
    context.roots = {".", folder_, folder_ / ".."};
    context.call = function;
    context.unchecked = true;  // check_mixes() judges plans itself
    for (Json experiment : experiments) {
      experiment.erase("log");
      if (experiment.contains("steps")) experiment["steps"] = 3;
      report_.begin(fmt::format("experiment {}", ++tested_));
      if (experiment.contains("cluster")) {
        try_experiment("a plan is priced for the cluster", experiment, context, report_,
                       [&](const auto& e) { check_priced(e, e, report_); });
      }
      check_mixes(experiment, context, true, report_);
      if (!experiment.contains("observers")) continue;
      Json alone = experiment;
      alone.erase("observers");
      check_observers(experiment, alone, context, report_);
    }
    return {{"kind", "test"}, {"text", ""}};
  }

  int finish(const std::string& script) {
    if (tested_ == 0) {
      const std::string nothing = script + ": nothing was tested: ";
      if (!tried().empty()) refuse_caught(nothing, tried().front());
      throw Error(Stage::script, "script.no-verb", "",
                  nothing + "the script calls no verb, such as mw.train",
                  "give a script that calls mw.train { … }");
    }
    report_.end();
    return report_.failures() > 0 ? 1 : 0;
  }

 private:
  KitReport report_;
  PluginRegistry& plugins_;
  std::filesystem::path folder_;
  int tested_ = 0;
};

struct TestPluginArguments : Arguments {
  std::string what;  // a plugin's name, its file (NAME.so), or a script (FILE.lua)
};

int test_script(const Arguments& arguments, const std::string& file, PluginRegistry& plugins,
                Output& output) {
  const ScriptText text = read_script(file);
  TestHost host(output, plugins, text.folder);
  ScriptOptions options;
  options.settings = arguments.settings;
  options.library = lua_library();
  options.say = [&output](const std::string& said) { output.note(said); };
  Script script(host, options);
  script.run(text);
  return host.finish(file);
}

// Tests a plugin: tries what it registers alone and in mixes, and reports each check. In a script,
// tests what every mw.train is given. Returns 1 if a check failed.
int test_plugin(const TestPluginArguments& arguments, Output& output) {
  const std::string& what = arguments.what;
  stop_on_signals();
  PluginRegistry plugins = registry_of(arguments);
  if (what.ends_with(".lua")) return test_script(arguments, what, plugins, output);
  const bool is_file = what.find('/') != std::string::npos || what.ends_with(".so");
  const PluginDescriptor& plugin = is_file ? plugins.load(what) : plugins.plugin(what);
  if (!output.json())
    output.text(fmt::format("{} {}: {}", plugin.name, plugin.version, plugin.summary));
  std::vector<std::string> plugin_path = arguments.plugin_path;
  if (is_file) {
    const std::string folder = std::filesystem::path(what).parent_path().string();
    plugin_path.insert(plugin_path.begin(), folder.empty() ? "." : folder);
  }
  return PluginTester(plugins, std::move(plugin_path), output).run(plugin);
}

const CommandOf<TestPluginArguments> plugins_test_command{
    {"plugins test", 94,
     "try what a plugin brings, alone and beside the forms, and report each check"},
    [](CLI::App& command, TestPluginArguments& a) {
      command
          .add_option("NAME", a.what,
                      "a plugin's name, the path of its file, or a script (FILE.lua), whose every "
                      "mw.train is tried")
          ->required();
      add_settings(command, a);
      command.footer("Example: meshwright plugins test build/my_tp.so");
      add_common(command, a);
    },
    test_plugin};

}  // namespace
}  // namespace mw
