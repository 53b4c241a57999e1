// Makes the figures that the inputs have data for, with a row for each mix of runs and sweeps, and
// for each plan that plan or search wrote with --json.
#include "report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "common/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "report/cells.h"
#include "report/groups.h"
#include "report/timeline.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t most_drawn = 24, most_lines = 8;
constexpr double gib = 1 << 30, mib = 1 << 20;
using Parts = std::map<std::string, double>;
using Sampled = std::vector<std::pair<std::int64_t, double>>;

// What figures show of one mix of a sweep, run, plan, or plan that a search found.
struct PaperRow {
  std::string name, work;
  int ranks = 0;
  bool predicted = false;
  bool counted = true;  // it is right, or predicted to fit: it may lie on the edge
  double speed = not_known, half = not_known, step = not_known, peak = not_known, mfu = not_known;
  double loss = not_known;
  int runs = 0;
  Parts memory, step_parts, bytes;
  std::vector<std::pair<std::string, Parts>> stages, stage_memory;
  Sampled losses, held_out;
};

// --- Predictions ---

std::string stage_name(const Json& stage) {
  return fmt::format("stage {}", std::llround(number_at(stage, "stage")));
}

void take_stages(PaperRow& row, const Json& prediction) {
  for (const Json& stage : prediction.value("stages", Json::array()))
    row.stages.emplace_back(stage_name(stage), step_parts(stage));
  for (const Json& stage : prediction.value("memory", Json::array())) {
    Parts parts;
    for (const auto& [name, bytes] : stage.items())
      if (bytes.is_number() && name != "stage" && bytes.get<double>() > 0)
        parts[name] = bytes.get<double>();
    row.stage_memory.emplace_back(stage_name(stage), parts);
  }
}

PaperRow row_of_prediction(const std::string& name, const Json& prediction) {
  ReportCell cell;
  take_prediction(cell, prediction);
  PaperRow row;
  row.name = name;
  row.predicted = true;
  row.counted = cell.fits;
  row.ranks = cell.ranks;
  row.speed = cell.tokens_per_second.predicted;
  row.step = cell.step_seconds.predicted;
  row.peak = number_at(prediction, "peak_bytes");
  row.mfu = number_at(prediction, "mfu");
  row.step_parts = step_parts(prediction);
  for (const auto& [category, bytes] : cell.memory)
    if (bytes.predicted > 0) row.memory[category] = bytes.predicted;
  for (const auto& [axis, bytes] : cell.bytes) row.bytes[axis] = bytes.predicted;
  take_stages(row, prediction);
  return row;
}

// A text that is the same for experiments of the same work. The batch is left out: it may grow
// along a curve of scaling.
std::string work_of_experiment(const Json& experiment) {
  Json work = Json::object();
  for (const char* key : {"model", "sequence"})
    if (experiment.is_object() && experiment.contains(key)) work[key] = experiment[key];
  return work.dump();
}

void take_search(const Json& found, std::vector<PaperRow>& rows) {
  std::set<std::string> seen;
  for (const char* list : {"best", "edge", "checked"}) {
    for (const Json& one : found.value(list, Json::array())) {
      std::string name = fmt::format("{}, microbatch {}", one.value("plan", "?"),
                                     one.value("microbatch", Json()).dump());
      for (const char* key : {"recompute", "offload"}) {
        const Json value = one.value(key, Json("none"));
        if (value != "none")
          name += fmt::format(", {} {}", key,
                              value.is_string() ? value.get<std::string>() : value.dump());
      }
      if (seen.insert(name).second)
        rows.push_back(row_of_prediction(name, one.value("predicted", Json::object())));
    }
  }
}

// Adds the plans of a file that holds a result of plan or search on each line.
void take_results(const fs::path& path, std::vector<PaperRow>& rows) {
  const std::optional<std::string> text = whole_file(path);
  const std::size_t before = rows.size();
  std::istringstream lines(text.value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const Json result = Json::parse(line, nullptr, false);
    const std::string kind = result.is_object() ? result.value("kind", "") : "";
    if (kind == "search") take_search(result, rows);
    if (kind != "plan") continue;
    PaperRow row = row_of_prediction(result.value("name", "plan"), result);
    row.work = work_of_experiment(result.value("experiment", Json::object()));
    rows.push_back(std::move(row));
  }
  if (rows.size() > before) return;
  throw Error(Stage::options, text ? "file.format" : "file.missing", "",
              fmt::format("report --figures: {}: {}", path.string(),
                          text ? "it holds no result of plan or search" : "there is no such file"),
              "write one: meshwright plan SCRIPT --json > FILE; a run is given by its run file, a "
              "sweep by its folder");
}

// --- Runs ---

Parts means_of(const std::map<std::string, MeanAndDeviation>& spreads) {
  Parts parts;
  for (const auto& [name, spread] : spreads)
    if (spread.mean > 0) parts[name] = spread.mean;
  return parts;
}

// The mean of several curves, at the steps that all of them have.
Sampled mean_curve(const std::vector<const Sampled*>& curves) {
  std::map<std::int64_t, std::pair<double, std::size_t>> sums;
  for (const Sampled* curve : curves) {
    for (const auto& [step, value] : *curve) {
      sums[step].first += value;
      ++sums[step].second;
    }
  }
  Sampled mean;
  for (const auto& [step, sum] : sums)
    if (sum.second == curves.size())
      mean.emplace_back(step, sum.first / static_cast<double>(sum.second));
  return mean;
}

PaperRow row_of_group(const ReportGroup& group, const std::vector<ReportCell>& cells) {
  PaperRow row;
  row.name = group.name;
  row.predicted = group.tokens_per_second.n == 0;
  row.counted = group.verdict == GroupVerdict::right || group.verdict == GroupVerdict::predicted;
  row.runs = group.tokens_per_second.n;
  row.speed = group.speed();
  row.step = row.predicted ? group.predicted_step.mean : group.step_seconds.mean;
  row.peak = group.memory_needed();
  row.mfu = group.mfu.mean;
  row.loss = group.loss.mean;
  if (group.interval.known()) row.half = row.speed * group.half();
  row.memory = means_of(row.predicted ? group.predicted_memory : group.memory);
  row.bytes = means_of(row.predicted ? group.predicted_bytes : group.bytes);
  for (const auto& [key, value] : group.work)
    if (key != "batch" && !key.starts_with("data")) row.work += key + "=" + value + "\n";
  std::vector<const Sampled*> losses, held_out;
  for (const std::size_t c : group.cells) {
    const ReportCell& cell = cells[c];
    row.ranks = std::max(row.ranks, cell.ranks);
    if (!cell.losses.empty()) losses.push_back(&cell.losses);
    const auto held = cell.series.find("held_out_loss");
    if (held != cell.series.end()) held_out.push_back(&held->second);
  }
  row.losses = mean_curve(losses);
  row.held_out = mean_curve(held_out);
  for (const std::size_t c : group.cells) {
    if (!cells[c].measured()) continue;
    row.step_parts = cells[c].predicted_parts;
    break;
  }
  return row;
}

// --- Figures ---

// A series of stacked bars for each part that any of the bars has.
std::vector<FigureSeries> stacked_parts(const std::vector<Parts>& of, double unit) {
  std::vector<std::string> order = {"parameters",  "gradients", "optimizer",
                                    "activations", "compute",   "exposed communication"};
  for (const Parts& parts : of)
    for (const auto& [name, value] : parts)
      if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
  std::vector<FigureSeries> series;
  for (const std::string& name : order) {
    FigureSeries one;
    one.name = name;
    bool any = false;
    for (const Parts& parts : of) {
      const auto found = parts.find(name);
      one.y.push_back(found == parts.end() ? not_known : found->second / unit);
      any = any || found != parts.end();
    }
    if (any && name != "peak") series.push_back(std::move(one));
  }
  return series;
}

class FigureMaker {
 public:
  explicit FigureMaker(const std::vector<PaperRow>& rows) : rows_(rows) {
    for (const PaperRow& row : rows_) drawn_.push_back(&row);
    std::stable_sort(drawn_.begin(), drawn_.end(), [](const PaperRow* a, const PaperRow* b) {
      return (std::isfinite(a->speed) ? a->speed : -1) > (std::isfinite(b->speed) ? b->speed : -1);
    });
    if (drawn_.size() > most_drawn) {
      left_out_ = fmt::format("the {} fastest of {}", most_drawn, drawn_.size());
      drawn_.resize(most_drawn);
    }
    const bool predicted =
        std::all_of(rows_.begin(), rows_.end(), [](auto& row) { return row.predicted; });
    said_ = predicted ? "predicted" : "measured";
  }

  FigureSet make() {
    speed();
    memory();
    bytes();
    breakdown();
    pareto();
    curves("loss", "training loss", &PaperRow::losses);
    curves("held_out_loss", "held-out loss", &PaperRow::held_out);
    scaling();
    summary();
    return std::move(set_);
  }

 private:
  void skip(const char* name, const std::string& why) { set_.not_drawn.emplace_back(name, why); }
  void keep(Figure figure) {
    if (figure.left_out.empty() && figure.kind != Figure::Kind::curves) figure.left_out = left_out_;
    set_.figures.push_back(std::move(figure));
  }

  void speed() {
    Figure figure;
    figure.name = "speed";
    figure.title = fmt::format("Tokens a second, {}", said_);
    figure.x_label = "tokens/s";
    figure.y_label = "mix";
    FigureSeries series;
    series.name = said_;
    for (const PaperRow* row : drawn_) {
      if (!std::isfinite(row->speed)) continue;
      figure.categories.push_back(row->name);
      series.y.push_back(row->speed);
      series.spread.push_back(row->half);
    }
    if (series.y.empty()) return skip("speed", "no speed is known");
    if (std::none_of(series.spread.begin(), series.spread.end(),
                     [](double half) { return std::isfinite(half); })) {
      series.spread.clear();
    } else {
      figure.title += "; lines are 95 % intervals";
    }
    figure.series.push_back(std::move(series));
    keep(std::move(figure));
  }

  // Whether bars are the stages of one plan; else each is a row.
  bool by_stage() const { return rows_.size() == 1 && rows_.front().stage_memory.size() > 1; }

  void memory() {
    Figure figure;
    figure.kind = Figure::Kind::stacked;
    figure.name = "memory";
    figure.title =
        fmt::format("Memory of the fullest rank by category, each at its own highest, {}", said_);
    figure.mark_name = "peak of all";
    std::vector<Parts> parts;
    if (by_stage()) {
      for (const auto& [name, of] : rows_.front().stage_memory) {
        figure.categories.push_back(name);
        parts.push_back(of);
        const auto peak = of.find("peak");
        figure.marks.push_back(peak == of.end() ? not_known : peak->second);
      }
    } else {
      for (const PaperRow* row : drawn_) {
        if (row->memory.empty()) continue;
        figure.categories.push_back(row->name);
        parts.push_back(row->memory);
        figure.marks.push_back(row->peak);
      }
    }
    if (parts.empty()) return skip("memory", "no memory by category is known");
    const double most = *std::max_element(figure.marks.begin(), figure.marks.end());
    const double unit = most >= gib ? gib : mib;
    for (double& mark : figure.marks) mark /= unit;
    figure.x_label = unit == gib ? "GiB" : "MiB";
    figure.y_label = by_stage() ? "stage" : "mix";
    figure.series = stacked_parts(parts, unit);
    keep(std::move(figure));
  }

  void bytes() {
    Figure figure;
    figure.kind = Figure::Kind::stacked;
    figure.name = "bytes";
    figure.title = fmt::format("Bytes that a rank sends in a step, by axis, {}", said_);
    figure.x_label = "MiB";
    figure.y_label = "mix";
    std::vector<Parts> parts;
    for (const PaperRow* row : drawn_) {
      if (row->bytes.empty()) continue;
      figure.categories.push_back(row->name);
      parts.push_back(row->bytes);
    }
    if (parts.empty()) return skip("bytes", "nothing is known of what ranks send");
    figure.series = stacked_parts(parts, mib);
    keep(std::move(figure));
  }

  void breakdown() {
    Figure figure;
    figure.kind = Figure::Kind::stacked;
    figure.name = "breakdown";
    figure.x_label = "seconds";
    figure.y_label = by_stage() ? "stage" : "mix";
    figure.title = fmt::format("What a step's time goes to, predicted{}",
                               by_stage() ? ", by stage" : ", on average of the stages");
    std::vector<Parts> parts;
    if (by_stage()) {
      for (const auto& [name, of] : rows_.front().stages) {
        figure.categories.push_back(name);
        parts.push_back(of);
      }
    } else {
      for (const PaperRow* row : drawn_) {
        if (row->step_parts.empty()) continue;
        figure.categories.push_back(row->name);
        parts.push_back(row->step_parts);
      }
    }
    if (parts.empty()) return skip("breakdown", "the inputs hold no prediction of a step by parts");
    figure.series = stacked_parts(parts, 1);
    keep(std::move(figure));
  }

  void pareto() {
    std::vector<const PaperRow*> known;
    for (const PaperRow& row : rows_)
      if (std::isfinite(row.speed) && std::isfinite(row.peak)) known.push_back(&row);
    if (known.size() < 2)
      return skip("pareto", "it takes two mixes whose speed and memory are known");
    std::stable_sort(known.begin(), known.end(), [](const PaperRow* a, const PaperRow* b) {
      return std::pair(a->peak, -a->speed) < std::pair(b->peak, -b->speed);
    });
    const double unit = known.back()->peak >= gib ? gib : mib;
    Figure figure;
    figure.kind = Figure::Kind::curves;
    figure.name = "pareto";
    figure.title = fmt::format(
        "Speed against peak memory, {}; no other mix beats those on the edge in both", said_);
    figure.x_label = unit == gib ? "peak memory of a rank (GiB)" : "peak memory of a rank (MiB)";
    figure.y_label = "tokens/s";
    figure.from_zero = false;
    FigureSeries edge{"on the edge", {}, {}, {}, {}, true};
    FigureSeries other{"others", {}, {}, {}, {}, false};
    FigureSeries wrong{"failed, not compared, or too large", {}, {}, {}, {}, false};
    double best = 0;
    for (const PaperRow* row : known) {
      FigureSeries& of = !row->counted ? wrong : row->speed > best ? edge : other;
      of.x.push_back(row->peak / unit);
      of.y.push_back(row->speed);
      of.names.push_back(row->name);
      if (row->counted) best = std::max(best, row->speed);
    }
    for (FigureSeries* one : {&edge, &other, &wrong})
      if (!one->x.empty()) figure.series.push_back(std::move(*one));
    keep(std::move(figure));
  }

  void curves(const char* name, const char* what, Sampled PaperRow::*of) {
    Figure figure;
    figure.kind = Figure::Kind::curves;
    figure.name = name;
    figure.title = fmt::format("The {} over steps, the mean of a mix's runs", what);
    figure.x_label = "step";
    figure.y_label = fmt::format("{} (nats a token)", what);
    figure.from_zero = false;
    std::size_t all = 0;
    for (const PaperRow* row : drawn_) {
      if ((row->*of).empty() || ++all > most_lines) continue;
      FigureSeries line;
      line.name = row->name;
      for (const auto& [step, value] : row->*of) {
        line.x.push_back(static_cast<double>(step));
        line.y.push_back(value);
      }
      figure.series.push_back(std::move(line));
    }
    if (figure.series.empty()) return skip(name, fmt::format("no run has a {}", what));
    if (all > most_lines) figure.left_out = fmt::format("the {} fastest of {}", most_lines, all);
    keep(std::move(figure));
  }

  // The fastest mix at each number of ranks, beside a growth in proportion from the smallest one.
  void scaling() {
    std::map<std::string, std::map<int, const PaperRow*>> works;
    for (const PaperRow& row : rows_) {
      if (row.ranks < 1 || !std::isfinite(row.speed)) continue;
      const PaperRow*& best = works[row.work][row.ranks];
      if (best == nullptr || row.speed > best->speed) best = &row;
    }
    std::erase_if(works, [](const auto& work) { return work.second.size() < 2; });
    if (works.empty())
      return skip("scaling", "it takes the same model on two numbers of ranks or more");
    Figure figure;
    figure.kind = Figure::Kind::curves;
    figure.name = "scaling";
    figure.title =
        fmt::format("Tokens a second of the fastest mix at each number of ranks, {}", said_);
    figure.x_label = "ranks";
    figure.y_label = "tokens/s";
    figure.log_x = figure.log_y = true;
    for (const auto& [work, sizes] : works) {
      const std::string number =
          works.size() > 1 ? fmt::format(" {}", figure.series.size() / 2 + 1) : "";
      FigureSeries have{said_ + number, {}, {}, {}, {}, true};
      FigureSeries ideal{"linear" + number, {}, {}, {}, {}, true};
      const auto& [least, first] = *sizes.begin();
      for (const auto& [ranks, row] : sizes) {
        have.x.push_back(ranks);
        have.y.push_back(row->speed);
        have.names.push_back(row->name);
        ideal.x.push_back(ranks);
        ideal.y.push_back(first->speed * ranks / least);
      }
      figure.series.push_back(std::move(have));
      figure.series.push_back(std::move(ideal));
    }
    keep(std::move(figure));
  }

  // A table of the rows, for which there is no drawing.
  void summary();

  const std::vector<PaperRow>& rows_;
  std::vector<const PaperRow*> drawn_;  // the fastest first
  FigureSet set_;
  std::string left_out_;  // where not all rows are drawn: which of them are
  std::string said_;      // "measured" or "predicted"
};

void FigureMaker::summary() {
  Figure table;
  table.kind = Figure::Kind::table;
  table.name = "summary";
  table.title = fmt::format("Speed, memory and loss of each mix, {}", said_);
  table.y_label = "mix";
  const std::pair<const char*, double (*)(const PaperRow&)> columns[] = {
      {"ranks", [](const PaperRow& r) { return r.ranks > 0 ? r.ranks : not_known; }},
      {"runs", [](const PaperRow& r) { return r.runs > 0 ? r.runs : not_known; }},
      {"tokens/s", [](const PaperRow& r) { return r.speed; }},
      {"step (ms)", [](const PaperRow& r) { return 1e3 * r.step; }},
      {"peak (MiB)", [](const PaperRow& r) { return r.peak / mib; }},
      {"MFU (%)", [](const PaperRow& r) { return 100 * r.mfu; }},
      {"loss", [](const PaperRow& r) { return r.loss; }}};
  for (const PaperRow* row : drawn_) table.categories.push_back(row->name);
  for (const auto& [name, value] : columns) {
    FigureSeries column;
    column.name = name;
    for (const PaperRow* row : drawn_) {
      column.y.push_back(value(*row));
      if (column.name == "tokens/s") column.spread.push_back(row->half);
    }
    if (std::any_of(column.y.begin(), column.y.end(), [](double v) { return std::isfinite(v); }))
      table.series.push_back(std::move(column));
  }
  keep(std::move(table));
}

// Adds the timelines of one run's step, as it was measured and as it was simulated.
void add_timelines(const ReportRuns& runs, const ReportGroups& groups, FigureSet& set) {
  const ReportCell* cell = nullptr;
  if (groups.fastest >= 0)
    cell = &runs.cells[groups.groups[static_cast<std::size_t>(groups.fastest)].cells.front()];
  for (const ReportCell& one : runs.cells)
    if (cell == nullptr && one.measured()) cell = &one;
  const Json both = cell != nullptr ? timeline_of_run(cell->file) : Json();
  for (const char* which : {"measured", "simulated"}) {
    const std::string name = std::string("timeline_") + which;
    if (!both.is_object() || !both[which].is_object() || both[which]["bars"].empty()) {
      set.not_drawn.emplace_back(name, "no run file holds such a timeline");
      continue;
    }
    const Json& drawn = both[which];
    Figure figure;
    figure.kind = Figure::Kind::timeline;
    figure.name = name;
    figure.title = fmt::format("A step of {}, {}", cell->name, which);
    figure.x_label = "ms";
    for (const Json& row : drawn["rows"]) figure.categories.push_back(row);
    for (const Json& kind : drawn["kinds"]) {
      FigureSeries series;
      series.name = kind;
      figure.series.push_back(std::move(series));
    }
    for (const Json& bar : drawn["bars"])
      figure.spans.push_back({bar[0], bar[1], bar[2], bar[3], bar[4]});
    if (drawn.contains("left_out"))
      figure.left_out =
          fmt::format("the first {0} of {1} rows", figure.categories.size(),
                      figure.categories.size() + drawn["left_out"].get<std::size_t>());
    set.figures.push_back(std::move(figure));
  }
}

}  // namespace

FigureSet figures_of(const std::vector<fs::path>& inputs) {
  std::vector<PaperRow> rows;
  std::vector<fs::path> paths;
  for (const fs::path& input : inputs) {
    const std::string ending = input.extension().string();
    if (ending == ".json" || ending == ".jsonl") {
      take_results(input, rows);
    } else {
      paths.push_back(input);
    }
  }
  ReportRuns runs;
  ReportGroups groups;
  if (!paths.empty()) {
    runs = find_report_runs(paths);
    groups = group_cells(runs);
    for (const ReportGroup& group : groups.groups) rows.push_back(row_of_group(group, runs.cells));
  }
  FigureSet set = FigureMaker(rows).make();
  add_timelines(runs, groups, set);
  return set;
}

}  // namespace mw
