// What a script may name and call when the program runs it: constructors of models, data and
// optimizers, plugins, and the verbs (train, plan, verify, prove, compare).
#include "app/app_host.h"

#include <fmt/format.h>
#include <filesystem>

#include <algorithm>
#include <map>

#include "app/command.h"
#include "app/joined.h"
#include "app/model_text.h"
#include "app/plan_changes.h"
#include "app/runs_rows.h"
#include "app/sandboxed.h"
#include "app/texts.h"
#include "app/verbs.h"
#include "app/what_if.h"
#include "common/files.h"
#include "draw/listing.h"
#include "draw/placements.h"
#include "lua/script.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/plugin_faults.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/options.h"
#include "predict/kernel_counts.h"
#include "record/run_result.h"
#include "record/run_set.h"

namespace mw {

namespace {

std::map<std::string, std::vector<ResultField>> read_fields() {
  const std::filesystem::path path = lua_library() / "meshwright/results.json";
  std::map<std::string, std::vector<ResultField>> all;
  try {
    const Json file = read_json(path);
    for (const auto& [kind, parts] : file.at("results").items()) {
      for (const Json& part : parts) {
        for (const Json& field : file.at("parts").at(part.get<std::string>()))
          all[kind].push_back({field.at(0), field.at(1), field.at(2)});
      }
    }
  } catch (const Json::exception&) {
    throw Error(Stage::environment, "kit.templates", "", path.string() + " is missing or cut off",
                "build or install again");
  }
  return all;
}

}  // namespace

const std::vector<ResultField>& result_fields(const std::string& kind) {
  static const auto all = read_fields();
  static const std::vector<ResultField> none;
  const auto found = all.find(kind);
  return found != all.end() ? found->second : none;
}

namespace {

// Puts more behind a result's summary for people, with an empty line between.
void add_text(Json& result, const std::string& more) {
  result["text"] = result["text"].get<std::string>() + "\n" + more;
}

}  // namespace

Json AppHost::row_of(const Json& result) const {
  if (options_.full || !options_.what_if.empty()) return nullptr;
  if (result.value("kind", "") != "plan" || !result.contains("peak_bytes") ||
      result.contains("program") || result.contains("placements") || result.contains("pass") ||
      result.contains("by_strategy"))
    return nullptr;
  Json row = Json::object();
  for (const char* key : {"plan_hash", "plan", "name", "step_seconds", "tokens_per_second",
                          "peak_bytes", "fits", "priced_for", "experiment"})
    if (result.contains(key) && !result[key].is_null()) row[key] = result[key];
  return row;
}

std::string AppHost::list_of(const std::vector<Json>& rows) const {
  return from_library("plans", {{"rows", rows}, {"of_run", keys_of_run()}});
}

namespace {

// Throws Error with what is wrong with the options --what-if, before anything is planned.
void check_what_if(const Json& asked, const Json& table, Catalog& catalog) {
  try {
    knobs_of(asked, table, catalog);
  } catch (const Error& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) problem.place = "--what-if";
    throw Error(std::move(problems));
  }
}

// Reads all experiments and throws their problems together. If there are two, keys begin with "a."
// or "b.", and messages about the second with "b: ".
std::vector<Experiment> read_all(const std::vector<Json>& tables, const ReadContext& context) {
  std::vector<Experiment> read;
  Problems problems;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    try {
      read.push_back(read_experiment(tables[i], context));
    } catch (const Error& error) {
      for (Problem p : error.problems()) {
        if (tables.size() > 1) p.key = key_in(i == 0 ? "a" : "b", p.key);
        if (i > 0) p.message = "b: " + p.message;
        problems.add(std::move(p));
      }
    }
  }
  problems.throw_if_any();
  return read;
}

}  // namespace

std::vector<Constructor> all_constructors() {
  std::vector<Constructor> all;
  for (std::size_t i = 0; i < built_in().count; ++i) {
    const Registration& one = built_in().registrations[i];
    if (std::string name = constructor_of(one.kind, one.name); !name.empty())
      all.push_back({std::move(name), &one});
  }
  return all;
}

std::vector<Verb> AppHost::verbs() const {
  return {{"train", "Trains, and returns what was measured beside what was predicted.", 1},
          {"plan", "Resolves the experiment and predicts it without training.", 1},
          {"verify", "Compares the plan with one rank in float64, gradient by gradient.", 1},
          {"prove",
           "Proves that the plan's programs compute what one rank would, at any size, without "
           "running them; or says at which instruction that fails.",
           1},
          {"compare",
           "Compares two plans of one model on the same weights and tokens: the first op and "
           "parameter at which they part, and whether rounding explains it.",
           2},
          {"search", "Recommends a plan for a model on a cluster, and says why.", 1},
          {"what_if", "Plans and prices the experiment with one value after another changed.", 1}};
}

std::string AppHost::failure_of(const std::string& verb) const {
  const auto times = std::count(tried_.begin(), tried_.end(), verb);
  return fmt::format("mw.{} was called{} and failed, and the script caught the error", verb,
                     times > 1 ? fmt::format(" {} times", times) : "");
}

void AppHost::refuse_caught(const std::string& nothing, const std::string& verb) const {
  throw Error(Stage::script, "script.caught", "", nothing + failure_of(verb),
              what_to_do_with_caught);
}

std::vector<std::string> AppHost::result_fields(const std::string& kind) const {
  std::vector<std::string> names;
  for (const ResultField& field : mw::result_fields(kind)) names.emplace_back(field.name);
  return names;
}

void AppHost::show(const std::string& text) {
  output_.text(text);
}

// For the command sweep: throws if the first training comes before any mw.sweep, as the script may
// have none.
void AppHost::refuse_without_sweep() const {
  if (std::count(tried_.begin(), tried_.end(), "sweep") > 0) return;
  throw Error(
      Stage::script, "script.no-verb", "",
      script_name_ + ": nothing was swept: the script calls mw.train before any mw.sweep",
      "meshwright run does both, in the script's order; for sweep, mw.sweep { … } comes first");
}

void AppHost::set_script(const ScriptText& script) {
  folder_ = script.folder;
  script_.text = script.text;
  script_name_ = script.name;
}

ReadContext AppHost::context_with(const CallFunction& function) {
  ReadContext context;
  context.catalog = &plugins_;
  // Data is looked for in the current folder, beside the script, and one folder above it.
  context.roots = {"."};
  if (!folder_.empty()) {
    context.roots.push_back(folder_);
    context.roots.push_back(folder_ / "..");
  }
  context.call = function;
  return context;
}

Json AppHost::call(const std::string& verb, const std::vector<Json>& experiments,
                   const CallFunction& function) {
  take_plugin_faults();  // drops the faults that an earlier verb has left
  try {
    return answer(verb, experiments, function);
  } catch (const Error& error) {
    say_faults(error.problems());
    throw;
  }
}

std::vector<std::string> AppHost::say_faults(const std::vector<Problem>& said) {
  std::vector<std::string> faults = take_plugin_faults(said);
  for (const std::string& fault : faults)
    if (output_.says_first(fault)) output_.warn(tried_and_broke(fault));
  return faults;
}

void AppHost::give(Json& result) {
  if (const auto faults = say_faults({}); !faults.empty()) result["faults"] = faults;
  output_.result(result);
}

Json AppHost::answer(const std::string& verb, const std::vector<Json>& experiments,
                     const CallFunction& function) {
  if (options_.sweeps && verb == "train") refuse_without_sweep();
  ReadContext context = context_with(function);
  const bool runs = verb != "plan" && verb != "prove" && verb != "search" && verb != "what_if";
  context.for_cluster = !runs;
  // Plans are left unchecked where `compare` looks for faults or `prove` reports them, and for
  // `search`, which has no plan yet.
  const bool proves = verb == "prove" || (options_.proves_plans && verb == "plan");
  context.unchecked = verb == "compare" || proves || verb == "search" || options_.instead;
  if (options_.instead && !runs) options_.instead({});
  if (verb == "search") return search(experiments.front(), context);
  if (verb == "what_if") return what_if(experiments.front(), context);
  std::vector<Experiment> read = read_all(experiments, context);
  if (options_.instead) options_.instead(read);
  for (auto& each : read) {
    each.force = each.force || options_.force;
    if (runs) check_sandbox_lets(*each.platform);
  }
  if (verb == "plan" && !options_.what_if.empty())
    check_what_if(options_.what_if, experiments.front(), plugins_);
  if (processes_ != nullptr) agree_on(*processes_, verb, read);
  Json result;
  if (verb == "compare") {
    result = compare(read);
    if (result["status"] == "waiting") return result;
  } else if (runs || processes_ == nullptr || processes_->first()) {
    result = done(verb, read.front());
  }
  if (experiments.size() == 1 && experiments.front().contains(changed_key))
    result["changed"] = experiments.front()[changed_key];
  if (processes_ != nullptr) result = result_of_first(*processes_, verb, result);
  called_.insert(verb);
  if (verb != "prove" && proves)
    return proved_beside(read.front(), read.front(), std::move(result));
  const std::string status = result.value("status", "");
  const Json verdict = result.value("verdict", Json("equal"));
  if (verdict == "refused" && exit_code_ == 0) exit_code_ = exit_code_of(Stage::plan);
  const bool right = verdict == "equal" ||
                     (verdict.is_string() && verdict.get<std::string>().starts_with("proved"));
  if ((status == "failed" || !right) && exit_code_ == 0) exit_code_ = 1;
  // Unless quiet, the result's text ends with the reason.
  if (status == "failed" && output_.quiet() && result.contains("reason") &&
      result["reason"].is_string())
    output_.warn("error: " + result["reason"].get<std::string>());
  if (status == "interrupted") exit_code_ = 130;
  give(result);
  if (verb == "plan" && !options_.what_if.empty())
    add_what_if(experiments.front(), context, read.front(), result);
  if (options_.must_fit && verb == "plan") look_whether_it_fits(result);
  return result;
}

// Under the command prove, mw.plan returns the plan with the proof's text.
Json AppHost::proved_beside(const RunRequest& asked, const RunSetup& setup, Json plan) {
  const Json proof = run_prove(asked, setup, options_.strict);
  called_.insert("prove");
  if (proof["verdict"] == "refused" && exit_code_ == 0) exit_code_ = exit_code_of(Stage::plan);
  output_.result(proof);
  plan["text"] = proof["text"];
  return plan;
}

void AppHost::look_whether_it_fits(const Json& plan) {
  const bool known = plan.contains("fits") || plan.contains("rank_memory_limit");
  if (known && plan.value("fits", true)) return;
  const std::string mix = plan.value("plan", "");
  const std::string hint = plan.value("hint", "");
  output_.error(Error(Stage::plan, "plan.fit", "",
                      known ? fmt::format("--must-fit: {} does not fit", mix)
                            : fmt::format("--must-fit: it is not known whether {} fits", mix),
                      !known ? "name a cluster: --cluster NAME; or a limit: memory = \"80GiB\""
                      : !hint.empty() ? hint
                                      : "meshwright search finds mixes that fit a cluster"));
  if (exit_code_ == 0) exit_code_ = exit_code_of(Stage::plan);
}

Json AppHost::search(const Json& table, const ReadContext& context) {
  Json result = run_search(table, context, options_.search_as, output_);
  if (options_.pages) searches_.push_back(result);
  called_.insert("search");
  if (result["status"] == "interrupted") exit_code_ = exit_interrupted;
  give(result);
  return result;
}

Json AppHost::what_if(Json table, const ReadContext& context) {
  const Json asked = table.value(what_if_key, Json::array());
  table.erase(what_if_key);
  knobs_of(asked, table, plugins_);  // throws for wrong knobs before the experiment is read
  Json result = run_what_if(table, asked, context, read_experiment(table, context));
  called_.insert("what_if");
  give(result);
  return result;
}

void AppHost::add_what_if(const Json& table, const ReadContext& context, Experiment experiment,
                          Json& plan) {
  Json found = run_what_if(table, options_.what_if, context, std::move(experiment));
  give(found);
  if (options_.pages && !pages_.empty()) pages_.back()["what_if"] = what_if_page(found);
  add_text(plan, found["text"].get<std::string>());
}

Json AppHost::done(const std::string& verb, const Experiment& experiment) {
  if (verb == "train") {
    return cell_ ? train_beside(experiment)
                 : run_train(experiment, script_, output_, plugins_,
                             attempt_.of_training(std::count(tried_.begin(), tried_.end(), verb)));
  }
  if (verb == "logits") {
    if (called("logits")) {
      throw Error(Stage::script, "logits.count", "",
                  "logits: this is the second mw.train, and -o names one file",
                  "give a script with one mw.train, or choose one by --set");
    }
    return run_logits(experiment, experiment, options_.logits);
  }
  if (verb == "prove") return run_prove(experiment, experiment, options_.strict);
  if (verb != "plan") return run_verify(experiment, experiment, output_);
  Json result;
  if (options_.models) {
    const std::string name = experiment.plan->request.model->name();
    result = model_json(*experiment.plan->graph, name);
    result["text"] = from_library("model", result);
    return result;
  }
  result = run_plan_verb(experiment,
                         {options_.pages ? &pages_ : nullptr, options_.traces ? &traces_ : nullptr,
                          options_.braids ? &braids_ : nullptr});
  if (options_.placements) {
    result["placements"] = placements_json(*experiment.plan);
    add_text(result, placements_text(*experiment.plan));
  }
  if (!options_.diff.empty()) {
    result["pass"] = pass_diff(experiment, experiment, options_.diff);
    add_text(result, result["pass"].value("text", ""));
  }
  if (options_.by_strategy) {
    const Json changes = plan_by_strategy(experiment, experiment);
    result["by_strategy"] = changes.at("rows");
    add_text(result, changes.value("text", ""));
  }
  result["kernels"] = Json::array();
  std::string program, text;
  for (const Program& stage : experiment.plan->programs) {
    const KernelUses kernels = forecast_kernels(RankView(stage, stage.first()));
    Json counted = kernels_json(kernels);
    counted["stage"] = stage.stage;
    result["kernels"].push_back(std::move(counted));
    if (!options_.programs) continue;
    const std::string between = program.empty() ? "" : "\n", listed = listing(stage);
    program += between + listed;
    text += between + listed + "\n" + kernels_table(kernels);
  }
  if (options_.programs) {
    result["program"] = program;
    add_text(result, text);
  }
  return result;
}

// In a cell's process: a training that is not the cell's. It writes no files, as the process that
// started this one has written them.
Json AppHost::train_beside(Experiment experiment) {
  const std::string log = experiment.log;
  experiment.log.clear();
  experiment.folder.clear();
  experiment.tensorboard.clear();
  experiment.trace.clear();
  Json result = run_train(experiment, script_, output_, plugins_, attempt_);
  if (!log.empty()) result["log"] = log;
  return result;
}

// mw.compare gives both experiments in one call. Under the command compare, each mw.train gives
// one, and the first waits for the second.
Json AppHost::compare(const std::vector<Experiment>& given) {
  if (given.size() == 2) return run_compare({given[0], given[0]}, {given[1], given[1]}, output_);
  if (compared_++ == 0) {
    waiting_ = given[0];
    return {{"kind", "compare"}, {"status", "waiting"}, {"text", "a: " + waiting_->plan->mix()}};
  }
  if (compared_ == 2) return run_compare({*waiting_, *waiting_}, {given[0], given[0]}, output_);
  throw Error(Stage::script, "compare.count", "",
              "compare takes two experiments; this is the third mw.train",
              "give two scripts with one mw.train each, or one script with two");
}

void AppHost::check_compared() const {
  if (compared_ == 2 || (compared_ == 0 && called("compare"))) return;
  throw Error(
      Stage::script, "compare.count", "",
      fmt::format("compare takes two experiments; found {}", plural(compared_, "mw.train")),
      "give two scripts with one mw.train each, or one script with two, or with mw.compare");
}

namespace {

namespace fs = std::filesystem;

Json loaded_run(const RunEntry& entry) {
  Json result;
  try {
    if (!entry.readable()) {
      result = {{"kind", "train"},
                {"name", entry.name},
                {"status", entry.status},
                {"reason", entry.reason.empty() ? Json() : Json(entry.reason)}};
      if (!entry.sweep.empty()) result["sweep"] = entry.sweep;
      for (const auto& [key, value] : entry.values) result["values"][key] = value;
    } else {
      RunReader reader(entry.path);
      result = run_result(reader, entry);
    }
  } catch (const std::exception& error) {
    RunEntry broken = entry;
    broken.status = "unreadable";
    broken.reason = problem_of(error).message;
    return loaded_run(broken);
  }
  const bool said = result.contains("text") && result["text"].is_string();
  if (!said) result["text"] = line_of(result);
  return result;
}

}  // namespace

Json AppHost::load(const std::string& path, const std::string& folder) {
  std::error_code error;
  const fs::path given(path), beside = fs::path(folder) / given;
  const fs::path found = !fs::exists(given, error) && fs::exists(beside, error) ? beside : given;
  check_may_read(found);
  const RunSet set = find_runs({found});
  const bool is_file = !fs::is_directory(found, error);
  if (is_file || (set.runs.size() == 1 && set.runs.front().sweep.empty())) {
    find_run(found);  // throws if the run cannot be read
    return loaded_run(set.runs.front());
  }
  Json list = Json::array();
  for (const RunEntry& entry : set.runs) {
    list.push_back(loaded_run(entry));
    list.back()["text"] = line_of(list.back());  // in a list, the text of a run is one line
  }
  return list;
}

}  // namespace mw
