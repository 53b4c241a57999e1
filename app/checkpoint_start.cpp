// Chooses the checkpoint that a run goes on from, and refuses what would mix two experiments.
#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "app/run_folder.h"
#include "checkpoint/settings.h"
#include "meshwright/engine/pack.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/optimizer.h"
#include "meshwright/options.h"
#include "meshwright/outer_steps.h"
#include "record/run_path.h"
#include "script/identity.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

// What Chooser decides: which checkpoint to begin with, and what people are told.
struct Choice {
  Checkpoints::Setup setup;
  std::vector<std::string> notes;
  std::vector<std::string> lost;
};

// A broken checkpoint may be removed. One that cannot be read now may be intact: rethrows.
void throw_unless_broken(const Error& error) {
  if (error.problems().front().code != "checkpoint.broken") throw Error(error);
}

class Chooser {
 public:
  Chooser(const Experiment& experiment, const Attempt& attempt)
      : experiment_(experiment),
        wanted_(experiment.checkpoint),
        attempt_(attempt),
        settings_(settings_to_resume(experiment, experiment)) {}

  Choice run() {
    if (!wanted_.path.empty()) {
      if (wanted_.resume) refuse_link_to_nowhere();
      start_.setup.folder = std::make_shared<CheckpointFolder>(wanted_.path);
      look_at_room();
      sort_out();
    }
    wanted_.resume ? resume() : begin_anew();
    return std::move(start_);
  }

 private:
  // Throws if checkpoint.path is a dangling link: its disk may not be mounted.
  void refuse_link_to_nowhere() const {
    std::error_code error;
    if (!fs::is_symlink(wanted_.path, error) || fs::exists(wanted_.path, error)) return;
    throw Error(
        Stage::options, "file.read", "checkpoint.path",
        fmt::format(
            "checkpoint.path: cannot read {}: it is a link that leads nowhere, and resume = true "
            "goes on from what is there",
            wanted_.path),
        "is its disk mounted? Or remove the link: the run then begins anew");
  }

  // Finds the checkpoints in the folder, and sets apart those that earlier starts by the same
  // command have written. A checkpoint that cannot be read counts as one of these if there are any.
  void sort_out() {
    there_ = others_ = checkpoints_in(wanted_.path);
    if (attempt_.restart() == 0) return;
    bool any = false;
    std::vector<CheckpointEntry> own, others;
    for (const CheckpointEntry& entry : there_) {
      bool is_own = true;
      try {
        is_own = Checkpoint(entry.folder).index().started_by == attempt_.mark();
        any = any || is_own;
      } catch (const Error& error) {
        throw_unless_broken(error);
      }
      (is_own ? own : others).push_back(entry);
    }
    if (!any) return;
    own_ = std::move(own);
    others_ = std::move(others);
  }

  void look_at_room() {
    std::error_code error;
    const fs::space_info space = fs::space(wanted_.path, error);
    const std::int64_t bytes = Checkpoints::bytes_of(*experiment_.plan);
    // One more than `keep`: an old one goes only when a newer one is complete.
    const std::int64_t all =
        wanted_.every > 0 ? (experiment_.steps + wanted_.every - 1) / wanted_.every : 1;
    const std::int64_t kept = wanted_.keep > 0 ? std::min(wanted_.keep + 1, all) : all;
    const std::int64_t more =
        std::max<std::int64_t>(1, kept - static_cast<std::int64_t>(there_.size()));
    if (error ||
        space.available / static_cast<std::uintmax_t>(bytes) >= static_cast<std::uintmax_t>(more))
      return;
    start_.lost.push_back(
        fmt::format("checkpoint.path: {} has {} left, and {} of {} each are to be there at a time",
                    wanted_.path, format_bytes(static_cast<double>(space.available)),
                    plural(kept, "checkpoint"), format_bytes(static_cast<double>(bytes))));
  }

  // Without `resume`: checks the checkpoints that other commands left in the folder, and goes on
  // from the newest of this command's own.
  void begin_anew() {
    look_at_others();
    take_newest(own_, wanted_.path, "checkpoint.path");
  }

  void look_at_others() {
    if (others_.empty()) return;
    const CheckpointEntry& newest = others_.back();
    std::vector<std::string> differs = {"its newest cannot be read"};
    try {
      differs = differences(Checkpoint(newest.folder).index().settings, settings_);
    } catch (const Error& error) {
      throw_unless_broken(error);
    }
    if (differs.empty()) {
      if (!own_.empty()) return;
      start_.lost.push_back(
          fmt::format("{} has checkpoints of this experiment, up to step {}; this run begins anew "
                      "(resume = true goes on from there)",
                      wanted_.path, newest.step));
      return;
    }
    if (!experiment_.overwrite) {
      throw Error(
          Stage::options, "checkpoint.taken", "checkpoint.path",
          fmt::format("checkpoint.path: {} has checkpoints of another experiment, up to step "
                      "{}: {}",
                      wanted_.path, newest.step, join(differs, "; ")),
          "name a folder of its own, path = \"checkpoints/{name}-{seed}\", or write "
          "overwrite = true");
    }
    for (const CheckpointEntry& entry : others_) start_.setup.stale.push_back(entry.step);
    start_.lost.push_back(
        fmt::format("{} has checkpoints of another experiment, up to step {}: they go once this "
                    "run's first is complete (overwrite)",
                    wanted_.path, newest.step));
  }

  void resume() {
    if (!wanted_.path.empty()) {
      const bool inside = names_one_of_path();
      if (take_newest(inside ? own_ : there_, wanted_.path, "checkpoint.path")) return;
    }
    if (wanted_.from.empty()) {
      start_.lost.push_back(
          fmt::format("there is no checkpoint in {} yet: the run begins anew", wanted_.path));
      return;
    }
    if (!take_newest(checkpoints_in(wanted_.from), wanted_.from, "resume.from")) {
      throw Error(Stage::options, "checkpoint.missing", "resume.from",
                  fmt::format("resume.from: there is no checkpoint in {}", wanted_.from),
                  "name a checkpoint, or a folder of them, as meshwright checkpoints lists it");
    }
  }

  // Whether resume.from is a checkpoint in checkpoint.path. Later ones there are of another past:
  // `overwrite` removes them, and without it this throws.
  bool names_one_of_path() {
    if (wanted_.from.empty()) return false;
    std::error_code error;
    const auto one =
        std::find_if(others_.begin(), others_.end(), [&](const CheckpointEntry& entry) {
          return fs::equivalent(entry.folder, wanted_.from, error);
        });
    if (one == others_.end()) return false;
    for (auto later = one + 1; later != others_.end(); ++later)
      start_.setup.stale.push_back(later->step);
    if (start_.setup.stale.empty() || experiment_.overwrite) return true;
    throw Error(Stage::options, "checkpoint.taken", "resume.from",
                fmt::format("resume.from: {} has later checkpoints than step {}, up to step {}",
                            wanted_.path, one->step, others_.back().step),
                "give the run another checkpoint.path, or write overwrite = true: then they go");
  }

  // Takes the newest intact checkpoint of `there`, a list from the oldest on. Returns false if the
  // list is empty, and throws if all are broken.
  bool take_newest(std::vector<CheckpointEntry> there, const std::string& folder,
                   const std::string& key) {
    std::reverse(there.begin(), there.end());
    std::vector<std::string> broken;
    for (const CheckpointEntry& entry : there) {
      try {
        auto checkpoint = std::make_shared<Checkpoint>(entry.folder);
        check(*checkpoint, key);
        check_length(*checkpoint, folder);
        checkpoint->verify();
        for (const std::string& what : broken)
          start_.lost.push_back(fmt::format(
              "{}; the one before it is taken{}", what,
              folder == wanted_.path
                  ? ", and the broken one goes once this run's first checkpoint is complete"
                  : ""));
        take(std::move(checkpoint));
        return true;
      } catch (const Error& error) {
        throw_unless_broken(error);
        broken.push_back(fmt::format("the checkpoint {} is broken: {}", entry.folder.string(),
                                     error.problems().front().message));
        if (folder == wanted_.path) start_.setup.stale.push_back(entry.step);
      }
    }
    if (broken.empty()) return false;
    throw Error(
        Stage::options, "checkpoint.broken", key,
        fmt::format("{}: no checkpoint in {} is whole: {}", key, folder, join(broken, "; ")),
        "take them away to begin anew, or name another folder");
  }

  void check(const Checkpoint& checkpoint, const std::string& key) const {
    const auto refuse = [&](const std::vector<std::string>& differs, const std::string& hint) {
      throw Error(Stage::options, "checkpoint.differs", key,
                  fmt::format("{}: the checkpoint {} is of another experiment: {}", key,
                              checkpoint.folder().string(), join(differs, "; ")),
                  hint);
    };
    const Json& there = checkpoint.index().settings;
    const std::vector<std::string> hard = hard_differences(there, settings_);
    if (!hard.empty())
      refuse(hard,
             "no run can go on from it; name a folder of its own, path = "
             "\"checkpoints/{name}-{seed}\"");
    check_replicas(checkpoint, refuse);
    const std::vector<std::string> differs = differences(there, settings_);
    if (!differs.empty() && !wanted_.changed)
      refuse(differs,
             "a folder of its own, path = \"checkpoints/{name}-{seed}\"; or, where the "
             "change is meant, resume = { changed = true }");
    const std::string state = state_lacking(checkpoint);
    if (!state.empty())
      refuse({fmt::format("the optimizer keeps a state {}, which it lacks", quote(state))},
             "no run can go on from it; begin anew, or keep the optimizer's states");
  }

  // Refuses a checkpoint of fewer replicas that differ, or of more.
  template <class Refuse>
  void check_replicas(const Checkpoint& checkpoint, const Refuse& refuse) const {
    const Program& program = experiment_.plan->programs.front();
    const auto trained = std::ranges::find_if(
        program.parameters, [](const ProgramParameter& p) { return p.gradient_slot >= 0; });
    if (trained == program.parameters.end()) return;
    const std::string tensor = parameter_tensor(program.graph->value(trained->value).name);
    int there = 1;
    while (checkpoint.has(of_replica(there, tensor))) ++there;
    if (there == program.replicas()) return;
    refuse({fmt::format("it has {}, and the plan {}", plural(there, "replica"),
                        plural(program.replicas(), "replica"))},
           "no run can go on from it; begin with its weights instead (export, weights)");
  }

  // A state of a parameter that the run's optimizer keeps and the checkpoint lacks; empty: none.
  std::string state_lacking(const Checkpoint& checkpoint) const {
    for (const Program& program : experiment_.plan->programs) {
      for (const Bucket& bucket : program.buckets) {
        if (!bucket.rule) continue;
        std::vector<std::string> states = bucket.rule->states;
        for (const MatrixState& state : bucket.rule->of_matrix) states.push_back(state.name);
        for (const auto& [state, slot] : states_of_outer_steps(program, bucket))
          states.push_back(state);
        for (const std::string& state : states) {
          for (const int p : bucket.parameters)
            if (!checkpoint.has(state_tensor(state, program.name_of_parameter(p)))) return state;
        }
      }
    }
    return "";
  }

  // Throws if the checkpoint was written after more steps than the run has.
  void check_length(const Checkpoint& checkpoint, const std::string& folder) const {
    const std::int64_t there = checkpoint.index().step, steps = experiment_.steps;
    if (there <= steps) return;
    std::string earlier;
    for (const CheckpointEntry& entry : checkpoints_in(folder)) {
      if (entry.step <= steps)
        earlier = fmt::format(
            ", or resume = {{ from = \"{}\" }}, after step {}, and another checkpoint.path",
            entry.folder.string(), entry.step);
    }
    throw Error(
        Stage::options, "checkpoint.past", "steps",
        fmt::format("steps: the run is of {}, and the checkpoint {} was written after {}",
                    plural(steps, "step"), checkpoint.folder().string(), there),
        fmt::format("nearest: steps = {}, with which nothing is left to do{}", there, earlier));
  }

  void take(std::shared_ptr<const Checkpoint> checkpoint) {
    const CheckpointIndex& index = checkpoint->index();
    const std::string mix = experiment_.plan->mix();
    start_.notes.push_back(fmt::format("goes on from step {}: {}, written {}{}", index.step,
                                       checkpoint->folder().string(), index.created,
                                       index.mix == mix ? "" : fmt::format(" by {}", index.mix)));
    const std::vector<std::string> differs = differences(index.settings, settings_);
    if (!differs.empty())
      start_.notes.push_back(fmt::format("changed since then: {}", join(differs, "; ")));
    if (index.mix == mix) note_chosen_anew(index.chosen);
    if (index.step >= experiment_.steps)
      start_.notes.push_back(
          fmt::format("its {} are done: nothing is left to do", plural(experiment_.steps, "step")));
    start_.setup.from = std::move(checkpoint);
  }

  // Notes which layers or recompute the plan chose otherwise than the checkpoint's plan. The
  // tensors fit all the same. What a script sets itself is not compared.
  void note_chosen_anew(const Json& there) {
    const Json here = chosen_of(*experiment_.plan);
    std::vector<std::string> changed;
    for (const char* key : {"layers", "recompute"}) {
      if (!there.contains(key) || !here.contains(key) || there[key] == here[key]) continue;
      changed.push_back(
          fmt::format("{} {}, which was {}", key, lua_text(here[key]), lua_text(there[key])));
    }
    if (changed.empty()) return;
    start_.notes.push_back(fmt::format(
        "the plan chose anew: {}; it reads the same tensors, and goes on equal to rounding, not "
        "bit for bit",
        join(changed, "; ")));
  }

  const Experiment& experiment_;
  const Checkpointing& wanted_;
  const Attempt& attempt_;
  const Json settings_;
  std::vector<CheckpointEntry> there_, own_, others_;  // in checkpoint.path, by step
  Choice start_;
};

// Tells the ranks to begin with the checkpoint.
void go_on_from(const Checkpoint& checkpoint, RunSetup& setup) {
  setup.goes_on = true;
  const CheckpointIndex& index = checkpoint.index();
  const std::int64_t step = setup.first_step = index.step;
  if (step >= setup.steps) return;
  // With another sequence length, samples are numbered differently: the number of tokens says where
  // the data goes on. An endless source counts no tokens, so its sample's number is kept, or it
  // would repeat samples.
  const std::int64_t sequence = setup.plan_at(step).request.sequence;
  const std::int64_t sample = setup.data->tokens() > 0 || setup.step_plans
                                  ? (index.tokens + sequence - 1) / sequence
                                  : index.sample;
  setup.sample_offset = sample - setup.first_sample(step);
}

}  // namespace

// The first process chooses the checkpoint. What it refuses ends all processes.
CheckpointStart begin_checkpoints(const Experiment& experiment, RunSetup& setup,
                                  const Attempt& attempt) {
  if (experiment.checkpoint.path.empty() && !experiment.checkpoint.resume) return {};
  const Plan& plan = *experiment.plan;
  Processes* processes = experiment.processes;
  Choice start;
  if (processes == nullptr || processes->first()) {
    try {
      start = Chooser(experiment, attempt).run();
    } catch (const Error& error) {
      if (processes != nullptr) processes->refuse(error.problems());
      throw;
    }
  }
  start.setup.settings = settings_to_resume(experiment, experiment);
  start.setup.name = experiment.name;
  start.setup.hash = experiment.hash;
  start.setup.started_by = attempt.mark();
  start.setup.path = experiment.checkpoint.path;
  start.setup.every = experiment.checkpoint.every;
  start.setup.keep = experiment.checkpoint.keep;
  start.setup.here = runtime_of(experiment, plan).here();
  // A plan of one rank is run by every process, so only the first process writes.
  start.setup.writes = !experiment.checkpoint.path.empty() &&
                       (processes == nullptr || processes->first() || plan.ranks() > 1);
  if (start.setup.folder) start.setup.mark = start.setup.folder->mark();
  if (processes != nullptr) {
    const std::string own =
        start.setup.from ? fs::absolute(start.setup.from->folder()).string() : "";
    const auto [chosen, mark] = unpack<std::pair<std::string, std::string>>(processes->broadcast(
        "the checkpoint that the run begins with", pack(std::pair(own, start.setup.mark))));
    start.setup.mark = mark;
    if (!processes->first() && !chosen.empty())
      start.setup.from = std::make_shared<Checkpoint>(chosen);
  }
  if (start.setup.from) go_on_from(*start.setup.from, setup);
  return {std::make_unique<Checkpoints>(setup, std::move(start.setup)), std::move(start.notes),
          std::move(start.lost)};
}

LogClaim claim_log(const RunRequest& asked, const RunOutputs& outputs, std::int64_t steps,
                   const Checkpoint* from, const Attempt& attempt) {
  if (outputs.log.empty()) return {};
  check_writable(outputs.log);
  RunFolder::check(outputs);
  LogOwner owner{asked.name, asked.hash, outputs.folder.empty() ? outputs.log : outputs.folder};
  if (from != nullptr) {
    owner.continues = from->index().hash;
    owner.continued = fmt::format("goes on after step {}", from->index().step - 1);
    if (from->index().step == steps) owner.all_steps = steps;
  }
  owner.started_by = attempt.mark();
  return {outputs.log, owner, outputs.overwrite};
}

}  // namespace mw
