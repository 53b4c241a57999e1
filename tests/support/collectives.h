// Collectives against what one thread computes, whatever joins the ranks.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "meshwright/world.h"

namespace mw::test {

inline const std::vector<at::ScalarType> all_dtypes = {
    at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte, at::kBool};

inline std::vector<int> everyone(int ranks) {
  std::vector<int> group(static_cast<std::size_t>(ranks));
  std::iota(group.begin(), group.end(), 0);
  return group;
}

// A communicator over all ranks, on axis "world".
inline std::unique_ptr<Communicator> world_communicator(RankContext& context,
                                                        Ledger* ledger = nullptr) {
  return make_communicator(*context.source, {"world", everyone(context.ranks)}, context.rank,
                           ledger);
}

// What rank `rank` brings: reproducible, with rounding to get wrong in the float types.
inline at::Tensor values(at::ScalarType dtype, std::int64_t count, int rank) {
  // Cheap: the tests' time goes into what they test.
  const auto step = at::arange(count, at::kLong).mul_(7919).add_(104'729 * (rank + 1));
  const auto draw = step.remainder(1009);
  if (at::isFloatingType(dtype)) return draw.to(at::kDouble).div_(7).sub_(60).to(dtype);
  return (dtype == at::kBool ? draw.remainder(3).eq(0) : draw.remainder(40)).to(dtype);
}

// In rank order, bf16 and fp16 in float, by ATen.
inline at::Tensor reduced(at::ScalarType dtype, std::int64_t count, const std::vector<int>& group,
                          Reduction op) {
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  auto total = values(dtype, count, group[0]);
  if (narrow) total = total.to(at::kFloat);
  for (std::size_t r = 1; r < group.size(); ++r) {
    auto next = values(dtype, count, group[r]);
    if (narrow) next = next.to(at::kFloat);
    total = op == Reduction::max ? at::maximum(total, next) : at::add(total, next);
  }
  return total.to(dtype);
}

// How many tensors came wrong: of an all-gather, a reduce-scatter, an all-to-all, a broadcast, and
// one that goes round the ranks; parts of so many elements.
inline int wrong_moves(Communicator& comm, at::ScalarType dtype, std::int64_t part) {
  const int ranks = comm.ways(), me = comm.index();
  const auto count = part * ranks;
  int wrong = 0;
  const auto right = [&](const at::Tensor& got, const at::Tensor& expected) {
    if (!at::equal(got, expected)) ++wrong;
  };
  auto gathered = at::empty({count}, dtype);
  comm.all_gather(gathered, values(dtype, part, me), {}).wait();
  for (int r = 0; r < ranks; ++r) right(gathered.narrow(0, r * part, part), values(dtype, part, r));

  auto kept = at::empty({part}, dtype);
  comm.reduce_scatter(kept, values(dtype, count, me), Reduction::sum, {}).wait();
  right(kept, reduced(dtype, count, comm.group(), Reduction::sum).narrow(0, me * part, part));

  auto exchanged = at::empty({count}, dtype);
  comm.all_to_all(exchanged, values(dtype, count, me), {}, {}, {}).wait();
  for (int r = 0; r < ranks; ++r) {
    right(exchanged.narrow(0, r * part, part), values(dtype, count, r).narrow(0, me * part, part));
  }

  auto cast = values(dtype, part, me);
  comm.broadcast(cast, ranks - 1, {}).wait();
  right(cast, values(dtype, part, ranks - 1));

  auto mine = values(dtype, part, me);
  auto theirs = at::empty({part}, dtype);
  auto sent = comm.send(mine, (me + 1) % ranks, 0, {});
  auto received = comm.recv(theirs, (me + ranks - 1) % ranks, 0, {});
  sent.wait();
  received.wait();
  right(theirs, values(dtype, part, (me + ranks - 1) % ranks));
  comm.barrier({}).wait();
  return wrong;
}

// Whether rows arrive that are split unevenly, some splits empty. `sent`: bytes to other ranks.
inline bool right_rows(Communicator& comm, std::int64_t& sent) {
  const auto rows = [](int from, int to) { return std::int64_t{(from * 3 + to * 5) % 4 * 37}; };
  const int me = comm.index();
  std::vector<std::int64_t> out_splits, in_splits;
  std::vector<at::Tensor> parts, expected;
  sent = 0;
  for (int r = 0; r < comm.ways(); ++r) {
    in_splits.push_back(rows(me, r));
    out_splits.push_back(rows(r, me));
    parts.push_back(at::full({rows(me, r), 9}, me * 100 + r, at::kFloat));
    expected.push_back(at::full({rows(r, me), 9}, r * 100 + me, at::kFloat));
    if (r != me) sent += rows(me, r) * 9 * 4;
  }
  const auto want = at::cat(expected);
  auto out = at::empty_like(want);
  comm.all_to_all(out, at::cat(parts), out_splits, in_splits, {}).wait();
  return at::equal(out, want);
}

// Whether a tensor may be gathered in place.
inline bool right_in_place(Communicator& comm, std::int64_t part) {
  auto whole = at::zeros({comm.ways() * part}, at::kFloat);
  auto mine = whole.narrow(0, comm.index() * part, part);
  mine.copy_(values(at::kFloat, part, comm.index()));
  comm.all_gather(whole, mine, {}).wait();
  bool right = true;
  for (int r = 0; r < comm.ways(); ++r) {
    right = right && at::equal(whole.narrow(0, r * part, part), values(at::kFloat, part, r));
  }
  return right;
}

}  // namespace mw::test
