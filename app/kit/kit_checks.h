// The checks of `meshwright plugins test` that take an experiment: is it right, is it predicted,
// does it leave anything behind.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/kit/kit_report.h"
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

// Checks that gradients and parameters equal those of one rank in float64, except where a part of
// the plan says that it loses bits.
void check_equal(const std::string& check, const RunSetup& setup, KitReport& report);

// Trains twice in this process. Checks that each rank sends and holds what was predicted, that
// steps leave the same memory behind as the step before, and that the second run has the losses and
// memory of the first.
void check_books(const std::string& check, const RunSetup& setup, const RunChecks& checks,
                 KitReport& report);

// Checks gradients by differences of the loss, on one rank, which equality with one rank cannot do.
void check_derivative(const std::string& check, const RunSetup& setup, KitReport& report);

// Tries the assumptions of a proof about the plan's ops and optimizer (prove/lemmas/lemmas.h).
void check_ops(const std::string& check, const Plan& plan, KitReport& report);

// Reports how much of the gradients' sum the plan's lossy hooks lose in one step, and in the mean
// of many. It is a failure if a part is lost for good. Reports nothing if there are no such hooks.
void check_lossy(const std::string& check, const RunSetup& setup, KitReport& report);

// Trains while every rank's replicas are compared: they must have equal bits and the planned
// shapes, and no loss may be NaN.
void check_replicas(const std::string& check, const RunSetup& setup, const RunChecks& checks,
                    KitReport& report);

// check_books(), check_replicas() and check_lossy(), unless the experiment is refused.
void check_all_books(const std::string& mix, const Json& table, const ReadContext& context,
                     KitReport& report);

// Trains with the observers of an experiment, and without. Checks that losses, norms and what ranks
// hold after the last step are the same to the bit, and that all steps run unless an observer may
// end the run.
void check_observers(const Json& with, const Json& without, const ReadContext& context,
                     KitReport& report);

// Checks that a platform finds devices, and that no two of them have the same id.
void check_platform(const Platform& platform, KitReport& report);

// Trains on a device and on CPUs. Checks that losses and norms agree within a tenth of a percent.
void check_device(const Json& there, const Json& on_cpu, const ReadContext& context,
                  KitReport& report);

// Checks that the plan can be priced for the cluster that was asked for. Reports nothing if none is
// named.
void check_priced(const RunRequest& asked, const RunSetup& setup, KitReport& report);

// Checks that all mixes equal one rank, and check_all_books() of the first that is not refused and
// of the next with a plugin. `computes`: an op or a model may be somebody's own, so derivatives and
// a proof's assumptions are checked too.
void check_mixes(const Json& experiment, const ReadContext& context, bool computes,
                 KitReport& report);

// Checks the optimizer's update on made-up tensors: it allocates nothing of their size (but what a
// matrix op declares), gives the same bits again after other calls, and an elementwise op does not
// look across elements.
void check_updates(const Optimizer& optimizer, KitReport& report);

// Checks that the experiment's samples and rates depend on their number alone: asked for twice, and
// in another order, they are the same.
void check_data(const TokenSource& data, std::int64_t sequence, KitReport& report);
void check_rate(const LrSchedule& schedule, std::int64_t steps, KitReport& report);

constexpr int kit_processes = 2;  // processes that check_communicator() starts

struct TestedCommunicator {
  std::string name;
  std::vector<std::string> plugin_path;  // where the processes look for it
  std::string launcher;                  // command that starts them; empty: none (launcher_of)
};

// Starts processes of this program over a communicator. Checks mixes against one rank, bytes and
// memory against the prediction, and what the others say when one process is killed.
void check_communicator(const TestedCommunicator& communicator, KitReport& report);

}  // namespace mw
