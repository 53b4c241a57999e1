// Makes processes of a trace: a row for each rank, lanes for ops and axes, counters of memory.
#include "app/trace_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "app/trace_rows.h"

namespace mw {

namespace {

// Gives works of a rank that overlap a lane each: they are those of a group.
void find_lanes(std::vector<TimedAction>& actions) {
  std::vector<TimedAction*> works, open;
  for (TimedAction& action : actions)
    if (action.microbatch >= 0 && !action.name.starts_with("receive")) works.push_back(&action);
  std::stable_sort(works.begin(), works.end(),
                   [](const auto* a, const auto* b) { return a->start < b->start; });
  double end = 0;  // the latest end of the open works
  const auto close = [&] {
    for (TimedAction* one : open) one->lanes = static_cast<int>(open.size());
    open.clear();
  };
  for (TimedAction* work : works) {
    if (work->start >= end) close();
    work->lane = static_cast<int>(open.size());
    end = open.empty() ? work->end : std::max(end, work->end);
    open.push_back(work);
  }
  close();
}

}  // namespace

TraceProcess process_of(const std::string& name, const std::vector<ActionRow>& actions,
                        const Schedule& schedule) {
  std::map<int, TraceRow> rows;  // by rank
  std::map<int, std::vector<int>> chunks;
  for (const ActionRow& a : actions) {
    TraceRow& row = rows[a.rank];
    if (row.actions.empty()) {
      row.name = fmt::format("rank {}, stage {}", a.rank, a.stage);
      row.rank = a.rank;
      row.stage = a.stage;
    }
    TimedAction timed{a.rank, a.stage, a.chunk, a.action, a.microbatch, a.start, a.end, -1};
    if (!chunks.count(a.stage)) chunks[a.stage] = schedule.chunks(a.stage);
    const auto& held = chunks[a.stage];
    if (a.microbatch >= 0 && a.chunk >= 0 && static_cast<std::size_t>(a.chunk) < held.size())
      timed.vstage = held[static_cast<std::size_t>(a.chunk)];
    row.actions.push_back(std::move(timed));
  }
  TraceProcess process{name, {}, {}, {}};
  for (auto& [rank, row] : rows) {
    find_lanes(row.actions);
    process.rows.push_back(std::move(row));
  }
  return process;
}

namespace {

// Adds the spans to the lane of ops, or to an axis' lane, below their rank.
void add_lanes_of(TraceProcess& process, const std::vector<SpanRow>& spans) {
  // by rank and axis; the ops' lane has no axis, so it is first
  std::map<std::pair<int, std::string>, TraceLane> lanes;
  for (const SpanRow& span : spans) {
    const bool transfer = span.kind == "transfer";
    TraceLane& lane = lanes[{span.rank, transfer ? span.axis : ""}];
    lane.rank = span.rank;
    lane.name = transfer ? span.axis : "ops";
    TraceSlice slice{
        span.kind == "wait" ? "wait " + span.name : span.name, span.kind, span.start, span.end, {}};
    slice.about = {{"phase", span.phase}, {"of", span.label}};
    if (!span.axis.empty()) slice.about["axis"] = span.axis;
    if (span.microbatch >= 0) slice.about["microbatch"] = span.microbatch;
    if (transfer) slice.about["bytes"] = span.bytes;
    lane.slices.push_back(std::move(slice));
  }
  for (auto& [key, lane] : lanes) process.lanes.push_back(std::move(lane));
}

}  // namespace

void add_lanes(TraceProcess& process, const Table& table) {
  const auto kind = table.texts("kind"), axis = table.texts("axis"), op = table.texts("name"),
             phase = table.texts("phase"), label = table.texts("label");
  const auto rank = table.integers("rank"), microbatch = table.integers("microbatch"),
             bytes = table.integers("bytes");
  const auto start = table.numbers("start"), end = table.numbers("end");
  std::vector<SpanRow> spans;
  for (std::size_t r = 0; r < kind.size(); ++r) {
    spans.push_back({-1, static_cast<std::int32_t>(rank[r]), 0, kind[r], axis[r], op[r], phase[r],
                     label[r], static_cast<std::int32_t>(microbatch[r]), start[r], end[r],
                     bytes[r]});
  }
  add_lanes_of(process, spans);
}

void add_counters(TraceProcess& process, const Table& table) {
  const auto rank = table.integers("rank");
  const auto time = table.numbers("time");
  for (std::size_t r = 0; r < rank.size(); ++r) {
    TraceCounter counter{static_cast<int>(rank[r]), time[r], Json::object()};
    for (const TableColumn& column : table.columns) {
      if (column.unit == "bytes") counter.values[column.name] = table.integers(column.name)[r];
    }
    process.counters.push_back(std::move(counter));
  }
}

TraceProcess predicted_process(const std::string& name, const Plan& plan,
                               const Prediction& prediction, const Machine& machine) {
  std::vector<ActionRow> actions;
  for (const auto& stage : prediction.actions) {
    for (const TimedAction& a : stage)
      actions.push_back({0, a.rank, a.stage, a.chunk, a.name, a.microbatch, a.start, a.end});
  }
  Schedule schedule = plan.schedule;
  if (schedule.stage_of.empty()) schedule.stage_of = {0};
  TraceProcess process = process_of(name, actions, schedule);
  std::vector<SpanRow> spans;
  for (std::size_t s = 0; s < prediction.instructions.size(); ++s) {
    if (prediction.actions[s].empty()) continue;
    const TraceRows rows(plan, prediction.actions[s].front().rank, machine.scratch());
    for (SpanRow& row : rows.predicted(prediction.instructions[s])) spans.push_back(std::move(row));
    for (const SpanMemoryRow& row : rows.predicted_memory(prediction.instructions[s])) {
      process.counters.push_back({row.rank,
                                  row.time,
                                  {{"parameters", row.parameters},
                                   {"gradients", row.gradients},
                                   {"optimizer", row.optimizer},
                                   {"activations", row.activations},
                                   {"buffers", row.buffers + machine.kept_by_libraries()},
                                   {"host", row.host}}});
    }
  }
  add_lanes_of(process, spans);
  return process;
}

}  // namespace mw
