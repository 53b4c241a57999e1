// Names what the instructions of a traced step did: rows of the run file's tables /trace,
// /predicted_trace and /predicted_trace_memory.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/instruction_time.h"
#include "record/rows.h"

namespace mw {

class TraceRows {
 public:
  // The rows are one rank's. The plan outlives this. `scratch`: says what kernels allocate
  // on a device; null: the kernels are this machine's.
  TraceRows(const Plan& plan, int rank, const DeviceScratch* scratch = nullptr);

  // Instructions that ran, as the executor timed them: a transfer is under way from its start to
  // the end of the wait for it. `offset` is added to all times.
  std::vector<SpanRow> measured(std::int64_t step, const std::vector<InstructionTime>& times,
                                double offset) const;
  // Instructions as they are priced.
  std::vector<SpanRow> predicted(const std::vector<InstructionTime>& times) const;
  // What the rank is predicted to hold after each of them; rows where it changes.
  std::vector<SpanMemoryRow> predicted_memory(const std::vector<InstructionTime>& times) const;

 private:
  // Whether it is of the segment before the step's first action.
  bool begins(const InstructionTime& time) const;
  SpanRow row(const InstructionTime& time) const;
  const Instruction& at(const InstructionTime& time) const;
  // Names what the instruction sends, but for its phase: starts of one pending stand in several.
  // False if it sends nothing.
  bool name_transfer(const Instruction& instruction, int microbatch, SpanRow& row) const;

  const Program& program_;
  const int rank_;
  const DeviceScratch* scratch_;
  const RankViews views_;
  std::map<int, const Instruction*> starts_;  // by pending, the first of each
  // Those of rings, and rings that were asked for, written out.
  std::deque<Instruction> ring_starts_;
  mutable std::map<const Instruction*, std::vector<Instruction>> rings_;
};

// What a rank holds at a moment, by category, as a row.
SpanMemoryRow memory_row(std::int64_t step, int rank, double time,
                         const std::array<std::int64_t, category_count>& held);

}  // namespace mw
