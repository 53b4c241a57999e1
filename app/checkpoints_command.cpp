// `meshwright checkpoints`: the checkpoints of a folder, and whether it is whole.
#include <fmt/format.h>

#include "app/command.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

// All that can be said of a checkpoint, as JSON. `broken` says why further keys are missing.
Json about_checkpoint(const CheckpointEntry& entry, bool quick) {
  Json about = {{"kind", "checkpoint"}, {"path", entry.folder.string()}, {"step", entry.step}};
  try {
    const Checkpoint checkpoint(entry.folder);
    const CheckpointIndex& index = checkpoint.index();
    about["step"] = index.step;
    about["tokens"] = index.tokens;
    about["created"] = index.created;
    about["name"] = index.name;
    about["hash"] = index.hash;
    about["mix"] = index.mix;
    about["ranks"] = index.ranks;
    about["bytes"] = index.bytes();
    about["tensors"] = index.tensors.size();
    about["version"] = index.version;
    about["settings"] = index.settings;
    if (!quick) checkpoint.verify();
    about["whole"] = quick ? Json() : Json(true);
    about["broken"] = nullptr;
  } catch (const Error& error) {
    about["whole"] = false;
    about["broken"] = error.problems().front().message;
  }
  return about;
}

struct CheckpointsArguments : Arguments {
  std::string path;
  bool quick = false;  // checks only that files exist with their sizes, and reads none
};

// Lists the checkpoints in a folder, or a single one. Returns 1 if one of them is broken.
int list_checkpoints(const CheckpointsArguments& arguments, Output& output) {
  const std::vector<CheckpointEntry> there = checkpoints_in(arguments.path);
  if (there.empty())
    throw Error(Stage::options, "checkpoint.missing", "",
                fmt::format("there is no checkpoint in {}", arguments.path),
                "name the path of an experiment's checkpoint = { path = … }, or one of them");
  TextTable table({"step", "name", "mix", "ranks", "bytes", "when", ""}, {0, 3, 4});
  bool whole = true;
  for (const CheckpointEntry& entry : there) {
    const Json about = about_checkpoint(entry, arguments.quick);
    output.result(about);
    const auto text = [&](const char* key) {
      return about.contains(key) ? about[key].get<std::string>() : std::string("-");
    };
    const bool broken = !about["broken"].is_null();
    whole = whole && !broken;
    table.add({std::to_string(about["step"].get<std::int64_t>()), text("name"), text("mix"),
               about.contains("ranks") ? std::to_string(about["ranks"].get<int>()) : "-",
               about.contains("bytes")
                   ? format_bytes(static_cast<double>(about["bytes"].get<std::int64_t>()))
                   : "-",
               text("created"),
               broken            ? "broken: " + about["broken"].get<std::string>()
               : arguments.quick ? "not checked"
                                 : "whole"});
  }
  output.text(table.text());
  return whole ? 0 : 1;
}

const CommandOf<CheckpointsArguments> checkpoints_command{
    {"checkpoints", 110,
     "the checkpoints of a folder: steps, mixes, sizes, and whether each is complete"},
    [](CLI::App& command, CheckpointsArguments& a) {
      command.add_option("PATH", a.path, "a folder of checkpoints, or one of them")->required();
      command.add_flag("--quick", a.quick, "read only the index, and compare no checksums");
      add_json(command, a);
      command.footer("Example: meshwright checkpoints checkpoints/run");
    },
    list_checkpoints};

}  // namespace
}  // namespace mw
