// The checks of `meshwright plugins test` that take an experiment: is it right, is it predicted,
// does it leave anything behind.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/kit_report.h"
#include "meshwright/lr_schedule.h"
#include "meshwright/optimizer.h"
#include "meshwright/platform.h"
#include "script/experiment.h"
#include "script/read_experiment.h"

namespace mw {

// Reads the experiment and hands it to `body`. A refusal with a reason is reported as one; what a
// plugin threw, or what a run failed with, as a failure. Returns whether `body` came to its end.
using ExperimentBody = std::function<void(const Experiment&)>;
bool try_experiment(const std::string& check, const Json& table, const ReadContext& context,
                    KitReport& report, const ExperimentBody& body);

// Gradients and parameters beside one rank's, in float64; not where something of the plan says that
// it loses bits.
void check_equal(const std::string& check, const RunSetup& setup, KitReport& report);

// Trains twice in this process: what each rank sends and holds is what was predicted, no step keeps
// what the one before did not, and the second run's losses and memory are the first's.
void check_books(const std::string& check, const RunSetup& setup, const RunChecks& checks,
                 KitReport& report);

// Gradients beside differences of the loss, on one rank: what equality with one rank cannot see.
void check_derivative(const std::string& check, const RunSetup& setup, KitReport& report);

// Tries what a proof takes for granted of the ops and the optimizer of the plan
// (prove/lemmas/lemmas.h).
void check_ops(const std::string& check, const Plan& plan, KitReport& report);

// What the plan's lossy hooks leave of the gradients' sum, in one step and in the mean of many;
// says nothing where there are none. What is left out for good is a failure.
void check_lossy(const std::string& check, const RunSetup& setup, KitReport& report);

// Trains with every rank's replicas compared: equal bits, shapes as planned, nothing NaN.
void check_replicas(const std::string& check, const RunSetup& setup, const RunChecks& checks,
                    KitReport& report);

// All of these but the derivative, of an experiment that is not refused.
void check_all_books(const std::string& mix, const Json& table, const ReadContext& context,
                     KitReport& report);

// Trains with the observers of an experiment, and without: losses, norms and what ranks hold after
// the last step are the same to the bit, and all steps run unless an observer decides.
void check_observers(const Json& with, const Json& without, const ReadContext& context,
                     KitReport& report);

// A platform finds devices, and no two of them have one id.
void check_platform(const Platform& platform, KitReport& report);

// Trains on a device and on CPUs: losses and norms are the same within a tenth of a percent.
void check_device(const Json& there, const Json& on_cpu, const ReadContext& context,
                  KitReport& report);

// A plan's prediction on the cluster that was asked for; says nothing where none is named.
void check_priced(const RunRequest& asked, const RunSetup& setup, KitReport& report);

// In all mixes: equal to one rank; the first that is not refused, and dp's, with their books.
// `computes`: an op or a model may be somebody's own, so its derivative is looked at too.
void check_mixes(const Json& experiment, const ReadContext& context, bool computes,
                 KitReport& report);

// The optimizer's update, on tensors of its own: it allocates nothing of their size (but what a
// matrix op declares), the same call gives the same bits again, whatever was called in between, and
// an elementwise op does not look across elements.
void check_updates(const Optimizer& optimizer, KitReport& report);

// The experiment's tokens and rates are functions of their number alone: asked for twice, and in
// another order, they are the same.
void check_data(const TokenSource& data, std::int64_t sequence, KitReport& report);
void check_rate(const LrSchedule& schedule, std::int64_t steps, KitReport& report);

constexpr int kit_processes = 2;  // that are started

struct TestedCommunicator {
  std::string name;
  std::vector<std::string> plugin_path;  // where the processes look for it
  std::string launcher;                  // see launcher_of (meshwright/carrier.h)
};

// Starts processes of this program over a communicator: mixes beside one rank, bytes and memory
// beside the prediction, and what the others say when one is killed.
void check_communicator(const TestedCommunicator& communicator, KitReport& report);

}  // namespace mw
