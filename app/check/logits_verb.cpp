// The verb that writes the logits of a batch into a file.
#include <fmt/format.h>

#include "app/verbs.h"
#include "check/observe.h"
#include "checkpoint/safetensors.h"
#include "common/files.h"
#include "meshwright/engine/ranks.h"
#include "observers/not_finite.h"
#include "script/identity.h"

namespace mw {

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
  std::vector<std::pair<std::string, at::Tensor>> tensors{
      {"tokens", found.tokens}, {"labels", found.labels}, {"logits", found.logits}};
  tensors.insert(tensors.end(), found.inputs.begin(), found.inputs.end());
  write_safetensors(file, tensors, {{"hash", asked.hash}, {"plan", plan.mix()}});
  result["loss"] = found.loss;
  result["file"] = file;
  result["shape"] = found.logits.sizes().vec();
  const bool of_tokens = found.logits.sizes().slice(0, 2) == found.tokens.sizes();
  const std::string what = of_tokens ? fmt::format("{} sequences of {} tokens",
                                                   found.tokens.size(0), found.tokens.size(1))
                                     : fmt::format("{} samples", found.logits.size(0));
  result["text"] = fmt::format("{}: logits of {}, {} ids, loss {:.6f}: {}\n", plan.mix(), what,
                               found.logits.size(-1), found.loss, file);
  return result;
}

}  // namespace mw
