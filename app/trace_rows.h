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
  // All rows are of one rank. The plan outlives this. `scratch`: says what kernels allocate on a
  // device; null: the kernels are this machine's.
  TraceRows(const Plan& plan, int rank, const DeviceScratch* scratch = nullptr);

  // Rows of instructions that ran, as the executor timed them: a transfer is under way from its
  // start to the end of the wait for it. `offset` is added to all times.
  std::vector<SpanRow> measured(std::int64_t step, const std::vector<InstructionTime>& times,
                                double offset) const;
  // Rows of instructions with their predicted times.
  std::vector<SpanRow> predicted(const std::vector<InstructionTime>& times) const;
  // What the rank is predicted to hold after each instruction; rows where it changes.
  std::vector<SpanMemoryRow> predicted_memory(const std::vector<InstructionTime>& times) const;

 private:
  // Whether the instruction is of the segment before the step's first action.
  bool begins(const InstructionTime& time) const;
  SpanRow row(const InstructionTime& time) const;
  const Instruction& at(const InstructionTime& time) const;
  // Fills in axis, name and bytes of what the instruction sends, but not the phase, as one transfer
  // may be begun in several phases. Returns false if it sends nothing.
  bool name_transfer(const Instruction& instruction, int microbatch, SpanRow& row) const;

  const Program& program_;
  const int rank_;
  const DeviceScratch* scratch_;
  const RankViews views_;
  std::map<int, const Instruction*> starts_;  // by pending, the first instruction that begins it
  // Written-out instructions of rings: those that begin transfers, and all of some rings.
  std::deque<Instruction> ring_starts_;
  mutable std::map<const Instruction*, std::vector<Instruction>> rings_;
};

// What a rank holds at a moment, by category, as a row.
SpanMemoryRow memory_row(std::int64_t step, int rank, double time,
                         const std::array<std::int64_t, category_count>& held);

}  // namespace mw
