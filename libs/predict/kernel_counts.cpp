// Counts kernels by the footprints of a program's instructions.
#include "predict/kernel_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/text.h"
#include "predict/step_counts.h"

namespace mw {
namespace {

// The bytes of the largest operand or result of an op's kernel on this rank.
double largest_tensor(const RankView& rank, const Instruction& i, int part) {
  const Program& program = rank.program();
  const Op& op = program.graph->ops()[i.op];
  const LocalDims dims = rank.dims(i.op, part);
  std::int64_t largest = 0;
  const auto see = [&](const Dims& of, Scalar scalar) {
    const Dtype dtype = scalar == Scalar::index ? Dtype::int64 : program.dtype;
    largest = std::max(largest, dims.count(of) * bytes_of(dtype));
  };
  for (const Use& use : op.inputs) see(use.dims, program.graph->value(use.value).scalar);
  for (std::size_t o = 0; o < op.outputs.size(); ++o)
    see(op.output_dims[o], program.graph->value(op.outputs[o]).scalar);
  return static_cast<double>(largest);
}

class Counter {
 public:
  void count(const RankView& rank, const Instruction& i, std::int64_t times) {
    if (i.ring) {
      for (const Instruction& step : ring_steps(rank.program(), i)) count(rank, step, times);
      return;
    }
    if (i.runs_op()) return count_op(rank, i, times);
    footprint(rank, i, FootprintParts::work, made_);
    for (const LocalWork& work : made_.work) {
      if (work.bytes > 0 || work.flops > 0)
        add(of(work_name(i)), times, work.gemms + work.calls, work.bytes, work.flops);
    }
  }
  KernelUses uses;

 private:
  void count_op(const RankView& rank, const Instruction& i, std::int64_t times) {
    if (!rank.runs(i)) return;
    KernelUse& use =
        of(fmt::format("{} {}", rank.program().graph->ops()[i.op].kind(), name_of(i.piece)));
    for (int part = i.part(); part <= i.part() + i.ring_alike; ++part) {
      const Cost& cost = rank.cost(i.op, i.piece, part);
      add(use, times, cost.kernels + cost.further_kernels, cost.bytes + cost.further_bytes,
          cost.executed);
      use.largest += static_cast<double>(times) * largest_tensor(rank, i, part);
    }
    const std::int64_t first = rank.added_to(i, begun_), later = rank.added_to(i, begun_);
    use.bytes += static_cast<double>(first + (times - 1) * later);
  }
  static void add(KernelUse& use, std::int64_t times, int kernels, double bytes, double flops) {
    use.kernels += times * kernels;
    use.bytes += static_cast<double>(times) * bytes;
    use.flops += static_cast<double>(times) * flops;
  }
  KernelUse& of(const std::string& name) {
    const auto [known, fresh] = at_.try_emplace(name, uses.size());
    if (fresh) uses.emplace_back(name, KernelUse{});
    return uses[known->second].second;
  }
  std::map<std::string, std::size_t> at_;
  std::set<int> begun_;  // slots of sums to which something was added
  Footprint made_;
};

KernelUse sum_of(const KernelUses& uses) {
  KernelUse sum;
  for (const auto& [name, use] : uses) {
    sum.kernels += use.kernels;
    sum.bytes += use.bytes;
    sum.flops += use.flops;
  }
  return sum;
}

}  // namespace

KernelUses forecast_kernels(const RankView& rank) {
  const Program& program = rank.program();
  const RankViews ranks(rank);
  const std::map<std::tuple<int, int, int>, std::int64_t> runs = segment_runs(ranks, program);
  Counter counter;
  for (const auto& [what, times] : runs) {
    const auto [segment, lane, kind] = what;
    for (const Instruction& i : program.segments[static_cast<std::size_t>(segment)].code) {
      if (i.lane == lane) counter.count(ranks.of_kind(kind), i, times);
    }
  }
  return std::move(counter.uses);
}

std::string kernels_table(const KernelUses& uses) {
  TextTable table({"kernels", "a step", "read and written", "passes", "FLOP"}, {1, 2, 3, 4});
  for (const auto& [name, use] : uses) {
    table.add({name, std::to_string(use.kernels), format_bytes(use.bytes),
               use.largest > 0 ? fmt::format("{:.1f}", use.bytes / use.largest) : "",
               count_text(use.flops)});
  }
  const KernelUse sum = sum_of(uses);
  table.add({"together", std::to_string(sum.kernels), format_bytes(sum.bytes), "",
             count_text(sum.flops)});
  return table.text("  ");
}

Json kernels_json(const KernelUses& uses) {
  const KernelUse sum = sum_of(uses);
  Json json = {{"kernels", sum.kernels}, {"bytes", sum.bytes}, {"flops", sum.flops}};
  json["rows"] = Json::array();
  for (const auto& [name, use] : uses)
    json["rows"].push_back(
        {{"name", name}, {"kernels", use.kernels}, {"bytes", use.bytes}, {"flops", use.flops}});
  return json;
}

}  // namespace mw
