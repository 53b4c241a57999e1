// Is the mix right? The same weights and tokens on one rank and on the plan, in float64; the raw
// gradient of every parameter on every rank compared before the optimizer, since Adam hides
// constant factors, then the parameters after some steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/engine/run.h"

namespace mw {

struct ParameterError {
  std::string name;
  double gradient = 0;   // |g - g1| / |g1| (2-norms), the largest over ranks and steps compared
  double parameter = 0;  // after the last step
};

struct Divergence {
  std::string op;  // the op whose output, or whose output's gradient, parts first
  bool backward = false;
  int microbatch = 0;
  int rank = 0;                   // on which it was seen first
  double error = 0;               // relative, 2-norm
  std::vector<std::string> from;  // the ops whose outputs it reads, or that the gradient comes from
  std::string parameter;   // if every activation and its gradient agree: whose own gradient parts
  std::int64_t order = 0;  // of the op in one rank's step
};

struct VerifyOutcome {
  bool interrupted = false;  // stopped before there was a verdict: the rest says nothing
  bool equal = false;
  // All that could be compared agrees, but one rank itself becomes NaN or Inf, and the mix with it
  // at the same place. That is no difference of the mix,
  // and no proof that what comes after is equal.
  bool undecided = false;
  std::int64_t steps = 0;  // compared
  double tolerance = 1e-10;
  double loss = 0, gradients = 0, parameters = 0;  // largest relative errors
  double grad_norm = 0;
  double first_loss = 0, first_norm = 0;  // of the first step
  std::string worst;                      // the parameter with the largest gradient error
  std::vector<ParameterError> errors;     // of every parameter, graph order
  bool diverged = false;
  Divergence first;  // if diverged
  // Where both become NaN or Inf, "the loss of step 1"; empty: nowhere.
  std::string not_finite;
  // The verdict rests on each step by itself (verify_follow.h), for left to themselves the two part
  // after the first step: `apart` is how far their parameters are after the last.
  bool followed = false;
  double apart = 0;
  // The first step does agree, and with one rank following the mix this is the first that does not
  // (-1: none is): in its gradients, though the parameters are the same, or in its update,
  // though the gradients are.
  std::int64_t parted_step = -1;
  bool parted_update = false;
  double parted_error = 0;
  // Hooks of the plan that lose bits (ReductionHook::exact), each once. With one, the mix is never
  // called equal, and only what no such hook reduces can have diverged.
  std::vector<std::string> lossy;
};

// The experiment's plan in float64 against one rank, in `steps` steps or as many as the experiment
// has. Gradients are compared at the first step; a norm below 1e-6 of the whole gradient's counts
// as that, for a gradient that is zero but for rounding (a key's bias) has no relative error. Where
// the first step agrees and what follows does not, each step is compared by itself: an optimizer
// may make much of rounding, Adam with a small eps does. Throws Error (run) if a rank fails.
// `stop`: set to end after the current step.
VerifyOutcome verify(const RunSetup& experiment, std::int64_t steps = 3, double tolerance = 1e-10,
                     const std::atomic<bool>* stop = nullptr);

// "equal", "different", "undecided".
const char* verdict_of(const VerifyOutcome& outcome);
// "the gradient that reaches layers.0.norm (from …), 1.2e-01, microbatch 0, rank 1", for people.
std::string describe(const Divergence& divergence);
// Says to people what the verdict rests on where it is not plain: lossy hooks, NaN, steps by
// themselves; empty if it is.
std::string note_of(const VerifyOutcome& outcome);
// The verdict, the errors, and where it parts, for people.
std::string describe(const VerifyOutcome& outcome, const std::string& mix);

}  // namespace mw
