// The verbs of a script over the engine: each takes an experiment that was found right and returns
// the result as the script and --json see it. The key "text" is the summary for people.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/chrome_trace.h"
#include "app/output.h"
#include "app/script_files.h"
#include "check/compare.h"
#include "draw/braids.h"
#include "launch/restarts.h"
#include "meshwright/engine/registry.h"
#include "meshwright/json.h"
#include "predict/machine.h"
#include "predict/prediction.h"
#include "script/experiment.h"
#include "script/read_experiment.h"

namespace mw {

// Trains and writes the run file. If a rank fails, says so with status "failed" on `output`, then
// throws. The run file gets the script's text and the versions of plugins.
Json run_train(const Experiment& experiment, const ScriptFiles& script, Output& output,
               PluginRegistry& plugins, const Attempt& attempt = {});
// This machine, measured for a run on CPUs. Nothing measures what its GPUs can do.
const Machine& machine_here(const RunSetup& setup);
// What the request's plans are priced for: the cluster that it names, else machine_here().
class PricedFor {
 public:
  PricedFor(const RunRequest& asked, const RunSetup& setup);
  const Machine& operator*() const { return *machine_; }
  bool is_cluster() const { return cluster_ != nullptr; }

 private:
  std::unique_ptr<Machine> cluster_;  // null: this machine
  const Machine* machine_;
};

// Where pages, traces and drawings of plans are kept beside the results; null: they are not.
struct PlanPictures {
  std::vector<Json>* pages = nullptr;           // data of the page of each plan (draw/plan_page.h)
  std::vector<TraceProcess>* traces = nullptr;  // the predicted step of each plan (trace_process.h)
  // the braids of each plan, which its result then shows too
  std::vector<BraidPicture>* braids = nullptr;
};
// What `plan` predicts of an experiment: on the cluster that it names, else on this machine, which
// is measured before its first prediction. There are no seconds of GPUs of which nothing is known.
struct PricedPlan {
  PricedFor machine;
  Prediction prediction;
};
// `advice`: with what other plans and less recompute would gain; `traced`: with the times of
// instructions.
PricedPlan price_plan(const Experiment& experiment, bool advice, bool traced = false);
Json run_plan_verb(const Experiment& experiment, const PlanPictures& pictures = {});
// Writes tokens, labels and logits of the first batch into a safetensors file.
Json run_logits(const RunRequest& asked, const RunSetup& setup, const std::string& file);
// Compares the plan with one rank. Status "interrupted" and no verdict if the user stopped it.
Json run_verify(const RunRequest& asked, const RunSetup& setup, Output& output);
// Verdict "proved", "proved, except: …" or "refused" (prove/prove.h). `strict`: collectives block
// until all have come, and what could not be tried is refused.
Json run_prove(const RunRequest& asked, const RunSetup& setup, bool strict);

// Searches for plans. Status "interrupted" if the user stopped it: the plans are then the best so
// far. `as`: the software whose flags the text ends with; empty: none.
Json run_search(const Json& table, const ReadContext& context, const std::string& as,
                Output& output);

// Compares two experiments. Throws Error with all in which a and b differ but must not. Status
// "interrupted" and no verdict if the user stopped it. The key "text" is the summary for people. If
// a script's function is stuck, the error goes to `output` and the process ends.
Json run_compare(const ComparedRun& a, const ComparedRun& b, Output& output);

// Before a run, in the process that has rank 0: makes room for the export, if there is one. Returns
// what is to be said of it, which may be nothing. Throws as HfExport::begin.
std::string begin_export(HfExport* exporter);
// After a run: completes the export and gives its folder the final name. False if there is no
// export, or if the run was interrupted and the folder has an earlier export, which may be of all
// steps.
bool finish_export(HfExport* exporter, bool interrupted);
// Says in a result, and in its text, where the weights are.
void add_export(const HfExport& exporter, Json& result);

}  // namespace mw
