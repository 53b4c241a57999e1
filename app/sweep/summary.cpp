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
#include "report/groups.h"

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

template <class Text>
std::string spread_text(const MeanAndDeviation& spread, Text text) {
  if (spread.n < 2) return spread.n == 0 ? "-" : text(spread.mean);
  return fmt::format("{} ± {}", text(spread.mean), text(spread.deviation));
}

std::string others_text(const ReportGroup& group) {
  if (std::isnan(group.others)) return "";
  return fmt::format("{:.1f}{}", group.others,
                     group.disturbed > 0 ? fmt::format(", {} disturbed", group.disturbed) : "");
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

Json verdict_json(const SweepTable& sweep, const std::vector<Cell>& cells,
                  const std::vector<Json>& rows) {
  const ReportGroups found = group_cells(runs_of(sweep, cells, rows));
  if (found.groups.size() < 2) return {};
  Json json = {{"kind", "verdict"}};
  json.update(found.answer_json(/*numbers=*/false));
  return json;
}

std::string summary_text(const SweepTable& sweep, const std::vector<Cell>& cells,
                         const std::vector<Json>& rows) {
  TextTable table(
      {"cell", "status", "loss", "tokens/s", "peak a rank", "against base", "others", "reason"},
      {2, 3, 4, 5, 6});
  const ReportGroups found = group_cells(runs_of(sweep, cells, rows));
  bool measured = false, wide = false;
  for (std::size_t g = 0; g < found.groups.size(); ++g) {
    const ReportGroup& group = found.groups[g];
    measured = measured || group.interval.known();
    wide = wide || (group.interval.known() && std::isnan(group.half()));
    if (g >= most_rows) continue;
    const bool compared = std::isfinite(group.delta) && group.baseline != static_cast<int>(g);
    table.add({group.name, status_text(group.cells, rows),
               spread_text(group.loss, [](double v) { return fmt::format("{:.4f}", v); }),
               std::isfinite(group.speed()) ? speed_text(group, format_count) : "-",
               spread_text(group.peak.n > 0 ? group.peak : group.predicted_peak,
                           [](double v) { return format_bytes(v); }),
               compared ? fmt::format("{:+.1f} %", 100 * group.delta) : "", others_text(group),
               reason_in(group.cells, rows)});
  }
  std::string text = fmt::format("sweep {}: {}: {}\n\n{}", sweep.name,
                                 plural(static_cast<std::int64_t>(cells.size()), "cell"),
                                 counts_text(rows), table.text("  "));
  if (found.groups.size() > most_rows)
    text +=
        fmt::format("  … and {} more, in {}\n", found.groups.size() - most_rows, sweep.folder());
  if (measured)
    text +=
        "\n  ± of tokens/s: half of a 95 % interval; of other columns: standard deviation over "
        "seeds\n"
        "  others: cores that other programs had meanwhile, on average\n";
  if (wide)
    text +=
        "  ± ?: these runs are too few, or differ too much, for a 95 % interval that tells "
        "anything\n";
  std::string verdict = found.answer();
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
