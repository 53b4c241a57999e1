// `meshwright export`: the weights of a checkpoint, whatever mix wrote it, as a folder that
// transformers loads.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "app/command.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_export.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "script/read_weights.h"

namespace mw {
namespace {

// Makes the model of a checkpoint from its settings. Throws Error if that fails.
std::shared_ptr<const Model> model_of(const Checkpoint& checkpoint, PluginRegistry& plugins) {
  const Json settings = checkpoint.index().settings;
  const auto reach = std::make_shared<ScriptReach>(ScriptReach{{}, {}, &plugins});
  Problems problems;
  std::shared_ptr<const Model> model;
  try {
    const auto chosen =
        choose(Kind::model, settings.value("model", Json()), "model", reach, "", problems);
    if (chosen) model = make_chosen<Model>(*chosen, problems);
  } catch (const Error& error) {
    problems.add(error);
  }
  if (model != nullptr) return model;
  problems.add(Stage::options, "export.model", "",
               fmt::format("export: the model of {} cannot be made from what the checkpoint says",
                           checkpoint.folder().string()),
               "one whose layers a script's function makes is exported by its experiment: "
               "resume = true and export = \"FOLDER\"");
  problems.throw_if_any();
  return nullptr;
}

struct ExportArguments : Arguments {
  std::string checkpoint, folder;
  std::string dtype;  // empty: the experiment's precision
  std::string state;  // empty: the parameters
  std::string shard = "5GB";
  bool overwrite = false;
};

// Refuses a state of which the checkpoint has none of a parameter's shape.
void check_state(const Checkpoint& checkpoint, const std::vector<WeightSpec>& specs,
                 const std::string& state) {
  for (const WeightSpec& spec : specs) {
    const std::string name = state_tensor(state, spec.name);
    if (!checkpoint.has(name)) continue;
    const std::vector<std::int64_t>& shape = checkpoint.index().tensors.at(name).shape;
    if (shape == spec.shape) return;
    throw Error(Stage::options, "export.state", "",
                fmt::format("--state {}: that of {} has the shape [{}], and the parameter [{}]",
                            state, spec.name, fmt::join(shape, ", "), fmt::join(spec.shape, ", ")),
                "name a state that keeps a number for each element");
  }
  std::set<std::string> known;  // "optimizer/STATE/NAME"
  for (const auto& [name, tensor] : checkpoint.index().tensors) {
    const std::size_t begin = name.find('/') + 1, end = name.find('/', begin);
    if (name.starts_with("optimizer/")) known.insert(name.substr(begin, end - begin));
  }
  throw Error(Stage::options, "export.state", "",
              fmt::format("--state {}: the checkpoint {} has no such state", state,
                          checkpoint.folder().string()),
              known.empty() ? "it has none" : "it has " + join({known.begin(), known.end()}));
}

// Writes the weights of a checkpoint, or of the newest in a folder, as a folder that transformers
// loads.
int export_checkpoint(const ExportArguments& arguments, Output& output) {
  const std::vector<CheckpointEntry> there = checkpoints_in(arguments.checkpoint);
  if (there.empty())
    throw Error(Stage::options, "checkpoint.missing", "",
                fmt::format("there is no checkpoint in {}", arguments.checkpoint),
                "name the path of an experiment's checkpoint = { path = … }, or one of them");
  const Checkpoint checkpoint(there.back().folder);
  checkpoint.verify();
  PluginRegistry plugins = registry_of(arguments);
  const std::shared_ptr<const Model> model = model_of(checkpoint, plugins);
  const Json& settings = checkpoint.index().settings;
  const std::int64_t sequence = settings.value("sequence", std::int64_t{1});
  const Graph graph = model->build(1, sequence, sequence);

  ExportSettings to;
  to.folder = export_folder(arguments.folder);
  to.dtype =
      export_dtype(arguments.dtype.empty() ? settings.value("precision", "fp32") : arguments.dtype);
  to.most_bytes = *parse_bytes(arguments.shard);
  to.overwrite = arguments.overwrite;
  to.hash = checkpoint.index().hash;
  std::error_code error;
  const std::string weights = settings.value("weights", "");
  if (!weights.empty() && std::filesystem::exists(weights, error)) to.started_from = weights;
  std::vector<WeightSpec> specs = weight_specs(graph);
  Problems problems;
  check_names(specs, problems);
  problems.throw_if_any();
  std::vector<int> owners(specs.size(), 0);
  HfExport all(std::move(to), specs, std::move(owners), hf_config_of(*model, sequence));
  if (!arguments.state.empty()) check_state(checkpoint, specs, arguments.state);
  all.begin();
  if (!all.lacks().empty()) output.note(fmt::format("no config.json: {}", all.lacks()));
  if (arguments.state.empty() && !specs.empty() &&
      checkpoint.has(of_replica(1, parameter_tensor(specs.back().name))))
    output.note(
        "replicas may differ: these are the first one's parameters; --state anchor has what "
        "all have alike");
  HfExport::Part part(all, 0);
  for (const WeightSpec& spec : specs) {
    if (!part.wants(spec.name)) continue;
    const std::string state = state_tensor(arguments.state, spec.name);
    const bool by_state = !arguments.state.empty() && checkpoint.has(state);
    part.write(spec.name, checkpoint.read_whole(by_state ? state : parameter_tensor(spec.name)));
  }
  part.finish();
  all.finish();
  output.result({{"kind", "export"},
                 {"checkpoint", checkpoint.folder().string()},
                 {"step", checkpoint.index().step},
                 {"export", all.folder().string()}});
  output.text(fmt::format("{}, after {}: {}", checkpoint.folder().string(),
                          plural(checkpoint.index().step, "step"), all.folder().string()));
  return 0;
}

const CommandOf<ExportArguments> export_command{
    {"export", 120, "a checkpoint's weights as a folder that Hugging Face's transformers load"},
    [](CLI::App& command, ExportArguments& a) {
      command
          .add_option("CHECKPOINT", a.checkpoint, "a checkpoint, or a folder of them: the newest")
          ->required();
      command.add_option("-o", a.folder, "the folder to write")->type_name("FOLDER")->required();
      command
          .add_option("--dtype", a.dtype, "of the tensors; left out: the experiment's precision")
          ->check(CLI::IsMember({"fp64", "fp32", "bf16", "fp16"}));
      command.add_option(
          "--state", a.state,
          "an optimizer state in the parameters' place: average, of mw.ema; anchor, of diloco");
      command.add_option("--shard", a.shard, "bytes of a file at most")
          ->check([](const std::string& text) {
            const auto bytes = parse_bytes(text);
            return bytes && *bytes > 0 ? std::string() : "is no size such as 5GB: " + text;
          })
          ->type_name("BYTES");
      command.add_flag("--overwrite", a.overwrite, "the folder may hold something else");
      command.add_option("--plugin-path", a.plugin_path, "a folder of plugins, searched first")
          ->allow_extra_args(false)
          ->type_name("FOLDER");
      command.add_flag("--json", a.json, "one JSON object a line on stdout");
      command.footer("Example: meshwright export checkpoints/run -o runs/weights");
    },
    export_checkpoint};

}  // namespace
}  // namespace mw
