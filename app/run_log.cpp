// Writes what ranks report of each step into the run file, each measured number beside the
// predicted one.
#include "app/run_log.h"

#include <torch/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "app/account_rows.h"
#include "app/trace_rows.h"
#include "meshwright/engine/text.h"
#include "meshwright/plugin.h"
#include "predict/pipeline.h"

namespace mw {

static constexpr const char* rows_unread = "; the rows of the steps before cannot be read: ";

std::string trace_note(const RunRequest& asked, const RunSetup& setup, const std::string& log) {
  if (log.empty()) {
    const bool given = !asked.resolved.value("trace", Json::array()).empty();
    return given ? "trace: no step is traced, as traces go to the run file (log = \"runs/NAME.h5\")"
                 : "";
  }
  std::vector<std::string> beyond;
  for (const std::int64_t step : setup.trace)
    if (step >= setup.steps) beyond.push_back(std::to_string(step));
  if (beyond.empty()) return "";
  const bool one = beyond.size() == 1;
  return fmt::format("trace: the run ends after step {}, so that step{} {} {} not traced",
                     setup.steps - 1, one ? "" : "s", mw::join(beyond), one ? "is" : "are");
}

RunLog::RunLog(const Experiment& experiment, const Prediction& prediction, const RunOrigin& origin,
               const Checkpoints* resumed)
    : experiment_(experiment), prediction_(prediction) {
  if (experiment.log.empty() || origin.log_stays) return;
  // Predicts before the run: a stop request ends a prediction, and must not end the rows of a step.
  const std::vector<const Plan*> plans = experiment.plans();
  highest_.resize(static_cast<std::size_t>(experiment.plan->ranks()));
  for (const Plan* plan : plans) {
    std::vector<RankPrediction>& ranks = predicted_.emplace_back();
    for (int rank = 0; rank < plan->ranks(); ++rank) {
      ranks.push_back(predict_rank(*plan, rank));
      highest_[rank] = highest_of(highest_[rank], ranks.back().memory);
    }
  }
  RunInfo info;
  info.script = origin.script;
  info.plan = json_text(experiment.plan->description(), 1);
  info.plan_hash = experiment.plan->hash();
  info.predicted = json_text(prediction.to_json());
  info.seed = experiment.seed;
  info.name = experiment.name;
  info.hash = experiment.hash;
  info.hash_without_seed = experiment.hash_without_seed;
  info.started_by = origin.started_by;
  if (resumed != nullptr && resumed->from() != nullptr)
    info.continues = resumed->from()->index().hash;
  info.experiment = json_text(experiment.resolved, 1);
  if (!origin.machine.is_null()) info.machine = json_text(origin.machine, 1);
  info.versions = {
      {"meshwright", MESHWRIGHT_VERSION}, {"torch", TORCH_VERSION}, {"toolchain", toolchain}};
  for (const auto& stage : prediction.actions) {
    for (const TimedAction& a : stage) {
      info.predicted_actions.push_back(
          {0, a.rank, a.stage, a.chunk, a.name, a.microbatch, a.start, a.end});
    }
  }
  for (std::size_t s = 0; s < prediction.instructions.size(); ++s) {
    if (prediction.actions[s].empty()) continue;
    const TraceRows rows(*experiment.plan, prediction.actions[s].front().rank);
    for (SpanRow& row : rows.predicted(prediction.instructions[s]))
      info.predicted_trace.push_back(std::move(row));
    for (const SpanMemoryRow& row : rows.predicted_memory(prediction.instructions[s]))
      info.predicted_trace_memory.push_back(row);
  }
  if (resumed == nullptr || resumed->from() == nullptr) {
    writer_ = std::make_unique<RunWriter>(experiment.log, info);
    return;
  }
  const EarlierRows earlier = earlier_rows(*resumed);
  writer_ = std::make_unique<RunWriter>(experiment.log, info, RunWriter::Interval{}, &earlier);
  bandwidths_written_ = !earlier.bandwidths.empty();
  const CheckpointIndex& index = resumed->from()->index();
  earlier_unread_ = earlier.unread;
  event(index.step, -1, "resumed",
        fmt::format("from {}, written {} by {} on {} ranks{}{}", resumed->from()->folder().string(),
                    index.created, index.mix, index.ranks,
                    earlier_unread_.empty() ? "" : rows_unread, earlier_unread_));
  writer_->flush();
}

// Rows of past steps that no log has are made from the checkpoint.
EarlierRows RunLog::earlier_rows(const Checkpoints& resumed) const {
  const CheckpointIndex& index = resumed.from()->index();
  EarlierRows earlier = read_earlier(experiment_.log, index.step, {experiment_.hash, index.hash});
  std::map<std::int64_t, StepRow> rows;
  for (std::size_t s = 0; s < resumed.past().size(); ++s) {
    const PastStep& past = resumed.past()[s];
    StepRow row;
    row.step = static_cast<std::int64_t>(s);
    row.seconds = past.seconds;
    row.loss = past.loss;
    row.grad_norm = past.grad_norm;
    row.lr = past.lr;
    if (row.step < experiment_.steps) {
      row.tokens = experiment_.plan_at(row.step).tokens_per_step();
      row.tokens_per_second = static_cast<double>(row.tokens) / row.seconds;
    }
    rows[row.step] = row;
  }
  for (const StepRow& row : earlier.steps) rows[row.step] = row;
  earlier.steps.clear();
  for (const auto& [step, row] : rows) earlier.steps.push_back(row);
  return earlier;
}

void RunLog::write(const StepReport& report, const StepRow& row, const ExpertLoads& loads) {
  if (!writer_) return;
  writer_->add(row);
  for (const RankReport& rank : report.ranks) write_rank(report.step, rank);
  for (const auto& [layer, experts] : loads.layers()) {
    for (const auto& [expert, load] : experts) {
      writer_->add(ExpertRow{report.step, layer, static_cast<std::int32_t>(expert), load.chosen,
                             load.taken});
    }
  }
  write_actions(report);
  write_trace(report);
  write_account(report);
  write_memory(report.ranks);
  ++steps_written_;
}

void RunLog::write_memory(const std::vector<RankReport>& ranks) {
  std::vector<MemoryRow> categories;
  std::vector<RankMemoryRow> all;
  for (const RankReport& rank : ranks) {
    const int stage = experiment_.plan->program_of(rank.rank).stage;
    const MemoryForecast& highest = highest_.at(rank.rank);
    RankMemoryRow sum{rank.rank, stage, 0, rank.peak_bytes, highest.peak};
    for (int c = 0; c < category_count; ++c) {
      const auto category = static_cast<Category>(c);
      const MemoryUse& use = rank.memory[c];
      categories.push_back(
          {rank.rank, stage, name_of(category), use.bytes, use.peak, highest[category]});
      if (category != Category::host) sum.bytes += use.bytes;
    }
    all.push_back(sum);
  }
  writer_->set_memory(categories);
  writer_->set_rank_memory(all);
}

void RunLog::write_rank(std::int64_t step, const RankReport& rank) {
  const Program& program = experiment_.plan->program_of(rank.rank);
  const RankPrediction& predicted =
      predicted_.at(experiment_.which_plan(step)).at(static_cast<std::size_t>(rank.rank));
  for (const auto& [key, use] : rank.communication) {
    CommunicationRow row;
    row.step = step;
    row.rank = rank.rank;
    row.axis = key.axis;
    row.op = key.op;
    row.phase = key.phase;
    row.calls = use.calls;
    row.bytes = use.bytes;
    row.seconds = use.seconds;
    const auto forecast = predicted.communication.find(key);
    if (forecast != predicted.communication.end()) row.predicted_bytes = forecast->second.bytes;
    for (const CommunicationForecast& c : prediction_.communication) {
      if (c.key == key) row.predicted_seconds = c.seconds;
    }
    writer_->add(row);
  }
  for (const auto& [key, use] : rank.work) {
    writer_->add(WorkRow{step, rank.rank, program.stage, key.op, key.piece, use.calls, use.flops,
                         use.seconds});
  }
}

// Times count from the moment at which the step's first rank began, so that rows of several ranks
// compare.
void RunLog::write_actions(const StepReport& report) {
  double began = std::numeric_limits<double>::infinity();
  for (const RankReport& rank : report.ranks) began = std::min(began, rank.began);
  for (const RankReport& rank : report.ranks) {
    const Program& program = experiment_.plan_at(report.step).program_of(rank.rank);
    for (const RunTime& run : rank.runs) {
      const Segment& segment = program.segments.at(static_cast<std::size_t>(run.segment));
      if (!is_shown(segment)) continue;
      ActionRow row;
      row.step = report.step;
      row.rank = rank.rank;
      row.stage = program.stage;
      if (segment.kind == SegmentKind::braid) {
        row.chunk = program.chunk_of(segment.lanes.at(static_cast<std::size_t>(run.lane)).vstage);
      } else if (segment.kind != SegmentKind::finish) {
        row.chunk = program.chunk_of(segment.vstage);
      }
      row.action = action_name(segment, run.lane);
      row.microbatch = run.microbatch;
      row.start = rank.began - began + run.start;
      row.end = rank.began - began + run.end;
      writer_->add(row);
    }
  }
}

// Times count as in write_actions().
void RunLog::write_trace(const StepReport& report) {
  double began = std::numeric_limits<double>::infinity();
  for (const RankReport& rank : report.ranks) began = std::min(began, rank.began);
  for (const RankReport& rank : report.ranks) {
    if (rank.instructions.empty()) continue;
    const double offset = rank.began - began;
    const TraceRows rows(experiment_.plan_at(report.step), rank.rank);
    // An account times all instructions, but the trace keeps only the first ones.
    const std::size_t kept = std::min(rank.instructions.size(), most_instructions_recorded);
    const auto first = rank.instructions.begin();
    for (const SpanRow& row :
         rows.measured(report.step, {first, first + static_cast<std::ptrdiff_t>(kept)}, offset))
      writer_->add(row);
    std::array<std::int64_t, category_count> before{};
    for (const MemoryMoment& moment : std::span(rank.moments).first(kept)) {
      if (moment.bytes == before) continue;
      before = moment.bytes;
      writer_->add(memory_row(report.step, rank.rank, offset + moment.time, moment.bytes));
    }
    if (rank.instructions.size() >= most_instructions_recorded) {
      event(report.step, rank.rank, "trace",
            fmt::format("the trace has its first {} instructions", most_instructions_recorded));
    }
  }
}

void RunLog::write_account(const StepReport& report) {
  if (alone_ == nullptr || report.ranks.front().account.seconds == 0) return;
  if (!bandwidths_written_) {
    for (const BandwidthRow& row : alone_->bandwidths()) writer_->add(row);
    bandwidths_written_ = true;
  }
  const bool copies_known =
      std::any_of(report.ranks.begin(), report.ranks.end(), [](const RankReport& rank) {
        return std::any_of(rank.instructions.begin(), rank.instructions.end(),
                           [](const InstructionTime& time) { return time.parts.copied > 0; });
      });
  for (const RankReport& rank : report.ranks) {
    AccountRows rows(experiment_.plan_at(report.step), rank, *alone_, copies_known);
    for (const AccountRow& row : rows.rows(report.step)) writer_->add(row);
  }
  if (steps_written_ == 0) return;
  for (const auto& [what, seconds] : beside_) {
    AccountRow row{report.step, -1, -1, "beside", what, "", steps_written_};
    row.seconds = seconds / static_cast<double>(steps_written_);
    row.limit_seconds = 0;
    writer_->add(row);
  }
}

void RunLog::add_series(std::int64_t step,
                        const std::vector<std::pair<std::string, double>>& metrics) {
  if (writer_) writer_->add_series(step, metrics);
}

void RunLog::event(std::int64_t step, int rank, const std::string& kind,
                   const std::string& message) {
  if (writer_) writer_->add(EventRow{0, step, rank, kind, message});
}

void RunLog::set_result(const Json& result) {
  if (!writer_) return;
  Json kept = result;
  // Leaves out what the file has elsewhere, and what its reader says itself.
  for (const char* name :
       {"kind", "status", "reason", "losses", "grad_norms", "predicted", "log", "name", "hash",
        "hash_without_seed", "seed", "experiment", "plan_hash", "steps"})
    kept.erase(name);
  writer_->set_result(json_text(kept));
}

void RunLog::flush_if_due() {
  if (writer_) writer_->flush_if_due();
}

void RunLog::flush() {
  if (writer_) writer_->flush();
}

void RunLog::finish(RunStatus status, const std::string& reason) {
  if (writer_) writer_->finish(status, reason);
}

std::string RunLog::end_badly(RunStatus status, const std::string& reason) {
  return writer_ ? writer_->end_badly(status, reason) : "";
}

}  // namespace mw
