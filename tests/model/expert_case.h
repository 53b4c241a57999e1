// What tests of experts' ops share: dims, sizes, and which experts tokens choose.
#pragma once

#include "op_case.h"

namespace mw::test {

using Sizes = std::map<std::string, std::int64_t>;

inline const Dims chosen{"batch", "seq", "top"};

// Different experts for each token, at random.
inline at::Tensor random_picks(std::int64_t batch, std::int64_t seq, std::int64_t top,
                               std::int64_t experts) {
  const at::Tensor order = at::argsort(at::randn({batch, seq, experts}), std::int64_t{-1});
  return order.narrow(-1, 0, top).contiguous();
}

// (..., top) -> (..., top, experts): 1 where the choice is the expert; nowhere for a dropped one.
inline at::Tensor is_choice(const at::Tensor& picks, std::int64_t experts) {
  return picks.unsqueeze(-1).eq(at::arange(experts)).to(at::kDouble);
}

// Sizes of a batch, the number of experts and of a token's choices, to measure memory with.
struct Shape {
  std::int64_t batch, seq, hidden, experts, top;
};
inline const std::vector<Shape> shapes_of_experts{
    {2, 24, 32, 8, 2}, {4, 512, 128, 16, 1}, {1, 600, 96, 64, 8}, {3, 400, 64, 8, 8}};

}  // namespace mw::test
