#include "app/app_host.h"

#include <fstream>
#include <sstream>

#include "app/verbs.h"
#include "engine/microbatch.h"
#include "meshwright/data.h"

namespace mw {
namespace {

template <class Kind>
void add_kinds(std::vector<Constructor>& all, const std::string& group,
               const std::vector<const Kind*>& kinds) {
  for (const Kind* kind : kinds)
    all.push_back({kind->name(), group, kind->doc(), &kind->options()});
}

}  // namespace

std::vector<Constructor> all_constructors() {
  std::vector<Constructor> all;
  add_kinds(all, "model", model_kinds());
  add_kinds(all, "data", data_kinds());
  add_kinds(all, "optimizer", optimizer_kinds());
  add_kinds(all, "schedule", lr_schedule_kinds());
  add_kinds(all, "microbatch", microbatch_kinds());
  return all;
}

std::vector<Verb> AppHost::verbs() const {
  return {{"train", "Trains, and returns what was measured beside what was predicted.", 1},
          {"plan", "Resolves the experiment and predicts it without training.", 1},
          {"verify", "Compares the plan with one rank in float64, gradient by gradient.", 1}};
}

void AppHost::set_script(const std::filesystem::path& file) {
  folder_ = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  std::stringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  script_ = text.str();
}

Json AppHost::call(const std::string& verb, const std::vector<Json>& experiments,
                   const CallFunction& function) {
  ReadContext context;
  context.plugins = &plugins_;
  // Where a person who reads the script would look: here, beside the script, one folder up.
  context.roots = {"."};
  if (!folder_.empty()) {
    context.roots.push_back(folder_);
    context.roots.push_back(folder_ / "..");
  }
  context.call = function;
  const Experiment experiment = read_experiment(experiments.at(0), context);

  Json result;
  if (verb == "train") {
    result = run_train(experiment, script_, output_);
  } else if (verb == "plan") {
    result = run_plan_verb(experiment);
    if (programs_) {
      std::string program;
      for (const Program& stage : experiment.plan->programs) {
        program += (program.empty() ? "" : "\n") + stage.print();
      }
      result["program"] = program;
      result["text"] = result["text"].get<std::string>() + "\n" + program;
    }
  } else {
    result = run_verify(experiment);
    if (result["verdict"] == "different" && exit_code_ == 0) exit_code_ = 1;
  }
  if (result.contains("status") && result["status"] == "interrupted") exit_code_ = 130;
  output_.result(result);
  return result;
}

}  // namespace mw
