// A rank's report of a step as bytes, for the process of rank 0 (base/pack.h).
#pragma once

#include "meshwright/engine/pack.h"
#include "meshwright/engine/run.h"

namespace mw {

template <class Pack>
void members(Pack& pack, MemoryUse& use) {
  pack(use.bytes, use.peak);
}
template <class Pack>
void members(Pack& pack, CommunicationKey& key) {
  pack(key.axis, key.op, key.phase);
}
template <class Pack>
void members(Pack& pack, CommunicationUse& use) {
  pack(use.calls, use.bytes, use.seconds);
}
template <class Pack>
void members(Pack& pack, WorkKey& key) {
  pack(key.op, key.piece);
}
template <class Pack>
void members(Pack& pack, WorkUse& use) {
  pack(use.calls, use.flops, use.seconds);
}
template <class Pack>
void members(Pack& pack, RunTime& time) {
  pack(time.segment, time.microbatch, time.start, time.end);
}
template <class Pack>
void members(Pack& pack, InstructionParts& parts) {
  pack(parts.kernel, parts.sent, parts.copied, parts.watched, parts.away);
}
template <class Pack>
void members(Pack& pack, InstructionTime& time) {
  pack(time.kind, time.segment, time.index, time.microbatch, time.start, time.end, time.inner,
       time.parts);
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
void members(Pack& pack, MemoryMoment& moment) {
  pack(moment.time, moment.bytes);
}
template <class Pack>
void members(Pack& pack, RankReport& report) {
  pack(report.rank, report.memory, report.peak_bytes, report.communication, report.rows,
       report.rows_share, report.chosen, report.work, report.began, report.runs,
       report.instructions, report.moments, report.account);
}

}  // namespace mw
