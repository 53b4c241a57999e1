// Makes the figures that the inputs have data for.
#include "report/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "meshwright/engine/text.h"
#include "report/figure_rows.h"
#include "report/timeline.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t most_drawn = 24, most_lines = 8;
constexpr double gib = 1 << 30, mib = 1 << 20;

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
    for (const PaperRow& row : rows_) {
      drawn_.push_back(&row);
      if (std::none_of(kinds_.begin(), kinds_.end(),
                       [&](const PaperRow* one) { return ranked_together(*one, row); }))
        kinds_.push_back(&row);
    }
    const auto key = [](const PaperRow* row) {
      return std::pair(!row->counted, std::isfinite(row->speed) ? -row->speed : 1);
    };
    std::stable_sort(drawn_.begin(), drawn_.end(),
                     [&](const PaperRow* a, const PaperRow* b) { return key(a) < key(b); });
    if (drawn_.size() > most_drawn) {
      left_out_ = fmt::format("the {} fastest of {}", most_drawn, drawn_.size());
      drawn_.resize(most_drawn);
    }
    std::stable_sort(drawn_.begin(), drawn_.end(), [&](const PaperRow* a, const PaperRow* b) {
      return kind_of(*a) < kind_of(*b);
    });
    const auto predicted =
        std::count_if(rows_.begin(), rows_.end(), [](auto& row) { return row.predicted; });
    said_ = predicted == 0                                           ? "measured"
            : predicted == static_cast<std::ptrdiff_t>(rows_.size()) ? "predicted"
                                                                     : "measured or predicted";
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
    if (kinds_.size() > 1)
      figure.title +=
          "; mixes with different letters in parentheses do different work and cannot be compared";
    figure.series.push_back(std::move(series));
    keep(std::move(figure));
  }

  // The index in `kinds_` of the kind that the row is ranked with.
  std::size_t kind_of(const PaperRow& row) const {
    const auto found = std::find_if(kinds_.begin(), kinds_.end(), [&](const PaperRow* one) {
      return ranked_together(*one, row);
    });
    return static_cast<std::size_t>(found - kinds_.begin());
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
    const bool stages = rows_.size() == 1 && rows_.front().stages.size() > 1;
    const bool traced = std::any_of(rows_.begin(), rows_.end(), [](const PaperRow& row) {
      return !row.measured_parts.empty();
    });
    figure.y_label = stages ? "stage" : "mix";
    std::vector<Parts> parts;
    const auto add = [&](const std::string& name, const Parts& of, const char* said) {
      if (of.empty()) return;
      figure.categories.push_back(traced ? fmt::format("{}, {}", name, said) : name);
      parts.push_back(of);
    };
    std::size_t untraced = 0;
    if (stages) {
      const PaperRow& row = rows_.front();
      for (std::size_t s = 0; s < row.stages.size(); ++s) {
        if (s < row.measured_stages.size())
          add(row.stages[s].first, row.measured_stages[s].second, "measured");
        add(row.stages[s].first, row.stages[s].second, "predicted");
      }
    } else {
      for (const PaperRow* row : drawn_) {
        add(row->name, row->measured_parts, "measured");
        add(row->name, row->step_parts, "predicted");
        if (!row->predicted && row->measured_parts.empty()) ++untraced;
      }
    }
    if (parts.empty()) return skip("breakdown", "the inputs hold no prediction of a step by parts");
    figure.title = fmt::format("What a step's time goes to, {}{}",
                               traced ? "measured in a traced step and predicted" : "predicted",
                               stages ? ", by stage" : ", on average of the stages");
    if (untraced > 0 && traced)
      figure.left_out = fmt::format(
          "{}what was measured of {} of {} mixes: the others traced no step",
          left_out_.empty() ? "" : left_out_ + "; ", drawn_.size() - untraced, drawn_.size());
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
        "Speed against peak memory, {}; no other mix beats those on the Pareto front in both",
        said_);
    figure.x_label = unit == gib ? "peak memory of a rank (GiB)" : "peak memory of a rank (MiB)";
    figure.y_label = "tokens/s";
    figure.from_zero = false;
    std::vector<FigureSeries> edges;  // of each kind
    for (const PaperRow* kind : kinds_)
      edges.push_back(
          {kinds_.size() > 1 ? "on the Pareto front, " + kind->kind : "on the Pareto front"});
    FigureSeries other{"others", {}, {}, {}, {}, false};
    FigureSeries wrong{"failed, not compared, or too large", {}, {}, {}, {}, false};
    std::vector<double> best(kinds_.size(), 0);
    for (const PaperRow* row : known) {
      const std::size_t kind = kind_of(*row);
      FigureSeries& of = !row->counted ? wrong : row->speed > best[kind] ? edges[kind] : other;
      of.x.push_back(row->peak / unit);
      of.y.push_back(row->speed);
      of.names.push_back(row->name);
      if (row->counted) best[kind] = std::max(best[kind], row->speed);
    }
    for (FigureSeries& one : edges)
      if (!one.x.empty()) figure.series.push_back(std::move(one));
    for (FigureSeries* one : {&other, &wrong})
      if (!one->x.empty()) figure.series.push_back(std::move(*one));
    keep(std::move(figure));
  }

  void curves(const char* name, const char* what, Curve PaperRow::*of) {
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
    std::map<std::pair<bool, std::string>, std::map<int, const PaperRow*>> works;
    for (const PaperRow& row : rows_) {
      if (row.ranks < 1 || !std::isfinite(row.speed) || !row.counted) continue;
      const PaperRow*& best = works[{row.predicted, row.work_but_batch}][row.ranks];
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
      FigureSeries have{(work.first ? "predicted" : "measured") + number, {}, {}, {}, {}, true};
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
  std::vector<const PaperRow*> kinds_;  // the first of each kind that is ranked by itself
  FigureSet set_;
  std::string left_out_;  // where not all rows are drawn: which of them are
  std::string said_;      // "measured", "predicted", or that there are both
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

FigureSet figures_of(const std::vector<fs::path>& inputs, const std::vector<std::string>& of_run) {
  const PaperRows made = paper_rows(inputs, of_run);
  FigureSet set = FigureMaker(made.rows).make();
  add_timelines(made.runs, made.groups, set);
  return set;
}

}  // namespace mw
