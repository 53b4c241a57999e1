// The checks of `meshwright plugins test` that take an experiment: is it right, is it predicted,
// does it leave anything behind.
#pragma once

#include <functional>
#include <string>

#include "app/kit_report.h"
#include "script/experiment.h"
#include "script/read_experiment.h"

namespace mw {

// Reads the experiment and hands it to `body`. A refusal with a reason is reported as one; what a
// plugin threw, or what a run failed with, as a failure. Returns whether `body` came to its end.
bool try_experiment(const std::string& check, const Json& table, const ReadContext& context,
                    KitReport& report, const std::function<void(const Experiment&)>& body);

// Gradients and parameters beside one rank's, in float64; not where something of the plan says that
// it loses bits.
void check_equal(const std::string& check, const Experiment& experiment, KitReport& report);

// Trains twice in this process: what each rank sends and holds is what was predicted, no step keeps
// what the one before did not, and the second run's losses and memory are the first's.
void check_books(const std::string& check, Experiment experiment, KitReport& report);

// Gradients beside differences of the loss, on one rank: what equality with one rank cannot see.
void check_derivative(const std::string& check, const Experiment& experiment, KitReport& report);

// Tries what a proof takes for granted of the ops and the optimizer of the plan (check/lemmas.h).
void check_ops(const std::string& check, const Experiment& experiment, KitReport& report);

// What the plan's lossy hooks leave of the gradients' sum, in one step and in the mean of many;
// says nothing where there are none. What is left out for good is a failure.
void check_lossy(const std::string& check, const Experiment& experiment, KitReport& report);

// Trains with every rank's replicas compared: equal bits, shapes as planned, nothing NaN.
void check_replicas(const std::string& check, Experiment experiment, KitReport& report);

// All of these but the derivative, of an experiment that is not refused.
void check_all_books(const std::string& mix, const Json& table, const ReadContext& context,
                     KitReport& report);

// A plan's prediction on the cluster of the experiment; says nothing where it names none.
void check_priced(const Experiment& experiment, KitReport& report);

// In all mixes: equal to one rank; the first that is not refused, and dp's, with their books.
// `computes`: an op or a model may be somebody's own, so its derivative is looked at too.
void check_mixes(const Json& experiment, const ReadContext& context, bool computes,
                 KitReport& report);

}  // namespace mw
