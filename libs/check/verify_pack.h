// Packs the result of a verification as bytes (engine/pack.h).
#pragma once

#include "check/tensor_pack.h"
#include "check/verify.h"
#include "check/verify_follow.h"
#include "meshwright/engine/pack.h"

namespace mw {

template <class Pack>
void members(Pack& pack, ParameterError& error) {
  pack(error.name, error.gradient, error.parameter);
}
template <class Pack>
void members(Pack& pack, Divergence& d) {
  pack(d.op, d.backward, d.microbatch, d.rank, d.error, d.from, d.parameter, d.order);
}
template <class Pack>
void members(Pack& pack, VerifyOutcome& o) {
  pack(o.interrupted, o.equal, o.undecided, o.steps, o.tolerance, o.loss, o.gradients, o.parameters,
       o.grad_norm, o.first_loss, o.first_norm, o.worst, o.errors, o.diverged, o.first,
       o.not_finite, o.followed, o.apart, o.parted_step, o.parted_update, o.parted_error, o.lossy,
       o.lossy_gathers);
}
template <class Pack>
void members(Pack& pack, RunRecord& record) {
  pack(record.losses, record.norms, record.gradients, record.parameters);
}

}  // namespace mw
