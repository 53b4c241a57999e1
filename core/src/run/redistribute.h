// Carries out one Move on a rank, in the steps that program/move_steps says.
#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "meshwright/communicator.h"
#include "meshwright/engine/rank_view.h"

namespace mw {

// A move under way. finish() waits and returns the moved tensor.
class Underway {
 public:
  Underway() = default;
  Underway(Pending pending, std::function<at::Tensor()> result)
      : pending_(std::move(pending)), result_(std::move(result)) {}
  at::Tensor finish();

 private:
  Pending pending_;
  std::function<at::Tensor()> result_;
};

// Starts a move that communicates. An all-reduce that does not pack overwrites its input. `input`
// and `steps` must stay until finish().
Underway start_move(const Move& move, const MoveSteps& steps, const at::Tensor& input,
                    Communicator& group, Purpose purpose);

// A local move (slice, keep).
at::Tensor local_move(const Move& move, const MoveSteps& steps, const at::Tensor& input);

// The elements of dim `at` of a tensor in the order of `runs`, or those of one run as a view.
at::Tensor in_runs(const at::Tensor& whole, std::int64_t at, const std::vector<Range>& runs);

}  // namespace mw
