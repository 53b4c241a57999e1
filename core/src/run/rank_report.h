// A rank's report of a step as bytes, for the process of rank 0 (engine/pack.h).
#pragma once

#include "meshwright/engine/pack.h"
#include "meshwright/engine/run.h"

namespace mw {

// Structs of numbers alone are packed as their bytes.
template <>
inline constexpr bool packs_as_bits<MemoryUse> = true;
template <>
inline constexpr bool packs_as_bits<CommunicationUse> = true;
template <>
inline constexpr bool packs_as_bits<WorkUse> = true;
template <>
inline constexpr bool packs_as_bits<RunTime> = true;
template <>
inline constexpr bool packs_as_bits<InstructionTime> = true;
template <>
inline constexpr bool packs_as_bits<MemoryMoment> = true;

template <class Pack>
void members(Pack& pack, CommunicationKey& key) {
  pack(key.axis, key.op, key.phase);
}
template <class Pack>
void members(Pack& pack, WorkKey& key) {
  pack(key.op, key.piece);
}
template <class Pack>
void members(Pack& pack, StepAccount::Observed& observed) {
  pack(observed.name, observed.seconds, observed.apart);
}
template <class Pack>
void members(Pack& pack, StepAccount& account) {
  pack(account.seconds, account.step, account.watched, account.tracing, account.gathered,
       account.observed);
}
template <class Pack>
void members(Pack& pack, RankReport& report) {
  pack(report.rank, report.memory, report.peak_bytes, report.peak_without_scratch,
       report.communication, report.rows, report.rows_share, report.chosen, report.work,
       report.began, report.runs, report.instructions, report.moments, report.account);
}
// What one process tells the process of rank 0 about a step.
template <class Pack>
void members(Pack& pack, StepReport& report) {
  pack(report.ranks, report.cpu_seconds, report.lr, report.loss_scale);
}

}  // namespace mw
