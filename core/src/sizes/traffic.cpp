#include "sizes/traffic.h"

#include <string_view>

#include "sizes/matrices.h"

namespace mw {
namespace {

// The collective that an instruction without a hook begins; no call (ways 0) if it begins none.
Call call_of(const RankView& rank, const Instruction& instruction) {
  const Program& program = rank.program();
  Call call;
  call.ways = 0;
  switch (instruction.code) {
    case Code::start: {
      const MoveSize size = rank.size_of(instruction);
      call.op = collective_of(instruction.move.kind);
      call.set = {instruction.move.atoms, {}, !instruction.move.lands.empty()};
      call.wire = size.wire;
      call.payload = size.payload;
      break;
    }
    case Code::reduce: {
      const Bucket& bucket = program.buckets[instruction.bucket];
      call.payload = rank.flat(instruction.bucket).summed;
      if (bucket.parts.empty()) {
        call.set = program.reduction(bucket);
      } else {
        call.op = Collective::reduce_scatter;
        call.set = {bucket.parts, {}};
        call.wire = wire_bytes(call.op, call.payload, program.ways(call.set));
      }
      break;
    }
    case Code::reduce_parts:
      call.set = program.part_reduction(program.buckets[instruction.bucket]);
      call.payload = rank.flat(instruction.bucket).part_summed;
      break;
    case Code::gather:
      call.op = Collective::all_gather;
      call.set = {program.buckets[instruction.bucket].parts, {}};
      call.payload = rank.flat(instruction.bucket).parameters;
      call.wire = wire_bytes(call.op, call.payload, program.ways(call.set));
      break;
    case Code::direct:
      call.payload = direct_size(rank, instruction).payload;
      if (call.payload == 0) return call;
      call.op = Collective::all_gather;
      call.set = {program.buckets[instruction.bucket].parts, {}};
      call.wire = wire_bytes(call.op, call.payload, program.ways(call.set));
      break;
    case Code::totals:
      if (program.mesh.size() == 1) return call;
      call.set = {world_atoms(program.mesh), {}};
      call.payload = 3 * static_cast<std::int64_t>(sizeof(double));
      break;
    default:
      return call;
  }
  call.ways = program.ways(call.set);
  if (call.op == Collective::all_reduce) call.wire = wire_bytes(call.op, call.payload, call.ways);
  call.key = {program.name_of(call.set), name_of(call.op), instruction.phase};
  return call;
}

}  // namespace

std::vector<Call> calls_of(const RankView& rank, const Instruction& instruction) {
  const Program& program = rank.program();
  const bool starts = instruction.code == Code::reduce;
  if ((starts || instruction.code == Code::reduced) && program.buckets[instruction.bucket].hook) {
    const ReductionCost cost = rank.reduction(instruction.bucket);
    std::vector<Call> calls;
    for (const ReductionCost::Call& each : starts ? cost.start.calls : cost.finish.calls) {
      Call call;
      call.op = each.op;
      call.set = program.reduction(program.buckets[instruction.bucket]);
      call.ways = program.ways(call.set);
      call.payload = each.bytes;
      call.wire = wire_bytes(call.op, each.bytes, call.ways);
      call.key = {program.name_of(call.set), name_of(call.op), instruction.phase};
      calls.push_back(std::move(call));
    }
    return calls;
  }
  Call call = call_of(rank, instruction);
  if (call.ways == 0) return {};
  if (instruction.code == Code::start && instruction.move.kind == Move::Kind::shift) {
    Call back = call;  // what comes in from the other side: no bytes of this rank's
    back.op = Collective::recv;
    back.wire = back.payload = 0;
    back.key.op = name_of(Collective::recv);
    return {std::move(call), std::move(back)};
  }
  const Sparse& sparse = program.graph->sparse;
  if (instruction.code == Code::start && instruction.phase == std::string_view("forward") &&
      !instruction.move.lands.empty() && instruction.move.to == sparse.dims.front()) {
    Call counts = call;  // how many rows of each group are to come
    const Slot& source = program.slots[instruction.inputs[0]];
    const Dim group = sparse.dims.front();
    counts.payload =
        8 *
        local_range(group, program.graph->size(group), source.layout, program.mesh, rank.at()).size;
    counts.wire = counts.payload * (call.ways - 1) / call.ways;
    return {std::move(counts), std::move(call)};
  }
  return {std::move(call)};
}

Traffic forecast_traffic(const RankView& rank) {
  const Program& program = rank.program();
  const RankViews ranks(rank);
  std::map<std::pair<int, int>, std::int64_t> runs;  // of segments, by kind of microbatch
  for (const SegmentRun& action : program.timeline)
    ++runs[{action.segment, ranks.kind(action.microbatch)}];
  Traffic traffic;
  for (const auto& [what, times] : runs) {
    for (const Instruction& i : program.segments[what.first].code) {
      for (const Call& call : calls_of(ranks.of_kind(what.second), i)) {
        CommunicationUse& use = traffic[call.key];
        use.calls += times;
        use.bytes += times * call.wire;
      }
    }
  }
  return traffic;
}

}  // namespace mw
