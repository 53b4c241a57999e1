// Predicts one run of each braid by itself, and draws when each of its actions computes and when
// each axis has transfers under way.
#include "draw/braids.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "draw/page.h"
#include "draw/timeline.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/text.h"
#include "predict/pipeline.h"
#include "predict/prediction.h"
#include "predict/price.h"

namespace mw {
namespace {

bool is_braid(const Program& program, const SegmentRun& run) {
  return program.segments[static_cast<std::size_t>(run.segment)].kind == SegmentKind::braid;
}

// One run of each braid of the program: the middle one of its runs in a step.
std::vector<SegmentRun> middle_runs(const Program& program) {
  std::map<int, std::vector<SegmentRun>> runs;
  for (const SegmentRun& run : program.timeline)
    if (is_braid(program, run)) runs[run.segment].push_back(run);
  std::vector<SegmentRun> middle;
  for (const auto& [segment, of] : runs) middle.push_back(of[of.size() / 2]);
  return middle;
}

class BraidPainter {
 public:
  BraidPainter(const Program& program, const Machine& machine, int threads)
      : program_(program),
        machine_(machine),
        rank_(program, program.first(), 0, machine.scratch()),
        ranks_(program.mesh.size() / program.stages),
        threads_(machine.threads_of(program.mesh.size(), threads)) {}

  BraidPicture paint(const SegmentRun& run) const {
    const Segment& braid = segment(run);
    BraidPicture picture;
    picture.weave = braid.weave;
    picture.stage = program_.stage;
    for (int lane = 0; lane < lanes_of(run); ++lane) {
      const Lane& of = braid.lanes[static_cast<std::size_t>(lane)];
      const std::string work =
          fmt::format("{}{}{}", of.vstage, action_name(braid, lane), microbatch_of(run, lane));
      picture.name += (lane == 0 ? "" : "+") + work;
      picture.row_names.push_back(work);
      SegmentRun alone;
      alone.segment = program_.segment(of.segment);
      alone.microbatch = microbatch_of(run, lane);
      const auto [seconds, waited] = played(alone, nullptr);
      picture.apart += seconds;
      picture.apart_waited += waited;
    }
    picture.rows.resize(picture.row_names.size());
    std::tie(picture.seconds, picture.waited) = played(run, &picture);
    return picture;
  }

 private:
  const Segment& segment(const SegmentRun& run) const {
    return program_.segments[static_cast<std::size_t>(run.segment)];
  }

  // The seconds of the run, and those in which it waits. Adds what it does to the picture, if there
  // is one.
  std::pair<double, double> played(const SegmentRun& run, BraidPicture* picture) const {
    Pricer pricer(rank_, machine_, ranks_, threads_);
    pricer.keep_times();
    pricer.play(run);
    double waited = 0;
    for (const Pricer::Kept& kept : pricer.kept()) {
      const InstructionTime& time = kept.time;
      if (time.kind == InstructionTime::Kind::wait) waited += time.end - time.start;
      if (picture != nullptr) add(run, time, *picture);
    }
    return {pricer.clock(), waited};
  }

  void add(const SegmentRun& run, const InstructionTime& time, BraidPicture& picture) const {
    const Segment& braid = segment(run);
    const bool computes = time.kind == InstructionTime::Kind::own;
    if (!computes && time.kind != InstructionTime::Kind::transfer) return;
    // Times that belong to no instruction of the braid have no lane.
    if (time.index < 0 || time.index >= static_cast<int>(braid.code.size())) return;
    const Instruction& i = braid.code[static_cast<std::size_t>(time.index)];
    TimedAction action;
    action.stage = program_.stage;
    action.vstage = braid.lanes[static_cast<std::size_t>(i.lane)].vstage;
    action.chunk = program_.chunk_of(action.vstage);
    action.name = action_name(braid, i.lane);
    action.microbatch = microbatch_of(run, i.lane);
    action.start = time.start;
    action.end = time.end;
    std::vector<TimedAction>& row = picture.rows[computes ? static_cast<std::size_t>(i.lane)
                                                          : row_of(i, braid.lanes.size(), picture)];
    if (!row.empty() && row.back().name == action.name && action.start <= row.back().end + 1e-12 &&
        row.back().microbatch == action.microbatch) {
      row.back().end = std::max(row.back().end, action.end);
    } else {
      row.push_back(std::move(action));
    }
  }

  // The row of the axis over which the instruction sends. The rows of axes follow those of the
  // braid's actions, whose number is `works`.
  std::size_t row_of(const Instruction& i, std::size_t works, BraidPicture& picture) const {
    const std::string axis =
        i.move.atoms.empty() && i.has_bucket()
            ? program_.name_of(
                  program_.reduction(program_.buckets[static_cast<std::size_t>(i.bucket)]))
            : program_.name_of({i.move.atoms, i.move.stages, i.move.exchanges_rows()});
    const auto from = picture.row_names.begin() + static_cast<std::ptrdiff_t>(works);
    const auto found = std::find(from, picture.row_names.end(), axis);
    const auto row = static_cast<std::size_t>(found - picture.row_names.begin());
    if (row == picture.rows.size()) {
      picture.row_names.push_back(axis);
      picture.rows.emplace_back();
    }
    return row;
  }

  const Program& program_;
  const Machine& machine_;
  const RankView rank_;
  const int ranks_, threads_;
};

// A row as text: each column has the letter of the action that takes more than half of its time, or
// a dot.
std::string row_text(const std::vector<TimedAction>& row, double seconds, int columns) {
  std::string text;
  for (int c = 0; c < columns; ++c) {
    const double from = seconds * c / columns, to = seconds * (c + 1) / columns;
    std::map<char, double> shares;
    for (const TimedAction& action : row)
      shares[action.name[0]] +=
          std::max(0.0, std::min(to, action.end) - std::max(from, action.start));
    const auto most = std::max_element(shares.begin(), shares.end(),
                                       [](auto& a, auto& b) { return a.second < b.second; });
    const bool busy = most != shares.end() && most->second > 0.5 * (to - from);
    text += busy ? std::string(1, most->first) : "·";
  }
  return text;
}

std::string in_words(const BraidPicture& picture) {
  const double apart = picture.apart, less = apart > 0 ? 1 - picture.seconds / apart : 0;
  return fmt::format(
      "{} on stage {}, by {}: {}, of which it waits {}; one after the other {}, {} ({})",
      picture.name, picture.stage, picture.weave, duration_text(picture.seconds),
      duration_text(picture.waited), duration_text(picture.apart),
      duration_text(picture.apart_waited),
      std::abs(less) < 5e-4
          ? "as long"
          : fmt::format("{:.1f} % {}", 100 * std::abs(less), less > 0 ? "less" : "more"));
}

}  // namespace

std::vector<BraidPicture> braid_pictures(const Plan& plan, const Machine& machine, int threads) {
  std::vector<const Program*> most;  // stages that have the most braids
  std::size_t count = 0;
  for (const Program& program : plan.programs) {
    const std::size_t own = middle_runs(program).size();
    if (own > count) most.clear();
    count = std::max(count, own);
    if (own > 0 && own == count) most.push_back(&program);
  }
  std::vector<BraidPicture> pictures;
  if (most.empty()) return pictures;
  const Program& program = *most[most.size() / 2];
  const BraidPainter painter(program, machine, threads);
  for (const SegmentRun& run : middle_runs(program)) pictures.push_back(painter.paint(run));
  return pictures;
}

std::string braids_text(const std::vector<BraidPicture>& pictures, int columns) {
  std::string text;
  for (const BraidPicture& picture : pictures) {
    std::size_t label = 0;
    for (const std::string& name : picture.row_names) label = std::max(label, name.size());
    text += fmt::format("{}{}\n", text.empty() ? "" : "\n", in_words(picture));
    for (std::size_t r = 0; r < picture.rows.size(); ++r) {
      text += fmt::format("  {:<{}} |{}|\n", picture.row_names[r], label,
                          row_text(picture.rows[r], picture.seconds,
                                   std::max(10, columns - static_cast<int>(label) - 5)));
    }
  }
  return text;
}

Json braids_json(const std::vector<BraidPicture>& pictures) {
  Json list = Json::array();
  for (const BraidPicture& picture : pictures) {
    list.push_back({{"name", picture.name},
                    {"stage", picture.stage},
                    {"weave", picture.weave},
                    {"seconds", picture.seconds},
                    {"waited_seconds", picture.waited},
                    {"apart_seconds", picture.apart},
                    {"apart_waited_seconds", picture.apart_waited}});
  }
  return list;
}

Json braids_page(const std::vector<BraidPicture>& pictures) {
  Json list = Json::array();
  for (const BraidPicture& picture : pictures) {
    TimelineRows rows;
    for (std::size_t r = 0; r < picture.rows.size(); ++r)
      rows.emplace_back(picture.row_names[r], action_rows(picture.rows[r]));
    list.push_back({{"name", page_text(picture.name, 60)},
                    {"stage", picture.stage},
                    {"words", page_text(in_words(picture))},
                    {"line", timeline_json(rows)}});
  }
  return list;
}

std::string braids_svg(const std::vector<BraidPicture>& pictures, const std::string& title) {
  std::vector<std::vector<TimedAction>> rows;
  std::vector<std::string> names;
  std::string caption = "along the axis: milliseconds";
  for (const BraidPicture& picture : pictures) {
    caption += "\n" + in_words(picture);
    for (std::size_t r = 0; r < picture.rows.size(); ++r) {
      rows.push_back(picture.rows[r]);
      for (TimedAction& action : rows.back()) {
        action.start *= 1e3;
        action.end *= 1e3;
      }
      names.push_back(picture.name + ": " + picture.row_names[r]);
    }
  }
  return draw_svg(rows, names, title, caption);
}

}  // namespace mw
