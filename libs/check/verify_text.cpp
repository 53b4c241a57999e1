// Writes what a verification found as text for people.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "check/verify.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

std::string said(const VerifyOutcome& o) {
  if (o.undecided) return "NO VERDICT: one rank in float64 is not finite either";
  if (o.replicas > 1)
    return fmt::format("{} {} replicas of one rank each in float64, {}",
                       o.equal ? "equals" : "DIFFERS from", o.replicas,
                       o.first_outer_step > o.steps
                           ? "without an outer step"
                           : fmt::format("with an outer step after {}", o.first_outer_step));
  if (!o.equal) return "DIFFERS from one rank in float64";
  return o.followed ? "equals one rank in float64, each step by itself"
                    : "equals one rank in float64";
}

std::string note_of_hooks(const VerifyOutcome& o) {
  if (!o.lossy_gathers.empty())
    return fmt::format(
        "the hook {} gathers less than the parameters, by choice, so that no activation of the mix "
        "can equal one rank's",
        fmt::join(o.lossy_gathers, " and "));
  return fmt::format(
      "the hook {} sends less than the gradients, by choice, so the mix cannot equal one rank; {}",
      fmt::join(o.lossy, " and "),
      o.diverged ? "but what parted first is not its doing"
                 : "in the first step, all that it does not touch agrees");
}

std::string note_of_steps(const VerifyOutcome& o) {
  return fmt::format(
      "loss, gradient norm and every gradient of the first step agree; left to themselves the two "
      "then part, by {:.1e} "
      "in the parameters, as the optimizer magnifies rounding (a small eps does). So one rank "
      "followed the mix: in each "
      "step it had the mix's parameters, and its optimizer the mix's gradients",
      o.apart);
}

std::string note_of_parted(const VerifyOutcome& o) {
  const std::string first =
      fmt::format("loss, gradient norm and every gradient of the first step agree ({:.1e})",
                  std::max({o.first_loss, o.first_norm, o.gradients}));
  if (o.parted_update) {
    return fmt::format(
        "{}; what parts is the update of step {}, by {:.1e} from that which one rank makes of the "
        "same gradients: look at "
        "the optimizer and at how parameters are gathered",
        first, o.parted_step, o.parted_error);
  }
  return fmt::format(
      "{}, and so do all updates before step {}; its gradients part by {:.1e} from those of one "
      "rank with the same "
      "parameters: a fault that the first step does not show, or parameters so large that a "
      "gradient is all rounding (try "
      "a lower lr)",
      first, o.parted_step, o.parted_error);
}

std::string note_of_end(const VerifyOutcome& o) {
  return fmt::format(
      "{} is NaN or Inf, on one rank as in the mix; {}. It is no difference of the mix, and no "
      "proof that what comes after "
      "would be equal: a lower learning rate, clip or a larger eps keeps the training finite",
      o.not_finite,
      o.steps == 0 ? "nothing could be compared" : "all before agrees, and what is finite there");
}

}  // namespace

const char* verdict_of(const VerifyOutcome& o) {
  return o.undecided ? "undecided" : o.equal ? "equal" : "different";
}

std::string describe(const Divergence& d) {
  if (!d.parameter.empty()) {
    return fmt::format(
        "the gradient of {} in {}, {:.1e}; every activation and its gradient agree, so "
        "look at how it is accumulated and reduced",
        d.parameter, d.op, d.error);
  }
  const std::string where =
      fmt::format("{:.1e}, microbatch {}, rank {}", d.error, d.microbatch, d.rank);
  const std::string from = d.from.empty() ? "" : fmt::format(" (from {})", fmt::join(d.from, ", "));
  return fmt::format("{} {}{}, {}", d.backward ? "the gradient that reaches" : "the output of",
                     d.op, from, where);
}

std::string describe(const VerifyOutcome& o, const std::string& mix) {
  if (o.interrupted) return mix + ": interrupted before there was a verdict\n";
  std::string text = fmt::format("{}: {} (bound {:.0e})\n", mix, said(o), o.tolerance);
  if (o.steps > 0) {
    text += fmt::format(
        "  largest relative errors: loss {:.1e}, gradient norm {:.1e}, gradients {:.1e}, "
        "parameters "
        "{} {} {:.1e}\n",
        o.loss, o.grad_norm, o.gradients, o.followed ? "in each of" : "after",
        plural(o.steps, "step"), o.parameters);
    if (!o.followed) text += fmt::format("  worst parameter: {}\n", o.worst);
  }
  if (o.diverged) text += "  first to part: " + describe(o.first) + "\n";
  const std::string note = note_of(o);
  if (!note.empty()) text += "  " + note + "\n";
  return text;
}

std::string note_of(const VerifyOutcome& o) {
  std::string note;
  const auto add = [&](const std::string& more) { note += (note.empty() ? "" : "; ") + more; };
  if (!o.lossy.empty()) add(note_of_hooks(o));
  if (o.followed) add(note_of_steps(o));
  if (o.parted_step >= 0) add(note_of_parted(o));
  if (!o.not_finite.empty()) add(note_of_end(o));
  return note;
}

}  // namespace mw
