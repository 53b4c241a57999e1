// Gathers parameter after parameter from the ranks of a stage, and writes it on the first of them.
#include "checkpoint/export_parameters.h"

#include <ATen/core/grad_mode.h>

namespace mw {
namespace {

// A bucket's numbers, gathered from their shards.
at::Tensor whole_bucket(RankRun& executor, const Bucket& bucket) {
  const int slot = bucket.flat.master >= 0 ? bucket.flat.master : bucket.flat.stored;
  at::Tensor part = executor.kept(slot).to(executor.device()).contiguous();
  if (bucket.shard_atoms.empty()) return part;
  Communicator& ranks = executor.group({bucket.shard_atoms, {}});
  at::Tensor all = at::empty({part.numel() * ranks.ways()}, part.options());
  static const std::string label = "gather for export";
  ranks.all_gather(all, part, {"export", &label}).wait();
  return all;
}

}  // namespace

void ExportParameters::finish(RankRun& executor) {
  const at::NoGradGuard no_grad;
  const Program& program = executor.program();
  const Layout whole_layout(program.mesh.atoms().size());
  const bool writes = executor.coordinates() == program.first();
  HfExport::Part part(all_, program.stage);
  const Ledger::Scope scope(executor.ledger(), Category::buffers);
  for (const Bucket& bucket : program.buckets) {
    const at::Tensor flat = whole_bucket(executor, bucket);
    for (const int p : bucket.parameters) {
      const ProgramParameter& parameter = program.parameters[p];
      const Value& value = program.graph->value(parameter.value);
      const at::Tensor whole = executor.redistribute(executor.slice(p, flat), value.dims,
                                                     parameter.stored, whole_layout);
      if (writes && part.wants(value.name)) part.write(value.name, whole);
    }
  }
  if (writes) part.finish();
}

}  // namespace mw
