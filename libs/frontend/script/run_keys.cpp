// Reads which steps are traced, where checkpoints go, and whether a run goes on from one.
#include "script/run_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "meshwright/engine/json_text.h"

namespace mw {

const Options& checkpoint_options() {
  static const Options options =
      Options()
          .text("path",
                "the folder that they lie in, one folder each; {name}, {seed} and {hash} stand for "
                "the run's")
          .integer("every",
                   "steps from one to the next; one more at the end, which is the only one "
                   "if this is left out")
          .optional()
          .at_least(1)
          .unit("steps")
          .integer("keep", "how many of the newest stay; all if left out")
          .optional()
          .at_least(1);
  return options;
}

const Options& resume_options() {
  static const Options options =
      Options()
          .text("from", "a checkpoint, or a folder of them; left out: checkpoint.path")
          .optional()
          .boolean("changed",
                   "although something of the experiment is no longer the same: its learning rate, "
                   "data, batch, seed or precision")
          .fallback(false);
  return options;
}

std::vector<std::int64_t> read_trace(const Json& given, std::int64_t steps, Problems& problems) {
  const std::int64_t last = steps - 1;
  if (given.is_null()) {
    const std::set<std::int64_t> usual = {std::min<std::int64_t>(2, last), last};
    return {usual.begin(), usual.end()};
  }
  std::set<std::int64_t> traced;
  for (const Json& one : given) {
    const auto step = whole_number(one);
    if (step && *step >= 0) {
      traced.insert(*step);
      continue;
    }
    problems.add(Stage::options, "option.value", "trace",
                 fmt::format("trace: {} is no step", describe(one)),
                 "steps count from 0: trace = { 3, 100 }");
  }
  return {traced.begin(), traced.end()};
}

Checkpointing read_checkpointing(const Json& checkpoint, const Json& resume, Problems& problems) {
  Checkpointing read;
  if (!checkpoint.is_null()) {
    Problems found;
    const Values values = checkpoint_options().read(checkpoint, "checkpoint", found);
    problems.add(found);
    if (values.has("path")) read.path = values.text("path");
    if (found.empty() && values.has("every")) read.every = values.integer("every");
    if (found.empty() && values.has("keep")) read.keep = values.integer("keep");
    if (found.empty() && read.path.empty())
      problems.add(Stage::options, "option.value", "checkpoint.path",
                   "checkpoint.path: got an empty text",
                   "name a folder: path = \"checkpoints/{name}-{seed}\"");
  }
  if (resume.is_null() || resume == false) return read;
  read.resume = true;
  if (resume != true) {
    if (!resume.is_object() && !(resume.is_array() && resume.empty())) {
      problems.add(Stage::options, "option.value", "resume",
                   fmt::format("resume: got {}", describe(resume)),
                   "true, or { from = \"checkpoints/run/step-00000100\", changed = true }");
      return read;
    }
    Problems found;
    const Values values =
        resume_options().read(resume.is_object() ? resume : Json::object(), "resume", found);
    problems.add(found);
    if (!found.empty()) return read;
    if (values.has("from")) read.from = values.text("from");
    read.changed = values.flag("changed");
  }
  if (read.from.empty() && checkpoint.is_null()) {
    problems.add(Stage::options, "option.missing", "checkpoint",
                 "resume needs to know where checkpoints lie, and there is no checkpoint",
                 "write checkpoint = { path = \"checkpoints/{name}-{seed}\", every = 100 }");
  }
  return read;
}

}  // namespace mw
