// How a rank carries out a move: what it packs, sends and receives, and what it makes of that.
// run/redistribute does it; RankView says what it takes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "meshwright/program.h"

namespace mw {

// A tensor in pieces along a dim, one after the other in a flat buffer.
struct Pieces {
  std::vector<std::int64_t> shape;  // of the tensor
  std::int64_t dim = 0;
  std::vector<std::int64_t> sizes = {1};  // of each along the dim
  std::int64_t width = 0;                 // ... in the buffer, with zeros at its end; 0: its size

  std::vector<std::int64_t> slab(std::size_t piece) const;  // its shape in the buffer
  std::vector<std::int64_t> splits() const;                 // elements of each in the buffer
  std::int64_t elements() const;                            // of the buffer
  bool pads() const;
  bool lies() const;  // the tensor is the buffer's first part as it is
};
// In one piece.
Pieces whole(std::vector<std::int64_t> shape);

struct MoveSteps {
  std::int64_t index = 0;  // of the rank in the group
  Pieces sent, arrived;
  bool packs = false;     // what is sent is copied to a buffer; else it is the tensor itself
  bool receives = false;  // into a buffer of its own; else over what is sent, or nothing
  bool joins = false;     // the result is a copy; else (the first part of) what arrived

  // Elements that are allocated until the move is awaited, and then for the result.
  std::int64_t held() const {
    return (packs ? sent.elements() : 0) + (receives ? arrived.elements() : 0);
  }
  std::int64_t joined() const;
};

// Of a tensor of these dims that has this shape on the rank at `at`. `size`: a dim's global size.
MoveSteps move_steps(const Move& move, const Dims& dims, const std::vector<std::int64_t>& shape,
                     const Layout& from, const Layout& to, const Mesh& mesh, const Coordinates& at,
                     const std::function<std::int64_t(Dim)>& size);

}  // namespace mw
