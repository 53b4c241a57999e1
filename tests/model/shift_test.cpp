// Labels of tokens further on, and a loss that leaves out the last tokens, in sequences that lie in
// order or not.
#include <catch2/catch.hpp>

#include "meshwright/ops.h"
#include "op_case.h"

using namespace mw;
using namespace mw::test;

TEST_CASE("shifted labels") {
  OpCase c(shift(2), {{"batch", "seq"}}, {{"batch", "seq"}}, {{"batch", 1}, {"seq", 8}});
  c.index(0, 100);
  c.inputs[0] = at::arange(10, 18, at::kLong).unsqueeze(0);
  const at::Tensor after = at::tensor({12, 13, 14, 15, 16, 17, 17, 17}, at::kLong).unsqueeze(0);
  CHECK(at::equal(run(c, {}, Into::fresh).outputs[0], after));
  // As a ring with balance lays it: the first and the last quarter, then the others.
  c.cut("seq", {{0, 2}, {6, 2}, {2, 4}}, 8);
  const at::Tensor lies = at::tensor({0, 1, 6, 7, 2, 3, 4, 5}, at::kLong);
  c.inputs[0] = c.inputs[0].index_select(1, lies);
  CHECK(at::equal(run(c, {}, Into::fresh).outputs[0], after.index_select(1, lies)));
}

TEST_CASE("a loss without the last tokens") {
  OpCase c(without_last(3), {{"stat", "batch", "seq"}}, {{"stat", "batch", "seq"}},
           {{"stat", 2}, {"batch", 3}, {"seq", 4}});
  c.real(0);
  // This rank holds places 4, 5, 0 and 1 of 8: the last of them counts nothing in a sequence of 8.
  const bool cut = GENERATE(false, true);
  if (cut) c.cut("seq", {{4, 2}, {0, 2}}, 8);
  check_op(c, [cut](const Tensors& in) {
    const std::vector<double> counted =
        cut ? std::vector<double>{1, 0, 1, 1} : std::vector<double>{1, 0, 0, 0};
    const at::Tensor keep = at::tensor(counted, at::kDouble);
    const at::Tensor none = at::stack({1 - keep, at::zeros_like(keep)}).unsqueeze(1);
    return Tensors{in[0] * keep + none};
  });
}
