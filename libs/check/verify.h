// Verifies a plan: runs it and one rank on the same weights and tokens in float64, and compares the
// raw gradient of every parameter on every rank before the optimizer, since Adam hides constant
// factors, then the parameters after some steps. The distributed plan is called the mix here.
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
  double parameter = 0;  // relative error of the parameter after the last step
};

struct Divergence {
  std::string op;  // the op whose output, or whose output's gradient, differs first
  bool backward = false;
  int microbatch = 0;
  int rank = 0;                   // the rank on which it differs
  double error = 0;               // relative error, 2-norm
  std::vector<std::string> from;  // the ops whose outputs it reads, or that the gradient comes from
  std::string parameter;   // the parameter whose gradient differs, though all activations agree
  std::int64_t order = 0;  // when one rank's step computes the op: smaller is earlier
};

struct VerifyOutcome {
  bool interrupted = false;  // stopped before there was a verdict; all other fields are unset
  bool equal = false;
  // All that could be compared agrees, but one rank itself becomes NaN or Inf, and so does the mix
  // at the same place. That is no fault of the mix, and no proof that later steps are equal.
  bool undecided = false;
  std::int64_t steps = 0;  // number of steps compared
  // Where replicas differ: how many, and after how many steps the first outer step comes here.
  int replicas = 1;
  std::int64_t first_outer_step = 0;
  double tolerance = 1e-10;
  double loss = 0, gradients = 0, parameters = 0;  // largest relative errors
  double grad_norm = 0;
  double first_loss = 0, first_norm = 0;  // relative errors of loss and norm in the first step
  std::string worst;                      // the parameter with the largest gradient error
  std::vector<ParameterError> errors;     // one for every parameter, in graph order
  bool diverged = false;
  Divergence first;  // where it diverged first, if `diverged`
  // Where both runs become NaN or Inf, "the loss of step 1"; empty: nowhere.
  std::string not_finite;
  // The verdict rests on each step by itself (verify_follow.h), since the two runs differ after the
  // first step. `apart` is the relative difference of their parameters after the last step.
  bool followed = false;
  double apart = 0;
  // Where the first step agrees: the first step that does not while one rank follows the mix; -1:
  // none. Its gradients differ, though the parameters before it are the same, or its update does,
  // though the gradients are the same (`parted_update`).
  std::int64_t parted_step = -1;
  bool parted_update = false;
  double parted_error = 0;
  // Hooks of the plan that lose bits (ReductionHook::exact), each once. With one, the mix is never
  // called equal, and only what no such hook reduces can have diverged.
  std::vector<std::string> lossy;
  // Hooks of the plan that gather parameters and lose bits. With one, every activation differs.
  std::vector<std::string> lossy_gathers;
};

// Compares the experiment's plan in float64 with one rank, over `steps` steps or as many as the
// experiment has. Gradients are compared in the first step. A gradient's norm counts as at least
// 1e-6 of the whole gradient's norm, since a gradient that is zero but for rounding (a key's bias)
// has no relative error. Where the first step agrees and later ones do not, each step is compared
// by itself, as an optimizer may magnify rounding (Adam with a small eps does). Throws Error (run)
// if a rank fails. `stop`: set to end after the current step.
VerifyOutcome verify(const RunSetup& experiment, std::int64_t steps = 3, double tolerance = 1e-10,
                     const std::atomic<bool>* stop = nullptr);

// "equal", "different", "undecided".
const char* verdict_of(const VerifyOutcome& outcome);
// "the gradient that reaches layers.0.norm (from …), 1.2e-01, microbatch 0, rank 1".
std::string describe(const Divergence& divergence);
// A text for people: what the verdict rests on where that is not obvious (lossy hooks, NaN, steps
// compared by themselves); else empty.
std::string note_of(const VerifyOutcome& outcome);
// A text for people: the verdict, the errors, and where the runs differ first.
std::string describe(const VerifyOutcome& outcome, const std::string& mix);

}  // namespace mw
