// What dp's reduction hooks leave in a bucket, beside the plain sum.
#include <catch2/catch.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <cmath>

#include "comm/comm_testing.h"
#include "meshwright/reduction_hook.h"
#include "support/registered.h"

using namespace mw;           // NOLINT
using namespace mw::testing;  // NOLINT

namespace {

using Shapes = std::vector<std::vector<std::int64_t>>;

BucketShape bucket_of(const Shapes& shapes, int ways, int element) {
  BucketShape bucket;
  bucket.name = "bucket 0";
  bucket.shapes = shapes;
  for (const auto& shape : shapes) bucket.elements += c10::multiply_integers(shape);
  bucket.element = element;
  bucket.ways = ways;
  return bucket;
}

at::Tensor noise(std::int64_t elements, std::uint64_t seed, at::ScalarType type) {
  return at::randn({elements}, at::make_generator<at::CPUGeneratorImpl>(seed), at::dtype(type));
}

struct Reduced {
  std::vector<at::Tensor> hooked, plain;  // of each step
  std::int64_t bytes = 0;                 // sent in the last step, by the ledger
};

// Every rank's gradients through the hook, step by step;
// what all ranks got, which must be the same.
template <class Gradient>
Reduced reduce(const ReductionHook& hook, const Shapes& shapes, int ways, at::ScalarType type,
               int steps, Gradient gradient) {
  const BucketShape bucket = bucket_of(shapes, ways, type == at::kDouble ? 8 : 4);
  std::vector<Reduced> all(static_cast<std::size_t>(ways));
  run_ranks(ways, [&](RankContext& context) {
    Ledger ledger;
    const auto ranks = world_communicator(context, &ledger);
    const auto reduction = hook.make(bucket, at::dtype(type));
    static const std::string label = "bucket 0";
    Reduced& mine = all[static_cast<std::size_t>(context.rank)];
    for (int step = 0; step < steps; ++step) {
      const at::Tensor own = gradient(context.rank, step), plain = own.clone();
      ranks->all_reduce(plain, Reduction::sum, {"plain", &label}).wait();
      ledger.clear_step();
      reduction->start(own, *ranks, {"gradients", &label});
      reduction->finish();
      mine.hooked.push_back(own);
      mine.plain.push_back(plain);
    }
    for (const auto& [key, use] : ledger.communication()) mine.bytes += use.bytes;
  });
  const ReductionCost cost = hook.cost(bucket);
  std::int64_t declared = 0;
  for (const auto* phase : {&cost.start, &cost.finish}) {
    for (const auto& call : phase->calls) declared += wire_bytes(call.op, call.bytes, ways);
  }
  for (const Reduced& other : all) {
    CHECK(other.bytes == declared);
    for (int step = 0; step < steps; ++step)
      CHECK(at::equal(other.hooked[step], all.front().hooked[step]));
  }
  return all.front();
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return (at::linalg_vector_norm(a - b, 2) / at::linalg_vector_norm(b, 2)).item<double>();
}

std::shared_ptr<const ReductionHook> hook_of(const std::string& name,
                                             const Json& options = Json::object()) {
  test::registry().plugin("dp");
  return test::made<ReductionHook>("hook", name, options);
}

const Shapes mixed = {{24, 10}, {7}, {3, 8, 12}, {1}, {6, 30}};

}  // namespace

TEST_CASE("bf16 sums to 8 bits in half the bytes of fp32") {
  const int ways = GENERATE(2, 3, 4);
  const auto hook = hook_of("bf16");
  const std::int64_t elements = bucket_of(mixed, ways, 4).elements;
  const Reduced got = reduce(*hook, mixed, ways, at::kFloat, 1, [&](int rank, int step) {
    return noise(elements, static_cast<std::uint64_t>(10 * step + rank), at::kFloat);
  });
  const double error = distance(got.hooked[0], got.plain[0]);
  CHECK(error > 1e-4);
  CHECK(error < 1.0 / 256);  // half a unit of the last of 8 bits, of the addends and of the sum
  const std::int64_t plain = wire_bytes(Collective::all_reduce, 4 * elements, ways);
  CHECK(got.bytes * 2 == plain);
}

TEST_CASE("PowerSGD of full rank is the plain sum") {
  const int ways = GENERATE(2, 3);
  const auto hook = hook_of("powersgd", {{"rank", 1 << 20}, {"even_if_larger", true}});
  const std::int64_t elements = bucket_of(mixed, ways, 4).elements;
  const Reduced got = reduce(*hook, mixed, ways, at::kFloat, 4, [&](int rank, int step) {
    return noise(elements, static_cast<std::uint64_t>(10 * step + rank), at::kFloat);
  });
  for (int step = 0; step < 4; ++step) CHECK(distance(got.hooked[step], got.plain[step]) < 1e-5);
}

TEST_CASE("PowerSGD is exact for gradients of its rank, and not for others") {
  const std::int64_t rank = 3;
  const Shapes one = {{40, 50}};
  // The ranks' columns span one space of three dims, so their sum has rank three.
  const at::Tensor basis = noise(40 * rank, 77, at::kDouble).view({40, rank});
  const Reduced low =
      reduce(*hook_of("powersgd", {{"rank", rank}}), one, 2, at::kDouble, 3, [&](int r, int step) {
        const auto seed = static_cast<std::uint64_t>(10 * step + r);
        return at::mm(basis, noise(rank * 50, seed, at::kDouble).view({rank, 50})).flatten();
      });
  for (int step = 0; step < 3; ++step) CHECK(distance(low.hooked[step], low.plain[step]) < 1e-12);
  const Reduced high = reduce(
      *hook_of("powersgd", {{"rank", rank}}), one, 2, at::kDouble, 1,
      [&](int r, int) { return noise(40 * 50, static_cast<std::uint64_t>(r), at::kDouble); });
  CHECK(distance(high.hooked[0], high.plain[0]) > 0.5);
}

TEST_CASE("What PowerSGD leaves out of a step comes later") {
  // The same gradients in every step: after n steps the sum handed out lacks one error, which stays
  // bounded, so it is right to a part in n.
  const int ways = 2, steps = 64;
  const Shapes one = {{16, 24}};
  const auto gradient = [&](int rank, int) {
    return noise(16 * 24, static_cast<std::uint64_t>(rank), at::kDouble);
  };
  const Reduced got =
      reduce(*hook_of("powersgd", {{"rank", 2}}), one, ways, at::kDouble, steps, gradient);
  std::vector<double> off;
  at::Tensor sum = at::zeros_like(got.plain[0]);
  for (int step = 0; step < steps; ++step) {
    sum = sum + got.hooked[step];
    off.push_back(distance(sum / (step + 1), got.plain[0]));
  }
  INFO("after 1, 16, 64 steps: " << off[0] << " " << off[15] << " " << off[63]);
  CHECK(off[0] > 0.5);
  CHECK(off[15] < off[0] / 2);
  CHECK(off[63] < off[15] / 2);
}

TEST_CASE("The subspace iteration goes on from the last step") {
  // One gradient again and again, with two large singular values: the error of a single step
  // shrinks to that of the best approximation.
  const Shapes one = {{32, 32}};
  const at::Tensor u = std::get<0>(at::linalg_qr(noise(32 * 32, 1, at::kDouble).view({32, 32})));
  const at::Tensor v = std::get<0>(at::linalg_qr(noise(32 * 32, 2, at::kDouble).view({32, 32})));
  at::Tensor s = at::full({32}, 0.1, at::kDouble);
  s[0] = 5;
  s[1] = 4;
  const at::Tensor m = at::mm(u * s, v.t());
  const double best = 0.1 * std::sqrt(30.0) / at::linalg_vector_norm(s, 2).item<double>();
  const Reduced got = reduce(*hook_of("powersgd", {{"rank", 2}}), one, 2, at::kDouble, 3,
                             [&](int, int) { return m.clone().flatten(); });
  // Beside the best approximation, the errors that were fed back count a little.
  CHECK(distance(got.hooked[0], got.plain[0]) > 1.02 * best);
  CHECK(distance(got.hooked[2], got.plain[2]) < 1.5 * best);
}

TEST_CASE("PowerSGD leaves alone what would not become smaller") {
  const auto hook = hook_of("powersgd", {{"rank", 8}});
  CHECK(hook->exact(bucket_of({{10}, {4, 6}, {16, 16}}, 2, 4)));  // (16 + 16) * 8 is no less
  CHECK_FALSE(hook->exact(bucket_of({{10}, {17, 17}}, 2, 4)));
  const ReductionCost plain = hook->cost(bucket_of({{10}, {16, 16}}, 2, 4));
  CHECK(plain.kept == 0);
  CHECK(plain.start.calls.front().bytes == 4 * 266);
  CHECK(plain.finish.calls.empty());
  const ReductionCost cost = hook->cost(bucket_of({{10}, {17, 34}}, 2, 4));
  CHECK(cost.start.calls.front().bytes == 4 * (10 + 17 * 8));
  CHECK(cost.finish.calls.front().bytes == 4 * 34 * 8);
  CHECK(cost.kept == 4 * (17 * 34 + 34 * 8));
  // Several dims: cut where rows + cols is least, here 24 + 30.
  const ReductionCost cut = hook->cost(bucket_of({{4, 6, 30}}, 2, 4));
  CHECK(cut.start.calls.front().bytes == 4 * 24 * 8);
}
