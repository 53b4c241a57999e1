// Opens an experiment's weights, and says where each parameter goes at its export.
#include "script/read_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "checkpoint/hf_export.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/engine/text.h"
#include "script/read_experiment.h"

namespace mw {
namespace {

bool has(const Values& values, const char* key) {
  return values.has(key) && !values.at(key).is_null();
}

// The first stage that holds each parameter.
std::vector<int> owners_of(const Plan& plan, const std::vector<WeightSpec>& specs) {
  std::map<std::string, int> stages;
  for (const Program& program : plan.programs) {
    for (const ProgramParameter& parameter : program.parameters)
      stages.emplace(plan.graph->value(parameter.value).name, program.stage);
  }
  std::vector<int> owners;
  for (const WeightSpec& spec : specs) owners.push_back(stages.at(spec.name));
  return owners;
}

// A model's options that are fractions, with their values: "norm_eps = 1e-05, ".
std::string numbers_of(const HfConfig& config) {
  std::string text;
  for (const HfKey& key : config.keys)
    if (!key.option.empty() && key.value.is_number_float())
      text += fmt::format("{} = {}, ", key.option, lua_text(key.value));
  return text;
}

}  // namespace

void read_weights(const Values& values, RunSetup& setup, std::vector<std::string>& notes,
                  Problems& problems) {
  if (!has(values, "weights") || !setup.plan || values.text("weights").empty()) return;
  Problems found;
  try {
    const std::string path = values.find_file(values.text("weights"));
    const PlanRequest& request = setup.plan->request;
    Rotary rotary;
    std::vector<std::string> without;
    if (const auto config = hf_config_of(*request.model, request.sequence)) {
      check_hf_config(config_beside(path), request.model->name(), *config, found);
      rotary = rotary_of(*config);
      without = config->without;
      if (config_beside(path).empty())
        notes.push_back(fmt::format(
            "weights: there is no config.json beside {}, so that {}the number of heads, a window "
            "and "
            "all else that no tensor's shape says are the script's, and compared with nothing{}",
            path, numbers_of(*config),
            has(values, "export") ? "; nor does the export get a tokenizer" : ""));
    }
    const auto weights = std::make_shared<const Weights>(path);
    // Shapes are checked only where config.json fits, as its problems are nearer to the cause.
    const std::vector<WeightSpec> specs = weight_specs(*setup.plan->graph);
    check_names(specs, found);
    if (found.empty()) weights->check(specs, found, rotary, without);
    const at::ScalarType computed = scalar_type(setup.plan->programs.front().dtype);
    setup.fill = [weights, specs, computed](const Value& parameter, const std::vector<Range>& part,
                                            const at::Tensor& out) {
      weights->load(*std::find_if(specs.begin(), specs.end(),
                                  [&](const WeightSpec& s) { return s.name == parameter.name; }),
                    part, out, computed);
    };
  } catch (const Error& error) {
    for (Problem p : error.problems()) {
      p.key = "weights";
      found.add(std::move(p));
    }
  }
  problems.add(found);
}

at::ScalarType export_dtype(const std::string& name) {
  static const std::map<std::string, at::ScalarType> all = {
      {"fp64", at::kDouble}, {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};
  return all.at(name);
}

std::filesystem::path export_folder(const std::string& path) {
  namespace fs = std::filesystem;
  // The folder behind a link, as an export gives its folder the name anew.
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(
      behind_links(fs::absolute(path + "/.").lexically_normal().parent_path()), error);
  if (error)
    throw Error(Stage::options, "export.folder", "export",
                fmt::format("export: {}: {}", quote(path), error.message()), "name another folder");
  const fs::path here = fs::current_path();
  if (path.empty() || std::ranges::mismatch(folder, here).in1 == folder.end()) {
    throw Error(Stage::options, "export.folder", "export",
                fmt::format("export: \"{}\" is {}, and no folder to write", path,
                            path.empty() ? "no name"
                                         : "the working directory, or a folder in which that lies"),
                "name one that is not there yet");
  }
  return folder;
}

std::shared_ptr<HfExport> read_export(const Values& values, const Plan& plan,
                                      const std::string& hash) {
  if (!has(values, "export")) return nullptr;
  Problems problems;
  const Values given = export_options().read(values.at("export"), "export", problems);
  problems.throw_if_any();
  ExportSettings settings;
  settings.folder = export_folder(given.text("path"));
  settings.dtype = given.has("dtype") ? export_dtype(given.text("dtype"))
                                      : scalar_type(plan.programs.front().dtype);
  settings.most_bytes = given.integer("shard");
  settings.overwrite = values.flag("overwrite");
  settings.hash = hash;
  if (has(values, "weights")) settings.started_from = values.find_file(values.text("weights"));
  std::vector<WeightSpec> specs = weight_specs(*plan.graph);
  check_names(specs, problems);
  problems.throw_if_any();
  std::vector<int> owners = owners_of(plan, specs);
  return std::make_shared<HfExport>(std::move(settings), std::move(specs), std::move(owners),
                                    hf_config_of(*plan.request.model, plan.request.sequence));
}

}  // namespace mw
