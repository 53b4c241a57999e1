// Begins and completes a run's export of weights, and the file of a batch's logits.
#include "app/verbs.h"

#include <fmt/format.h>

#include "check/not_finite.h"
#include "check/observe.h"
#include "checkpoint/hf_export.h"
#include "checkpoint/safetensors.h"
#include "common/files.h"
#include "meshwright/engine/ranks.h"
#include "script/identity.h"

namespace mw {

std::string begin_export(HfExport* exporter) {
  if (exporter == nullptr) return "";
  exporter->begin();
  const std::string lacks = exporter->lacks();
  if (lacks.empty()) return "";
  return fmt::format("export: {} will have no config.json: {}", exporter->folder().string(), lacks);
}

// HfExport::finish() moves what lies in the folder, even checkpoints and the run file. It is called
// when nobody writes there any more.
bool finish_export(HfExport* exporter, bool interrupted) {
  if (exporter == nullptr || (interrupted && exporter->replaces())) return false;
  exporter->finish();
  return true;
}

void add_export(const HfExport& exporter, Json& result) {
  const std::string folder = exporter.folder().string();
  result["export"] = folder;
  result["text"] = result["text"].get<std::string>() + fmt::format("\n  weights: {}\n", folder);
}

Json run_logits(const RunRequest& asked, const RunSetup& setup, const std::string& file) {
  const Plan& plan = *setup.plan;
  check_thread_ranks(plan, setup.processes);
  SafetensorsWriter::check_target(file);
  check_outputs({{"-o", file, OutputKind::logits}});
  const Logits found = logits_of(setup);
  Json result = {{"kind", "logits"}, {"plan", plan.mix()}, {"plan_hash", plan.hash()}};
  result.update(identity_of(asked, setup.seed));
  if (!found.logits.defined()) return result;  // not the process of rank 0
  if (!finite(found.logits)) {
    throw Error(Stage::run, "logits.not-finite", "",
                "logits: some of them are NaN or infinite, so that no file is written",
                "precision = \"fp32\" where the model overflows; else verify says which op differs "
                "from one rank");
  }
  write_safetensors(file,
                    {{"tokens", found.tokens}, {"labels", found.labels}, {"logits", found.logits}},
                    {{"hash", asked.hash}, {"plan", plan.mix()}});
  result["loss"] = found.loss;
  result["file"] = file;
  result["shape"] = found.logits.sizes().vec();
  result["text"] = fmt::format("{}: logits of {} sequences of {} tokens, {} ids, loss {:.6f}: {}\n",
                               plan.mix(), found.logits.size(0), found.logits.size(1),
                               found.logits.size(2), found.loss, file);
  return result;
}

}  // namespace mw
