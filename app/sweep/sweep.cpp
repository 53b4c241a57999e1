// Goes through the cells of a sweep: what is done is taken as it is, the rest is run, and all are
// judged and shown.
#include "app/sweep/sweep.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "app/run_folder.h"
#include "app/sweep/conductor.h"
#include "app/sweep/judge.h"
#include "app/sweep/planned.h"
#include "app/sweep/summary.h"
#include "common/files.h"
#include "common/run_timing.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_faults.h"
#include "meshwright/engine/text.h"
#include "record/groups.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t bytes_for_a_job = 1 << 30;  // bytes of a job beside what the ranks hold

}  // namespace

bool matches(const std::string& name, const std::vector<std::string>& only) {
  return only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& pattern) {
           return name.find(pattern) != std::string::npos ||
                  ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
         });
}

namespace {

class Sweep {
 public:
  Sweep(const SweepTable& sweep, const GoOptions& go, const SweepProgram& program)
      : sweep_(sweep), go_(go), program_(program), folder_(sweep.folder()) {
    cells_ = cells_for(sweep, program);
    select();
    const bool predicts = go.predict || sweep.predict;
    planned_ =
        plan_cells(cells_, program.context, go.memory, predicts ? program.plan : ExperimentVerb{});
    check_planned(cells_, planned_);
    std::set<std::string> faults;
    for (const Planned& planned : planned_)
      faults.insert(planned.faults.begin(), planned.faults.end());
    for (const std::string& fault : faults) program.say(tried_and_broke(fault));
    states_.resize(cells_.size());
    rows_.resize(cells_.size());
    mine_ = selected_;
    for (std::size_t i = 0; i < cells_.size(); ++i) mine_[i] = mine_[i] && own(i);
    emitted_.assign(cells_.size(), false);
    before_.resize(cells_.size());
    for (const bool chosen : {true, false}) {  // of equal cells, one that is selected is run
      for (std::size_t i = 0; i < cells_.size(); ++i) {
        if (selected_[i] == chosen) set_state(i);
      }
    }
    for (std::size_t i = 0; i < cells_.size(); ++i) reference_.push_back(reference_of(i));
    for (std::size_t i = 0; i < cells_.size(); ++i)
      if (states_[i].status != "skipped") cells_[i].repeats = planned_[i].hash_without_seed;
    choose_traced();
  }

  SweepOutcome run() {
    writes_ = go_.print.empty() && !go_.dry;
    if (go_.predict || sweep_.predict) return predicted();
    find_results();
    if (!go_.print.empty()) return job_script();
    if (go_.dry) return listed();
    write_index();
    emit_final();
    if (const SweepCost all = cost(); all.cells > 1 && !go_.quiet)
      program_.say(fmt::format("sweep {}: {} to run, {}", sweep_.name, plural(all.cells, "cell"),
                               all.text()));
    Conduct conduct{
        sweep_,
        go_,
        cells_,
        planned_,
        before_,
        folder_,
        [this] { write_index(); },
        [this](std::size_t cell) { take(cell); },
        program_.say,
        [this](std::size_t cell, const std::string& folder) { return prepare(cell, folder); }};
    {
      Conductor conductor(conduct, rows_, states_, mine_);
      conductor.run(todo(), go_.shards == 0);
    }
    {
      // With this lock, the later one of two shards that end together sees what the other has done.
      const auto lock = sweep_lock(fs::path(folder_.path()) / ".locks/verdicts", /*wait=*/true);
      if (go_.shards > 0) refresh_others();
      judge_all(/*last=*/true);
    }
    verdict_ = verdict_json(sweep_, cells_, rows_);
    write_index();
    emit_final(/*all=*/true);
    if (const Json asked = verdict_json(sweep_, chosen(cells_), chosen(rows_)); !asked.is_null())
      program_.emit(asked);
    return outcome();
  }

  // The outcome by the results there are, without running anything.
  SweepOutcome found() {
    writes_ = false;
    if (go_.predict || sweep_.predict) return predicted();
    find_results();
    judge_all(/*last=*/true);
    return outcome();
  }

 private:
  void select() {
    std::vector<std::string> names;
    for (const Cell& cell : cells_) {
      names.push_back(cell.name);
      selected_.push_back(matches(cell.name, go_.only));
    }
    if (std::find(selected_.begin(), selected_.end(), true) != selected_.end()) return;
    const std::string near = did_you_mean(go_.only.front(), names);
    if (names.size() > 8) names.resize(8);
    throw Error(Stage::options, "sweep.only", "only",
                fmt::format("only: no cell has {} in its name", join_quoted(go_.only, " or ")),
                near.empty() ? "cells are called " + join_quoted(names) : near);
  }

  // Whether the cell is this shard's.
  bool own(std::size_t i) const {
    return go_.shards == 0 || static_cast<int>(i % go_.shards) == go_.shard - 1;
  }

  // The cell that cell i is compared with; -1: none. For a skipped cell, the equal cell that is
  // run.
  int reference_of(std::size_t i) const {
    if (sweep_.like.empty()) return -1;
    int other = counterpart(cells_, i, sweep_.like);
    if (other >= 0 && states_[other].status == "skipped") {
      const auto twin = first_with_.find(planned_[other].hash);
      if (cells_[other].skipped.empty() && twin != first_with_.end())
        other = static_cast<int>(twin->second);
    }
    return other == static_cast<int>(i) ? -1 : other;
  }

  // The state before results are looked for: skipped, refused or queued.
  void set_state(std::size_t i) {
    CellState& state = states_[i];
    if (!cells_[i].skipped.empty()) {
      state = {"skipped", cells_[i].skipped, 0};
    } else if (!planned_[i].refused.empty()) {
      state = {"refused", planned_[i].refused, 0};
    } else if (const auto [first, fresh] = first_with_.emplace(planned_[i].hash, i); !fresh) {
      state = {"skipped",
               fmt::format("the same experiment as {}: what differs changes nothing of the run",
                           quote(cells_[first->second].name)),
               0};
    }
    rows_[i] = bare_row(sweep_, cells_[i], planned_[i], state);
  }

  void find_results() {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (states_[i].status != "queued") continue;
      const auto result = folder_.result(cells_[i], planned_[i].hash);
      if (std::error_code error;
          !result && own(i) && selected_[i] &&
          fs::exists(fs::path(folder_.of(cells_[i], planned_[i].hash)) / "result.json", error))
        program_.say(
            fmt::format("{}: its result.json cannot be read as a result, so it runs again; "
                        "what is there goes to {}/.earlier",
                        cells_[i].name, folder_.path()));
      if (!result) continue;
      const std::string status = result->value("status", "");
      if (go_.retry == "all" || (go_.retry == "failed" && status != "done") ||
          (go_.retry == "disturbed" && read_timing(*result).disturbed)) {
        before_[i] = *result;
        continue;
      }
      take_result(i, *result);
    }
    judge_all();
  }

  void take_result(std::size_t i, const Json& result) {
    rows_[i] = row_of_result(sweep_, cells_[i], result, true);
    // it is judged again, by what the script asks now
    if (result.value("trained", false)) forget_judgement(rows_[i]);
    states_[i] = state_of(rows_[i]);
  }

  // The cells to run, in order: rounds of all mixes with a seed each, so that what the machine does
  // meanwhile falls on all mixes alike. In the grid's own order, cells that others are compared
  // with come first.
  std::vector<std::size_t> todo() {
    std::vector<std::size_t> list;
    for (const std::size_t i : interleaved(cells_, go_.order)) {
      if (own(i) && selected_[i] && states_[i].status == "queued") list.push_back(i);
    }
    if (go_.order == 0)
      std::stable_partition(list.begin(), list.end(),
                            [&](std::size_t i) { return reference_[i] < 0; });
    return list;
  }

  std::vector<std::string> prepare(std::size_t cell, const std::string& folder) const {
    Json order = program_.again;
    order["sweep"] = sweep_.name;
    order["name"] = cells_[cell].name;
    order["hash"] = planned_[cell].hash;
    order["values"] = cells_[cell].texts();
    order["traces"] = traces(cell);
    order["script"] = program_.script;
    order["folder"] = folder;
    replace_file(folder + "/script.lua", program_.files.text);
    write_loaded(folder, program_.files.loaded);
    replace_file(folder + "/cell.json", json_text(order, 1) + "\n");
    return {"cell", folder + "/cell.json"};
  }

  // Judges a cell that has ended, and the cells that are compared with it.
  void take(std::size_t cell) {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (i == cell || reference_[i] == static_cast<int>(cell)) judge_one(i, /*last=*/false);
    }
    emit_final();
  }

  // `last`: a cell whose reference has no result says that it was not compared.
  void judge_all(bool last = false) {
    for (std::size_t i = 0; i < cells_.size(); ++i) judge_one(i, last);
  }

  void judge_one(std::size_t i, bool last) {
    const int other = reference_[i];
    if (other < 0 || !rows_[i].value("trained", false)) return;
    const Json& reference = rows_[other];
    const bool there = reference.value("trained", false);
    if (!there && pending(other) && !last) return;  // the reference is still to come
    const LossBound bound = sweep_.tolerance ? LossBound{*sweep_.tolerance, *sweep_.tolerance}
                                             : loss_bound(planned_[i].precision);
    const std::string why =
        fmt::format("{} is {}", quote(cells_[other].name), reference.value("status", "queued"));
    judge(rows_[i], cells_[other].name, there ? &reference : nullptr, why, bound);
    states_[i] = state_of(rows_[i]);
    if (!writes_) return;
    const auto written = folder_.result(cells_[i], planned_[i].hash);
    if (!written || written->value("same_loss_as", Json()) != rows_[i]["same_loss_as"] ||
        written->value("status", "") != states_[i].status) {
      mine_[i] = true;  // even a cell of another shard: the verdict is this process'
      replace_file(folder_.of(cells_[i], planned_[i].hash) + "/result.json",
                   json_text(rows_[i]) + "\n");
    }
  }

  bool pending(std::size_t i) const {
    return states_[i].status == "queued" || states_[i].status == "running";
  }

  // Emits each row once, when it is final. `all`: emits all that are left.
  void emit_final(bool all = false) {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (emitted_[i] || !selected_[i]) continue;
      const int other = reference_[i];
      if (!all && (pending(i) || (other >= 0 && pending(other)))) continue;
      emitted_[i] = true;
      program_.emit(rows_[i]);
    }
  }

  // Reads what other shards have done by now.
  void refresh_others() {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (!pending(i)) continue;
      if (const auto result = folder_.result(cells_[i], planned_[i].hash)) take_result(i, *result);
    }
  }

  void write_index() {
    Json more = {{"order", go_.order}};
    if (!verdict_.is_null()) more["verdict"] = verdict_;
    folder_.write_index(sweep_, program_.script, cells_, planned_, states_, mine_, more);
  }

  bool all_selected() const {
    return std::find(selected_.begin(), selected_.end(), false) == selected_.end();
  }

  template <class Thing>
  std::vector<Thing> chosen(const std::vector<Thing>& all) const {
    std::vector<Thing> some;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (selected_[i]) some.push_back(all[i]);
    }
    return some;
  }

  SweepOutcome outcome() {
    SweepOutcome outcome;
    std::vector<Json> rows = chosen(rows_);
    for (const Json& row : rows)
      outcome.failed = outcome.failed || row.value("status", "") == "failed";
    const bool all = all_selected();
    const std::vector<Cell> some = all ? std::vector<Cell>() : chosen(cells_);
    outcome.text = summary_text(sweep_, all ? cells_ : some, rows);
    for (Json& row : rows) outcome.cells.push_back(std::move(row));
    return outcome;
  }

  SweepOutcome predicted() {
    std::string lines;
    bool some_ran = false;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      Json& row = rows_[i];
      if (!selected_[i]) continue;
      if (states_[i].status == "queued") {
        Json& prediction = planned_[i].prediction;
        row["status"] = "predicted";
        if (!prediction.value("fits", true)) {
          const double needs = prediction.value("memory_needed", 0.0);
          const double has =
              prediction.value("rank_memory_limit", prediction.value("memory_limit", 0.0));
          const double host = prediction.value("host_needed", 0.0);
          row["reason"] =
              needs <= has && host > 0
                  ? fmt::format("does not fit: it needs {} of {} in the host memory of a node",
                                format_bytes(host),
                                format_bytes(prediction.value("host_limit", 0.0)))
                  : fmt::format("does not fit: it needs {} of {}", format_bytes(needs),
                                format_bytes(has));
        }
        row["predicted"] = std::move(prediction);
      }
      if (states_[i].status == "queued") {
        states_[i] = state_of(row);
        if (folder_.result(cells_[i], planned_[i].hash)) {
          mine_[i] = false;
          some_ran = true;
        }
      }
      lines += json_text(row);
      lines += '\n';
      if (writes_) program_.emit(row);
    }
    if (writes_) {
      const Json verdict = verdict_json(sweep_, chosen(cells_), chosen(rows_));
      if (!verdict.is_null()) program_.emit(verdict);
      if (!some_ran && all_selected()) verdict_ = verdict;  // a verdict on results stays
      write_index();
      replace_file(fs::path(folder_.path()) / "predicted.jsonl", lines += predicted_before());
    }
    return outcome();
  }

  // The earlier lines of predicted.jsonl about cells that are not predicted this time.
  std::string predicted_before() const {
    std::set<std::string> left;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (!selected_[i] && !planned_[i].hash.empty()) left.insert(planned_[i].hash);
    }
    std::string lines, line, broken;
    const fs::path known_rows = fs::path(folder_.path()) / "predicted.jsonl";
    if (!may_read(known_rows) || !irregular(known_rows).empty()) return lines;
    std::ifstream file(known_rows);
    while (std::getline(file, line)) {
      const Json row = json_in(line);
      const bool known = row.is_object() && row.contains("hash") && row["hash"].is_string();
      if (known && left.erase(row["hash"].get<std::string>()) > 0) lines += line + "\n";
      if (!known && !line.empty()) broken += line + "\n";
    }
    // A cell that was not found may be on a broken line, which stays: reports say that they cannot
    // read it.
    return left.empty() ? lines : lines + broken;
  }

  // Chooses one cell of each mix, which reports draw in time. It traces its steps if the script
  // does not say which steps are traced.
  void choose_traced() {
    for (const auto& group : repeats_of(runs_of(sweep_, cells_).cells)) {
      const auto first = std::find_if(group.begin(), group.end(), [&](std::size_t i) {
        return states_[i].status != "skipped" && states_[i].status != "refused";
      });
      if (first != group.end()) traced_.insert(*first);
    }
  }

  bool traces(std::size_t i) const {
    const Json& table = cells_[i].table;
    const auto asked = table.find("trace");
    if (asked != table.end() && !asked->is_null()) return !asked->empty();
    return traced_.count(i) > 0 || table.value("account", Json()) == true;
  }

  SweepCost cost() const {
    SweepCost cost;
    cost.reruns = go_.workers > 1 ? 0 : go_.reruns;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (states_[i].status != "queued" || !selected_[i] || !own(i)) continue;
      const Planned& planned = planned_[i];
      ++cost.cells;
      cost.starts += Planned::seconds_of_a_start;
      cost.trainings += planned.seconds();
      cost.bytes += planned.file_bytes + (traces(i) ? planned.trace_bytes : 0);
    }
    return cost;
  }

  SweepOutcome listed() {
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (states_[i].status != "queued") continue;
      rows_[i]["predicted_seconds"] = planned_[i].whole_seconds();
      rows_[i]["predicted_file_bytes"] =
          planned_[i].file_bytes + (traces(i) ? planned_[i].trace_bytes : 0);
    }
    for (const Json& row : chosen(rows_)) program_.emit(row);
    SweepOutcome result = outcome();
    result.failed = false;  // nothing was done
    result.text = dry_text(sweep_, chosen(cells_), chosen(planned_), chosen(rows_), cost());
    return result;
  }

  SweepOutcome job_script() {
    SlurmJob job;
    job.program = program_path().string();
    job.script = program_.script;
    job.folder = fs::current_path().string();
    job.arguments = program_.words;
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      if (states_[i].status != "queued" || !selected_[i]) continue;
      job.cells.push_back(i);
      job.cores = std::max<int>(job.cores, static_cast<int>(planned_[i].ranks));
      job.memory = std::max(job.memory, planned_[i].memory);
      job.seconds += planned_[i].whole_seconds();
    }
    job.memory = go_.memory > 0 ? go_.memory + bytes_for_a_job : job.memory + bytes_for_a_job;
    SweepOutcome result = outcome();
    result.failed = false;
    result.text = sbatch_text(sweep_, go_, job);
    return result;
  }

  const SweepTable& sweep_;
  const GoOptions& go_;
  const SweepProgram& program_;
  SweepFolder folder_;
  std::vector<Cell> cells_;
  std::vector<Planned> planned_;
  std::vector<CellState> states_;
  std::vector<Json> rows_;
  std::vector<bool> selected_;  // whether `only` selects the cell
  std::vector<bool> mine_;      // whether this process says the cell's state
  std::vector<bool> emitted_;
  std::vector<int> reference_;    // reference_of() of each cell
  std::vector<Json> before_;      // results that are to be replaced by new ones; else null
  Json verdict_;                  // of all cells, once they have ended
  std::set<std::size_t> traced_;  // the first cell of each mix, which traces steps
  bool writes_ = true;            // whether files of the sweep and rows are written
  std::map<std::string, std::size_t> first_with_;  // the first cell with each hash
};

}  // namespace

SweepOutcome run_sweep(const SweepTable& sweep, const GoOptions& go, const SweepProgram& program) {
  if (go.memory > 0 && go.memory < allocated_here()) {
    throw Error(Stage::options, "option.range", "memory",
                fmt::format("memory: {} is less than the {} that the program itself allocates",
                            format_bytes(static_cast<double>(go.memory)),
                            format_bytes(static_cast<double>(allocated_here()))),
                "give a cell's process more");
  }
  return Sweep(sweep, go, program).run();
}

SweepOutcome found_results(const SweepTable& sweep, const GoOptions& go,
                           const SweepProgram& program) {
  GoOptions done = go;
  done.retry.clear();  // what was to be run again has been
  return Sweep(sweep, done, program).found();
}

}  // namespace mw
