// Counts the floating-point operations of programs, and the transfers of their footprints.
#include "predict/step_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/op_cost.h"
#include "meshwright/engine/program_facts.h"

namespace mw {

namespace {

// Whether the op sums products over a dim: a dim that no result has, and real operands of different
// dims have.
bool contracts(const Graph& graph, const Op& op) {
  Dims made;
  std::map<Dim, std::set<Dims>> read;
  for (const Dims& dims : op.output_dims) made.insert(made.end(), dims.begin(), dims.end());
  for (const Use& use : op.inputs) {
    if (graph.value(use.value).scalar != Scalar::real) continue;
    for (const Dim dim : use.dims) read[dim].insert(use.dims);
  }
  return std::ranges::all_of(made, [&](Dim dim) { return read.contains(dim); }) &&
         std::ranges::any_of(read, [&](const auto& operands) {
           return operands.second.size() > 1 && !contains(made, operands.first);
         });
}

// How many ranks run each part of the instruction's op.
double repeats(const Program& program, const Instruction& i) {
  double ranks = 1;
  const bool backward = i.piece != Piece::forward;
  for (std::size_t a = 0; a < program.mesh.atoms().size(); ++a) {
    if (program.cut[i.op][a].is_shard() || static_cast<int>(a) == program.stage_atom) continue;
    // Work for parameters' gradients alone may be left to the first rank.
    bool everyone = !backward;
    for (std::size_t k = 0; backward && k < i.grad_inputs.size(); ++k) {
      if (i.grad_inputs[k] < 0) continue;
      const auto& first = i.contributing[k];
      everyone = everyone || !program.slots[i.grad_inputs[k]].persistent ||
                 std::find(first.begin(), first.end(), static_cast<int>(a)) == first.end();
    }
    if (everyone) ranks *= program.mesh.atoms()[a].ways;
  }
  return ranks;
}

using Counted = std::array<bool, 4>;  // whether an op's piece was counted, by Piece

void count(const Program& program, double documents, std::vector<Counted>& seen, Flops& flops) {
  std::map<std::pair<int, int>, double> runs;  // how often each segment and lane runs
  // A microbatch's sequences over those of the largest one, as flops grow with sequences.
  const auto share = [&](int microbatch) {
    return static_cast<double>(program.batch_of(microbatch)) /
           static_cast<double>(program.batch_of(-1));
  };
  seen.resize(std::max(seen.size(), program.graph->ops().size()), Counted{});
  LikeOps like(program);
  // Flops of the whole op, by like op and piece.
  std::vector<std::array<std::optional<double>, 4>> known;
  const auto flops_of = [&](int op, Piece piece) {
    const auto number = static_cast<std::size_t>(like.number(op));
    if (known.size() <= number) known.resize(number + 1);
    auto& own = known[number][static_cast<std::size_t>(piece)];
    if (own) return *own;
    const Op& what = program.graph->ops()[op];
    const LocalDims dims = whole_dims(*program.graph, what);
    own = cost_of(what, piece, dims, bytes_of(program.dtype)).flops;
    if (what.op_class() == OpClass::attention && reads(*program.graph, what, DataValue::starts))
      *own *= documents;
    return *own;
  };
  double microbatches = 0;
  for (int m = 0; m < program.microbatches; ++m) microbatches += share(m);
  for (const SegmentRun& run : program.timeline) {
    for (int lane = 0; lane < lanes_of(run); ++lane)
      runs[{run.segment, lane}] += share(microbatch_of(run, lane));
  }
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    for (const Instruction& i : program.segments[s].code) {
      const double times = runs[{static_cast<int>(s), i.lane}];
      if (times == 0) continue;
      if (i.op < 0 || i.part() > 0) continue;  // part 0 stands for the whole op
      const double own = flops_of(i.op, i.piece);
      if (own == 0) continue;
      flops.hardware += times * own * repeats(program, i);
      bool& counted = seen[i.op][static_cast<std::size_t>(i.piece)];
      if (!counted && program.graph->ops()[i.op].is_of_model()) flops.model += microbatches * own;
      counted = true;
    }
  }
}

}  // namespace

LocalDims whole_dims(const Graph& graph, const Op& op) {
  LocalDims dims;
  for (Dim dim : op.space()) dims.set({dim, 0, graph.size(dim), graph.size(dim), {}});
  dims.set_sparse(graph.sparse);
  return dims;
}

std::vector<std::string> undeclared_work(const Graph& graph) {
  std::vector<std::string> all;
  std::set<std::string> seen;
  for (const Op& op : graph.ops()) {
    if (!seen.insert(op.kind()).second) continue;
    const Cost declared = op.type->cost(op, Piece::forward, whole_dims(graph, op), 4);
    if (declared.flops > 0) continue;
    const OpClass as = op.op_class();
    if (as == OpClass::attention) {
      all.push_back(
          fmt::format("the op {} declares no FLOPs: they are counted from its shapes, as "
                      "if each query saw all keys",
                      op.kind()));
    } else if ((as == OpClass::other || as == OpClass::elementwise || as == OpClass::norm) &&
               contracts(graph, op)) {
      all.push_back(fmt::format(
          "the op {} declares no FLOPs, and sums over dims of several operands: {}", op.kind(),
          declared.bytes > 0 ? "it is priced by the bytes that it moves alone"
                             : "it is priced as free"));
    }
  }
  return all;
}

Flops count_flops(const std::vector<Program>& stages, double documents) {
  Flops flops;
  std::vector<Counted> seen;  // by op
  for (const Program& program : stages) count(program, documents, seen, flops);
  return flops;
}

std::map<std::tuple<int, int, int>, std::int64_t> segment_runs(const RankViews& ranks,
                                                               const Program& program) {
  std::map<std::tuple<int, int, int>, std::int64_t> runs;
  for (const SegmentRun& run : program.timeline) {
    for (int lane = 0; lane < lanes_of(run); ++lane)
      ++runs[{run.segment, lane, ranks.kind(microbatch_of(run, lane))}];
  }
  return runs;
}

Traffic forecast_traffic(const RankView& rank) {
  const Program& program = rank.program();
  const RankViews ranks(rank);
  const auto runs = segment_runs(ranks, program);
  TransferKeys keys(program);
  std::vector<CommunicationUse> uses;  // by the number of the communication key
  Footprint made;
  for (const auto& [what, times] : runs) {
    const auto [segment, lane, kind] = what;
    for (const Instruction& i : program.segments[segment].code) {
      if (i.lane != lane || sends_nothing(i)) continue;
      footprint(ranks.of_kind(kind), i, FootprintParts::work, made);
      for (const Transfer& transfer : made.transfers) {
        const std::size_t number = keys.number(transfer);
        if (uses.size() <= number) uses.resize(number + 1);
        CommunicationUse& use = uses[number];
        use.calls += times * transfer.times;
        use.bytes += times * transfer.times * transfer.wire;
      }
    }
  }
  Traffic traffic;
  for (std::size_t k = 0; k < uses.size(); ++k) traffic[keys.key(k)] = uses[k];
  return traffic;
}

void take_most(Traffic& most, const Traffic& other) {
  for (const auto& [key, use] : other) {
    CommunicationUse& known = most[key];
    const std::int64_t calls = std::max(known.calls, use.calls);
    if (std::pair(use.bytes, use.calls) > std::pair(known.bytes, known.calls)) known = use;
    known.calls = calls;
  }
}

}  // namespace mw
