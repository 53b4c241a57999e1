// Prices one rank's instructions in seconds by their footprints.
#include "predict/instruction_prices.h"

#include <algorithm>

#include "meshwright/engine/program_facts.h"

namespace mw {
namespace {

// Whether the host itself updates parameters of the program, or casts those that it keeps.
bool works_on_host(const Program& program) {
  return std::any_of(program.buckets.begin(), program.buckets.end(),
                     [](const Bucket& bucket) { return bucket.offload != Offload::nothing; });
}

}  // namespace

InstructionPrices::InstructionPrices(const RankView& rank, const Machine& machine,
                                     const HostLanes& lanes, int ranks, int threads)
    : ranks_(rank),
      rank_(&ranks_.of_kind(0)),
      program_(rank.program()),
      lanes_(lanes),
      keys_(program_),
      machine_(machine.of_rank(rank, ranks, threads)),
      overlaps_(machine.overlaps()),
      host_works_(overlaps_ && works_on_host(program_)) {}

InstructionPrices::Kinds InstructionPrices::kinds(const SegmentRun& run) const {
  Kinds kinds;
  for (int lane = 0; lane < lanes_of(run); ++lane)
    kinds.push_back(ranks_.kind(microbatch_of(run, lane)));
  return kinds;
}

const PricedSegment& InstructionPrices::segment(int segment, const Kinds& kinds) {
  const auto [known, missing] = priced_.try_emplace({segment, kinds});
  if (missing) known->second = price(program_.segments[segment], kinds);
  return known->second;
}

double InstructionPrices::seconds(const Instruction& i) {
  rank_ = &ranks_.of_kind(0);
  double seconds = 0;
  const auto add = [&](const PricedInstruction& p) {
    seconds += p.before + p.on_host + p.copy.seconds;
    for (const TimedTransfer& transfer : p.transfers) seconds += transfer.cost.seconds;
  };
  if (!i.ring) {
    add(price(i));
  } else {
    for (const PricedInstruction& p : rings_[static_cast<std::size_t>(ring_of(i))].code) add(p);
  }
  return seconds;
}

double InstructionPrices::transfer_seconds(const Instruction& i, int kind) const {
  const RankView& rank = ranks_.of_kind(kind);
  const Footprint made = footprint(rank, i, FootprintParts::work);
  return machine_->transfer(rank, i, made.transfers.at(0)).seconds;
}

int InstructionPrices::key_of(const Instruction& start) {
  const Footprint made = footprint(ranks_.of_kind(0), start, FootprintParts::work);
  return static_cast<int>(keys_.number(made.transfers.at(0)));
}

// The prices of the segment that `segment` is a copy of, if that is priced already: a copy
// ("X.last") differs from its original by its reductions alone.
const PricedSegment* InstructionPrices::priced_original(const Segment& segment,
                                                        const Kinds& kinds) const {
  if (segment.copy_of < 0) return nullptr;
  const auto found = priced_.find({segment.copy_of, kinds});
  return found == priced_.end() ? nullptr : &found->second;
}

PricedSegment InstructionPrices::price(const Segment& segment, const Kinds& kinds) {
  PricedSegment priced;
  priced.code.reserve(segment.code.size());
  const PricedSegment* original = priced_original(segment, kinds);
  const auto* from = original == nullptr ? nullptr : &program_.segments[segment.copy_of].code;
  std::size_t next = 0;  // index in the original's code
  for (const Instruction& i : segment.code) {
    rank_ = &ranks_.of_kind(kinds[static_cast<std::size_t>(i.lane)]);
    const bool same = from != nullptr && next < from->size() && (*from)[next].code == i.code &&
                      (*from)[next].op == i.op && (*from)[next].piece == i.piece &&
                      (*from)[next].bucket == i.bucket && (*from)[next].pending == i.pending &&
                      (*from)[next].move.stream == i.move.stream;
    if (i.ring) {
      const int number = ring_of(i);
      priced.host += rings_[number].host;
      priced.rings.emplace_back(priced.code.size(), number);
      priced.code.emplace_back();
    } else {
      priced.code.push_back(same ? original->code[next] : price(i));
      priced.host += priced.code.back().host;
    }
    priced.code.back().lane = i.lane;
    priced.code.back().copied = lanes_.awaits(i);
    priced.code.back().follows = lanes_.follows(i);
    priced.on_host =
        priced.on_host || priced.code.back().on_host > 0 || priced.code.back().host_waits;
    if (same) ++next;
  }
  priced.beside = beside(segment, kinds);
  return priced;
}

// Work of a run beside its instructions; of a braid, the sum over its lanes.
WorkTime InstructionPrices::beside(const Segment& segment, const Kinds& kinds) {
  if (segment.kind != SegmentKind::braid)
    return machine_->beside(ranks_.of_kind(kinds.front()), segment);
  WorkTime all;
  for (std::size_t lane = 0; lane < segment.lanes.size(); ++lane) {
    Segment own;
    own.kind = segment.lanes[lane].kind;
    own.vstage = segment.lanes[lane].vstage;
    for (const Instruction& i : segment.code)
      if (i.lane == static_cast<int>(lane)) own.code.push_back(i);
    const WorkTime time = machine_->beside(ranks_.of_kind(kinds[lane]), own);
    all.seconds += time.seconds;
    all.host += time.host;
  }
  return all;
}

PricedInstruction InstructionPrices::price(const Instruction& i) {
  Footprint& made = made_;
  footprint(*rank_, i, FootprintParts::work, made);
  PricedInstruction p;
  p.of_step = between_lasting(program_, i);
  p.awaits = made.awaits;
  p.begins = made.begins;
  p.between_stages = made.between_stages;
  p.executed = made.executed();
  const WorkTime work = machine_->work(*rank_, i, made);
  if (overlaps_ && made.on_host >= 0) {
    p.on_host = work.seconds;
    p.there.assign(i.outputs.begin(), i.outputs.end());
    p.there.push_back(made.on_host);
  } else {
    p.before = work.seconds;
  }
  p.host_waits = host_works_ && (i.makes_totals() || i.move.brings_counts);
  p.host = work.host;
  if (made.host_copy.bytes > 0) {
    p.copy = {made.host_copy, machine_->host_copy(static_cast<double>(made.host_copy.bytes))};
  }
  p.transfers.reserve(made.transfers.size());
  for (const Transfer& transfer : made.transfers) {
    const auto group = groups_.try_emplace(transfer.set, static_cast<int>(groups_.size())).first;
    p.transfers.push_back({machine_->transfer(*rank_, i, transfer),
                           static_cast<int>(keys_.number(transfer)),
                           i.move.stream < 0 ? group->second : -2 - i.move.stream, i.move.stream});
  }
  return p;
}

// The number of the ring that is priced like this one.
int InstructionPrices::ring_of(const Instruction& ring) {
  std::vector<int> key{rank_->like(ring.op), static_cast<int>(ring.piece)};
  for (const Rotating& r : *ring.ring) {
    key.push_back((r.shards.empty() ? 0 : 1) + (r.shares.empty() ? 0 : 2));
    if (!r.shares.empty()) key.push_back(ring.accumulate[r.input] ? 1 : 0);
  }
  const auto [known, missing] = ring_numbers_.try_emplace({rank_, ring.phase, std::move(key)}, 0);
  if (!missing) return known->second;
  known->second = static_cast<int>(rings_.size());
  rings_.push_back(price_ring(ring));
  return known->second;
}

PricedRing InstructionPrices::price_ring(const Instruction& ring) {
  PricedRing priced;
  std::vector<Instruction> code = ring_kinds(program_, ring);
  for (std::size_t begin = 0, end = 0; begin < code.size(); begin = end) {
    const int first = code[begin].ring_step, alike = code[begin].ring_alike;
    while (end < code.size() && code[end].ring_step == first) ++end;
    std::vector<PricedInstruction> step;
    for (std::size_t n = begin; n < end; ++n) {
      code[n].ring_alike = 0;
      step.push_back(price(code[n]));
    }
    for (int k = 0; k <= alike; ++k) {
      for (std::size_t n = begin; n < end; ++n) {
        Instruction& i = code[n];
        if (k > 0 && i.computes()) {
          i.ring_step = first + k;
          priced.code.push_back(price(i));
        } else {
          priced.code.push_back(step[n - begin]);
        }
        priced.host += priced.code.back().host;
      }
    }
  }
  return priced;
}

}  // namespace mw
