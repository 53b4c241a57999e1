// Carries out one Move on a rank, in the steps that program/move_steps says.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/engine/rank_view.h"

namespace mw {

// The pieces of a tensor in a flat buffer, with their places worked out once.
struct Buffer {
  explicit Buffer(Pieces of);
  // A view of one piece in the buffer, without its padding.
  at::Tensor piece(const at::Tensor& buffer, std::size_t index) const;
  at::Tensor packed(const at::Tensor& tensor) const;
  at::Tensor joined(const at::Tensor& buffer) const;
  // The tensor as a view of the buffer, whose first part it is.
  at::Tensor lying(const at::Tensor& buffer) const;

  struct Place {
    std::int64_t first;
    std::vector<std::int64_t> slab;
  };
  Pieces pieces;
  std::vector<std::int64_t> splits;
  std::vector<Place> places;
  std::int64_t elements = 0;
  bool pads = false;
};

// A move's steps, made ready to be carried out any number of times.
struct ReadyMove {
  explicit ReadyMove(MoveSteps of)
      : steps(std::move(of)), sent(steps.sent), arrived(steps.arrived) {}
  MoveSteps steps;
  Buffer sent, arrived;
};

// A transfer under way, and the tensors that must stay until it is over.
struct Underway {
  Pending pending, sent;  // of a shift: the receive and the send
  at::Tensor in, out;
};

// Begins a move's collective from one contiguous tensor into another, which are `ready`'s buffers
// where it is an all-to-all.
Pending post(const Move& move, const at::Tensor& out, const at::Tensor& in, Communicator& group,
             Purpose purpose, const ReadyMove* ready = nullptr);
// Starts a move that communicates. An all-reduce that does not pack overwrites its input, which
// must stay until the move is finished.
Underway start_move(const Move& move, const ReadyMove& ready, const at::Tensor& input,
                    Communicator& group, Purpose purpose);
at::Tensor finish_move(Underway& underway, const ReadyMove& ready);

// Carries out a local move (slice, keep).
at::Tensor local_move(const Move& move, const ReadyMove& ready, const at::Tensor& input);

// The elements of dim `at` of a tensor in the order of `runs`, or those of one run as a view.
at::Tensor in_runs(const at::Tensor& whole, std::int64_t at, const std::vector<Range>& runs);
// Undoes in_runs() of runs that cover the whole dim.
at::Tensor from_runs(const at::Tensor& lies, std::int64_t at, const std::vector<Range>& runs);

}  // namespace mw
