// Turns the times of instructions into rows that say which op computed and which transfer was
// under way.
#include "app/trace_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/forecast.h"
#include "meshwright/engine/program_facts.h"

namespace mw {
namespace {

// Seconds of an instruction with a row. Views and aliases take less, and would bury the others.
constexpr double shortest_own = 2e-7;

}  // namespace

TraceRows::TraceRows(const Plan& plan, int rank, const DeviceScratch* scratch)
    : program_(plan.program_of(rank)),
      rank_(rank),
      scratch_(scratch),
      views_(program_, program_.mesh.coordinates(rank)) {
  for (const Segment& segment : program_.segments) {
    for (const Instruction& i : segment.code) {
      if (i.begins_transfer()) starts_.emplace(i.pending, &i);
      if (!i.ring) continue;
      for (Instruction& inner : ring_kinds(program_, i)) {
        if (!inner.begins_transfer() || starts_.contains(inner.pending)) continue;
        ring_starts_.push_back(std::move(inner));
        starts_.emplace(ring_starts_.back().pending, &ring_starts_.back());
      }
    }
  }
}

const Instruction& TraceRows::at(const InstructionTime& time) const {
  const Instruction& i = program_.segments.at(static_cast<std::size_t>(time.segment))
                             .code.at(static_cast<std::size_t>(time.index));
  if (time.inner < 0) return i;
  const auto [known, missing] = rings_.try_emplace(&i);
  if (missing) known->second = ring_steps(program_, i);
  return known->second.at(static_cast<std::size_t>(time.inner));
}

bool TraceRows::name_transfer(const Instruction& instruction, int microbatch, SpanRow& row) const {
  const Footprint made = footprint(views_.of(microbatch), instruction, FootprintParts::work);
  if (made.transfers.empty()) return false;
  const CommunicationKey key = key_of(made.transfers.front(), program_);
  row.axis = key.axis;
  row.name = key.op;
  row.bytes = 0;
  for (const Transfer& transfer : made.transfers) row.bytes += transfer.wire;
  return true;
}

SpanRow TraceRows::row(const InstructionTime& time) const {
  const Instruction& i = at(time);
  SpanRow row;
  row.step = -1;
  row.rank = rank_;
  row.stage = program_.stage;
  row.kind = "op";
  row.name = name_of(i.code);
  if (i.computes()) {
    row.name = i.update == Update::none
                   ? fmt::format("{} {}", program_.graph->ops()[i.op].kind(), name_of(i.piece))
                   : "update";
  }
  row.phase = i.phase;
  row.label = i.label;
  row.microbatch = time.microbatch;
  row.start = time.start;
  row.end = time.end;
  return row;
}

// The segment in which sums begin is no action of the step (is_shown), and what it takes is
// negligible.
bool TraceRows::begins(const InstructionTime& time) const {
  return program_.segments.at(static_cast<std::size_t>(time.segment)).kind == SegmentKind::begin;
}

std::vector<SpanRow> TraceRows::measured(std::int64_t step,
                                         const std::vector<InstructionTime>& times,
                                         double offset) const {
  std::vector<SpanRow> rows;
  // Transfers that were begun and not awaited yet, by pending and microbatch. Between persistent
  // slots the microbatch is -1, as in the executor.
  struct Begun {
    double start;
    std::string phase;
  };
  std::map<std::pair<int, int>, Begun> underway;
  for (InstructionTime time : times) {
    if (begins(time)) continue;
    time.start += offset;
    time.end += offset;
    const Instruction& i = at(time);
    SpanRow own = row(time);
    own.step = step;
    const std::pair key(i.pending, between_lasting(program_, i) ? -1 : time.microbatch);
    if (i.begins_transfer()) {
      underway[key] = {time.start, i.phase};
      own.name = "start";
      SpanRow sent = own;
      if (name_transfer(i, time.microbatch, sent)) {
        own.axis = sent.axis;
        own.name = "start " + sent.name;
      }
    } else if (i.awaits_transfer()) {
      own.kind = "wait";
      const auto start = starts_.find(i.pending);
      SpanRow sent = own;
      if (start != starts_.end() && name_transfer(*start->second, time.microbatch, sent)) {
        own.axis = sent.axis;
        own.name = sent.name;
        const auto begun = underway.find(key);
        if (begun != underway.end()) {
          sent.kind = "transfer";
          sent.start = begun->second.start;
          sent.phase = begun->second.phase;
          rows.push_back(sent);
        }
      }
      underway.erase(key);
    } else {
      SpanRow sent = own;
      if (name_transfer(i, time.microbatch, sent)) {  // a transfer that is awaited at once
        sent.kind = "transfer";
        rows.push_back(sent);
      }
    }
    const bool op = i.runs_op();
    const bool kept = op ? views_.of(time.microbatch).runs(i) : own.end - own.start >= shortest_own;
    if (kept) rows.push_back(std::move(own));
  }
  return rows;
}

std::vector<SpanRow> TraceRows::predicted(const std::vector<InstructionTime>& times) const {
  std::vector<SpanRow> rows;
  for (const InstructionTime& time : times) {
    if (begins(time)) continue;
    SpanRow made = row(time);
    const Instruction* sends = &at(time);
    if (sends->awaits_transfer()) {
      const auto start = starts_.find(sends->pending);
      if (start != starts_.end()) sends = start->second;
    }
    using Of = InstructionTime::Kind;
    if (time.kind == Of::copy || time.kind == Of::copy_wait) {
      made.kind = time.kind == Of::copy ? "transfer" : "wait";
      made.name = "copy";
      made.axis = "host";
      made.bytes =
          footprint(views_.of(time.microbatch), at(time), FootprintParts::work).host_copy.bytes;
    } else if (time.kind == Of::on_host) {
      made.axis = "host";
    } else if (time.kind != Of::own) {
      made.kind = time.kind == Of::wait ? "wait" : "transfer";
      name_transfer(*sends, time.microbatch, made);
    }
    rows.push_back(std::move(made));
  }
  return rows;
}

std::vector<SpanMemoryRow> TraceRows::predicted_memory(
    const std::vector<InstructionTime>& times) const {
  std::map<std::tuple<int, int, int>, double> ends;  // by segment, index and microbatch
  for (const InstructionTime& time : times) {
    using Of = InstructionTime::Kind;
    if (time.kind == Of::transfer || time.kind == Of::copy || time.kind == Of::on_host) continue;
    double& end = ends[{time.segment, time.index, time.microbatch}];
    end = std::max(end, time.end);
  }
  const auto held =
      memory_after_each(RankView(program_, program_.mesh.coordinates(rank_), 0, scratch_));
  std::vector<SpanMemoryRow> rows;
  std::size_t next = 0;
  double now = 0;
  for (const SegmentRun& run : program_.timeline) {
    const auto& code = program_.segments[static_cast<std::size_t>(run.segment)].code;
    for (std::size_t index = 0; index < code.size(); ++index, ++next) {
      // An instruction that takes no time has no end of its own: it ends with the one before it.
      const int microbatch = microbatch_of(run, code[index].lane);
      const auto end = ends.find({run.segment, static_cast<int>(index), microbatch});
      if (end != ends.end()) now = std::max(now, end->second);
      if (next > 0 && held[next] == held[next - 1]) continue;
      rows.push_back(memory_row(-1, rank_, now, held[next]));
    }
  }
  return rows;
}

SpanMemoryRow memory_row(std::int64_t step, int rank, double time,
                         const std::array<std::int64_t, category_count>& held) {
  const auto of = [&held](Category category) { return held[static_cast<std::size_t>(category)]; };
  return {step,
          rank,
          time,
          of(Category::parameters),
          of(Category::gradients),
          of(Category::optimizer),
          of(Category::activations),
          of(Category::buffers),
          of(Category::host)};
}

}  // namespace mw
