// Writes the tables of a sweep, and the job script that runs it on a cluster.
#include "app/sweep/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "app/progress.h"
#include "app/sweep/judge.h"
#include "common/process.h"
#include "common/statistics.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "record/run_result.h"

namespace mw {
namespace {

constexpr std::int64_t most_jobs = 1000;  // Slurm's MaxArraySize is 1001 where nobody has set it
constexpr std::size_t most_rows = 60;
constexpr std::int64_t mebibyte = 1 << 20;

std::optional<double> number_in(const Json& row, const char* key) {
  if (!row.contains(key) || !row[key].is_number()) return std::nullopt;
  return row[key].get<double>();
}

std::optional<double> loss_of(const Json& row) {
  if (!row.contains("losses") || !row["losses"].is_array() || row["losses"].empty() ||
      !row["losses"].back().is_number())
    return std::nullopt;
  return row["losses"].back().get<double>();
}

std::optional<double> speed_of_row(const Json& row) {
  if (const auto speed = number_in(row, "tokens_per_second")) return speed;
  return row.contains("predicted") ? number_in(row["predicted"], "tokens_per_second")
                                   : std::nullopt;
}

std::optional<double> memory_of(const Json& row) {
  if (const auto peak = number_in(row, "peak_bytes")) return peak;
  if (!row.contains("predicted") || !row["predicted"].contains("memory")) return std::nullopt;
  double peak = 0;
  for (const Json& stage : row["predicted"]["memory"])
    peak = std::max(peak, stage.value("peak", 0.0));
  return peak;
}

// What there is of the cells that count: those that are done or predicted.
template <class Value>
std::vector<double> values_of(const std::vector<std::size_t>& group, const std::vector<Json>& rows,
                              Value value) {
  std::vector<double> values;
  for (const std::size_t i : group) {
    const std::string status = rows[i].value("status", "");
    if (status != "done" && status != "predicted") continue;
    if (const auto one = value(rows[i])) values.push_back(*one);
  }
  return values;
}

template <class Text>
std::string spread_text(const std::vector<double>& values, Text text) {
  if (values.empty()) return "-";
  const MeanAndDeviation spread = mean_and_deviation(values);
  if (spread.n < 2) return text(spread.mean);
  return fmt::format("{} ± {}", text(spread.mean), text(spread.deviation));
}

// The speed, with half of its interval where it was measured.
std::string speed_text(const MeanAndDeviation& speed, const Interval& interval) {
  if (speed.n == 0) return "-";
  const std::string text = format_count(speed.mean);
  if (!interval.known()) return text;
  return fmt::format("{} ± {}", text, format_count(speed.mean * interval.half() / interval.middle));
}

// The speeds of the group's runs that count, or what is predicted where none is done.
MeanAndDeviation speeds_of(const std::vector<std::size_t>& group, const std::vector<Json>& rows) {
  std::vector<std::size_t> done;
  std::vector<RunTiming> timings;
  for (const std::size_t i : group) {
    if (rows[i].value("status", "") != "done") continue;
    done.push_back(i);
    timings.push_back(read_timing(rows[i]));
  }
  if (done.empty()) return mean_and_deviation(values_of(group, rows, speed_of_row));
  const std::vector<bool> counted = counted_runs(timings);
  std::vector<std::size_t> own;
  for (std::size_t i = 0; i < done.size(); ++i)
    if (counted[i]) own.push_back(done[i]);
  return mean_and_deviation(values_of(own, rows, speed_of_row));
}

std::string others_text(const std::vector<std::size_t>& group, const std::vector<Json>& rows) {
  double sum = 0;
  int known = 0, disturbed = 0;
  for (const std::size_t i : group) {
    const RunTiming timing = read_timing(rows[i]);
    disturbed += timing.disturbed ? 1 : 0;
    if (std::isnan(timing.use.others)) continue;
    sum += timing.use.others;
    ++known;
  }
  if (known == 0) return "";
  return fmt::format("{:.1f}{}", sum / known,
                     disturbed > 0 ? fmt::format(", {} disturbed", disturbed) : "");
}

std::string status_text(const std::vector<std::size_t>& group, const std::vector<Json>& rows) {
  std::map<std::string, int> counts;
  for (const std::size_t i : group) ++counts[rows[i].value("status", "queued")];
  if (counts.size() == 1) {
    const std::string& only = counts.begin()->first;
    return group.size() == 1 ? only : fmt::format("{} {}", group.size(), only);
  }
  std::vector<std::string> parts;
  for (const auto& [status, count] : counts) parts.push_back(fmt::format("{} {}", count, status));
  return join(parts);
}

// What the group's experiments have for work; empty where none has run or is predicted.
AxisValues work_of_group(const std::vector<std::size_t>& group, const std::vector<Json>& rows) {
  for (const std::size_t i : group) {
    AxisValues work = work_of(rows[i].value("experiment", Json()));
    if (work.empty() && rows[i].contains("predicted"))
      work = work_of(rows[i]["predicted"].value("experiment", Json()));
    if (!work.empty()) return work;
  }
  return {};
}

// Whether every cell is done, and its loss compared where that is asked for.
bool is_right(const SweepTable& sweep, const std::vector<Cell>& cells,
              const std::vector<std::size_t>& group, const std::vector<Json>& rows) {
  bool done = false;
  for (const std::size_t i : group) {
    const std::string status = rows[i].value("status", "");
    if (status == "skipped" || status == "refused") continue;
    if (status != "done") return false;
    done = true;
    const Json held = rows[i].value("same_loss_as", Json());
    const bool reference = sweep.like.empty() || cells[i].name == sweep.like ||
                           has_value(values_of_mix(cells[i]), sweep.like);
    if (held.is_object() ? !held.value("compared", false) : !reference) return false;
  }
  return done;
}

// Which group another is compared with: its index; -1: none, or it does other work.
int baseline_group(const SweepTable& sweep, const std::vector<Cell>& cells,
                   const std::vector<std::vector<std::size_t>>& groups, std::size_t group,
                   const std::vector<Json>& rows) {
  const std::string& name = sweep.baseline.empty() ? sweep.like : sweep.baseline;
  const auto fits = [&](std::size_t base) {
    return base != group && work_of_group(groups[group], rows) == work_of_group(groups[base], rows);
  };
  if (name.empty()) return fits(0) ? 0 : -1;
  const int cell = counterpart(cells, groups[group].front(), name);
  for (std::size_t g = 0; g < groups.size() && cell >= 0; ++g) {
    if (std::find(groups[g].begin(), groups[g].end(), static_cast<std::size_t>(cell)) !=
        groups[g].end())
      return fits(g) ? static_cast<int>(g) : -1;
  }
  return -1;
}

std::string delta_text(const MeanAndDeviation& own, const MeanAndDeviation& base) {
  return own.n > 0 && base.mean > 0 ? fmt::format("{:+.1f} %", 100 * (own.mean / base.mean - 1))
                                    : "";
}

std::string reason_in(const std::vector<std::size_t>& group, const std::vector<Json>& rows) {
  std::string all;
  for (const std::size_t i : group) {
    if (!rows[i].contains("reason") || !rows[i]["reason"].is_string()) continue;
    const std::string reason = rows[i]["reason"].get<std::string>();
    if (all.find(reason) == std::string::npos) all += (all.empty() ? "" : "; ") + reason;
  }
  std::replace(all.begin(), all.end(), '\n', ' ');
  return all;
}

}  // namespace

std::string counts_text(const std::vector<Json>& rows) {
  std::map<std::string, int> counts;
  int reused = 0, not_compared = 0;
  for (const Json& row : rows) {
    const auto found = row.find("same_loss_as");
    if (found != row.end() && found->is_object() && !found->value("compared", true)) ++not_compared;
    ++counts[row.value("status", "queued")];
    reused += row.value("reused", false) ? 1 : 0;
  }
  std::vector<std::string> parts;
  for (const char* status :
       {"done", "predicted", "failed", "refused", "skipped", "running", "queued"}) {
    if (counts[status] > 0) parts.push_back(fmt::format("{} {}", counts[status], status));
  }
  std::string text = join(parts);
  if (not_compared > 0) text += fmt::format(" ({} not compared)", not_compared);
  if (reused > 0) text += fmt::format(" ({} found done before)", reused);
  return text;
}

std::string short_result(const Json& row) {
  std::string text;
  if (const auto loss = loss_of(row)) text = fmt::format("loss {:.4f}", *loss);
  if (const auto speed = number_in(row, "tokens_per_second"))
    text += fmt::format("{}{} tokens/s", text.empty() ? "" : "  ", format_count(*speed));
  if (row.contains("reason") && row["reason"].is_string()) {
    std::string reason = row["reason"].get<std::string>();
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    text = reason;
  }
  return text;
}

SweepRanking ranking_of(const SweepTable& sweep, const std::vector<Cell>& cells,
                        const std::vector<Json>& rows) {
  SweepRanking made;
  std::vector<RankedMix> mixes;
  for (const auto& group : groups_of(cells)) {
    made.names.push_back(group_name(cells, group));
    made.speeds.push_back(speeds_of(group, rows));
    RankedMix& mix = mixes.emplace_back();
    mix.values = values_of_mix(cells[group.front()]);
    mix.work = work_of_group(group, rows);
    mix.right = is_right(sweep, cells, group, rows);
    for (const std::size_t i : group) {
      if (rows[i].value("status", "") != "done") continue;
      mix.runs.push_back(read_timing(rows[i]));
      if (rows[i].contains("predicted"))
        mix.flops = number_in(rows[i]["predicted"], "hardware_flops_per_step").value_or(0);
    }
  }
  made.ranked = rank_kinds(mixes);
  return made;
}

Json SweepRanking::to_json() const {
  Json json = {{"kind", "verdict"}};
  json.update(ranked.to_json(names));
  json["speeds"] = Json::array();
  for (std::size_t m = 0; m < names.size(); ++m) {
    const Interval& wall = ranked.wall[m];
    if (!wall.known()) continue;
    json["speeds"].push_back({{"mix", names[m]},
                              {"tokens_per_second", speeds[m].mean},
                              {"half", speeds[m].mean * wall.half() / wall.middle},
                              {"runs", speeds[m].n}});
  }
  return json;
}

std::string summary_text(const SweepTable& sweep, const std::vector<Cell>& cells,
                         const std::vector<Json>& rows) {
  TextTable table(
      {"cell", "status", "loss", "tokens/s", "peak a rank", "against base", "others", "reason"},
      {2, 3, 4, 5, 6});
  const auto groups = groups_of(cells);
  const SweepRanking ranking = ranking_of(sweep, cells, rows);
  std::size_t shown = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (++shown > most_rows) break;
    const auto& group = groups[g];
    const int base = baseline_group(sweep, cells, groups, g, rows);
    table.add(
        {ranking.names[g], status_text(group, rows),
         spread_text(values_of(group, rows, loss_of),
                     [](double v) { return fmt::format("{:.4f}", v); }),
         speed_text(ranking.speeds[g], ranking.ranked.wall[g]),
         spread_text(values_of(group, rows, memory_of), [](double v) { return format_bytes(v); }),
         base < 0 ? "" : delta_text(ranking.speeds[g], ranking.speeds[base]),
         others_text(group, rows), reason_in(group, rows)});
  }
  std::string text = fmt::format("sweep {}: {}: {}\n\n{}", sweep.name,
                                 plural(static_cast<std::int64_t>(cells.size()), "cell"),
                                 counts_text(rows), table.text("  "));
  if (groups.size() > most_rows)
    text += fmt::format("  … and {} more, in {}\n", groups.size() - most_rows, sweep.folder());
  if (std::any_of(ranking.ranked.wall.begin(), ranking.ranked.wall.end(),
                  [](const Interval& interval) { return interval.known(); }))
    text +=
        "\n  ± of tokens/s: half of a 95 % interval; of other columns: standard deviation over "
        "seeds\n"
        "  others: cores that other programs had meanwhile, on average\n";
  std::string verdict = ranking.ranked.text(ranking.names);
  for (std::size_t at = 0; (at = verdict.find('\n', at)) != std::string::npos; at += 3)
    verdict.replace(at, 1, "\n  ");
  if (!verdict.empty()) text += fmt::format("\n  {}\n", verdict);
  return text;
}

std::string SweepCost::text() const {
  const double seconds = starts + trainings;
  std::string text =
      fmt::format("predicted {} one after the other: {} of steps and {} of starts",
                  format_duration(seconds), format_duration(trainings), format_duration(starts));
  if (cells > 1 && reruns > 0)
    text += fmt::format("; up to {} if other programs disturb every cell, which runs again then",
                        format_duration(seconds * (1 + reruns)));
  return text + fmt::format("; about {} of files", format_bytes(static_cast<double>(bytes)));
}

std::string dry_text(const SweepTable& sweep, const std::vector<Cell>& cells,
                     const std::vector<Planned>& planned, const std::vector<Json>& rows,
                     const SweepCost& cost) {
  TextTable table({"cell", "", "step", "all steps", "peak a rank", "all ranks", "reason"},
                  {2, 3, 4, 5});
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const Planned& p = planned[i];
    const bool known = p.ranks > 0;
    const std::string status = rows[i].value("status", "");
    table.add({cells[i].name, status == "queued" ? "would run" : status,
               known ? fmt::format("{:.1f} ms", 1e3 * p.step_seconds) : "",
               known ? format_duration(p.seconds()) : "",
               known ? format_bytes(static_cast<double>(p.peak)) : "",
               known ? format_bytes(static_cast<double>(p.memory)) : "", reason_in({i}, rows)});
  }
  return fmt::format("sweep {}: {} of {} would run\n  {}\n\n{}", sweep.name, cost.cells,
                     plural(static_cast<std::int64_t>(cells.size()), "cell"), cost.text(),
                     table.text("  "));
}

std::string sbatch_text(const SweepTable& sweep, const GoOptions& go, const SlurmJob& job) {
  const auto cells = static_cast<std::int64_t>(job.cells.size());
  const std::int64_t jobs = std::clamp<std::int64_t>(cells, 1, most_jobs);
  std::vector<std::int64_t> of_job(jobs);  // what is done already leaves some with more than others
  for (const std::size_t cell : job.cells) ++of_job[cell % of_job.size()];
  const auto most = static_cast<double>(*std::max_element(of_job.begin(), of_job.end()));
  const double limit = go.time > 0 ? most * (go.time + 10) : 0;
  const auto minutes = static_cast<std::int64_t>(std::ceil(limit / 60)) + 1;
  std::string call =
      fmt::format("exec {} sweep {}", shell_word(job.program), shell_word(job.script));
  call += fmt::format(" --workers 1 --shard \"$SLURM_ARRAY_TASK_ID/{}\"", jobs);
  for (const std::string& word : job.arguments) call += " " + shell_word(word);
  std::string text = "#!/bin/bash\n";
  text += fmt::format("# The sweep {} as a job array: {}, {} predicted one after the other.\n",
                      sweep.name, plural(cells, "cell"), format_duration(job.seconds));
  text +=
      "# Submitting it again runs what is not done. Jobs on different machines need the folder\n"
      "# below on a file system that they share.\n";
  text += fmt::format("#SBATCH --job-name={}\n#SBATCH --array=1-{}\n", sweep.name, jobs);
  text +=
      fmt::format("#SBATCH --nodes=1\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task={}\n", job.cores);
  text += fmt::format("#SBATCH --mem={}M\n", (job.memory + mebibyte - 1) / mebibyte);
  if (limit > 0) {
    text += fmt::format("#SBATCH --time={}\n", minutes);
  } else {
    text += "# No limit of time was given: sweep --time SECONDS --print sbatch makes one of it.\n";
  }
  text += fmt::format(
      "#SBATCH --output=slurm-{}-%A_%a.txt\n#SBATCH --open-mode=append\n#SBATCH --requeue\n"
      "#SBATCH --signal=B:TERM@60\n",
      sweep.name);
  text += fmt::format("set -euo pipefail\ncd {}\n", shell_word(job.folder));
  text += "export OMP_WAIT_POLICY=PASSIVE\n";
  return text + call + "\n";
}

}  // namespace mw
