// Counts kernels by the footprints of a program's instructions.
#include "predict/kernel_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/text.h"
#include "predict/step_counts.h"

namespace mw {
namespace {

// The bytes of the largest operand or result of an op's kernel on this rank.
double largest_tensor(const RankView& rank, const Instruction& i) {
  const Program& program = rank.program();
  const Op& op = program.graph->ops()[i.op];
  const LocalDims dims = rank.dims(i.op, i.part());
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

// The bytes of gradients that the op adds to, and therefore reads.
double added_to(const RankView& rank, const Instruction& i) {
  std::int64_t bytes = 0;
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
    if (i.grad_inputs[k] >= 0 && i.accumulate[k]) bytes += rank.bytes_of_slice(i, i.grad_inputs[k]);
  }
  return static_cast<double>(bytes);
}

class Counter {
 public:
  void count(const RankView& rank, const Instruction& i, std::int64_t times) {
    footprint(rank, i, FootprintParts::work, made_);
    if (made_.work.empty()) return;
    const bool op = i.runs_op();
    KernelUse& use =
        of(op ? fmt::format("{} {}", name_of(i.piece), rank.program().graph->ops()[i.op].kind())
              : work_name(i));
    const auto n = static_cast<double>(times);
    for (const LocalWork& work : made_.work) {
      use.kernels += times * (work.gemms + work.calls);
      use.bytes += n * work.bytes;
      use.flops += n * work.flops;
    }
    if (!op) return;
    use.largest += n * largest_tensor(rank, i);
    use.bytes += n * added_to(rank, i);
    use.kernels += times * rank.cost(i.op, i.piece, i.part()).further_kernels;
  }
  KernelUses uses;

 private:
  KernelUse& of(const std::string& name) {
    const auto [known, fresh] = at_.try_emplace(name, uses.size());
    if (fresh) uses.emplace_back(name, KernelUse{});
    return uses[known->second].second;
  }
  std::map<std::string, std::size_t> at_;
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
