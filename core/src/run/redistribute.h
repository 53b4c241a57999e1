// Carries out one Move on a rank: the collective, and the copies that bring a dim to the front and
// back.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/program.h"

namespace mw {

// What a rank needs to know of the tensor that moves.
struct Moving {
  Dims dims;                             // of the tensor; `move` names some of them
  std::vector<std::int64_t> from_parts;  // of Move::from: every rank's part, in group order
  std::vector<std::int64_t> to_parts;    // of Move::to
};

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

// Starts a move that communicates. With `in_place` an all-reduce overwrites its input. `input` must
// stay alive until finish().
Underway start_move(const Move& move, const Moving& moving, const at::Tensor& input, bool in_place,
                    Communicator& group, Purpose purpose);

// A local move (slice, keep); `index` is the rank's place in the group.
at::Tensor local_move(const Move& move, const Moving& moving, const at::Tensor& input, int index);

}  // namespace mw
