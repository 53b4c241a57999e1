// What counts as a kernel in an account: calls of libtorch that compute, and no other.
#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <catch2/catch.hpp>
#include <thread>

#include "run/kernel_meter.h"

using namespace mw;

namespace {

template <class Call>
std::int64_t kernels_of(KernelMeter& meter, const Call& call) {
  meter.taken();
  call();
  return meter.taken();
}

}  // namespace

TEST_CASE("kernels are calls of libtorch that compute", "[kernel_meter]") {
  const at::Tensor x = at::ones({8, 8}), index = at::zeros({3}, at::kLong);
  const at::Tensor q = at::randn({1, 2, 16, 8});
  KernelMeter meter;
  meter.begin();
  CHECK(kernels_of(meter, [&] { at::mm(x, x); }) == 1);
  CHECK(kernels_of(meter, [&] { x.t().slice(0, 1, 3).view({2, 8}).unsqueeze(0); }) == 0);
  CHECK(kernels_of(meter, [&] { at::empty({8}, x.options()); }) == 0);
  CHECK(kernels_of(meter, [&] { at::zeros({8}, x.options()); }) == 1);
  CHECK(kernels_of(meter, [&] { x.to(at::kFloat); }) == 0);   // it is that already
  CHECK(kernels_of(meter, [&] { x.to(at::kDouble); }) == 1);  // allocates, and copies
  CHECK(kernels_of(meter, [&] { x.contiguous(); }) == 0);
  // Both ops allocate their result by another op of libtorch, and then compute.
  CHECK(kernels_of(meter, [&] { at::index_select(x, 0, index); }) == 1);
  CHECK(kernels_of(meter, [&] { at::_scaled_dot_product_flash_attention_for_cpu(q, q, q); }) == 1);
  CHECK(kernels_of(meter, [&] { at::silu(x).mul_(x).add_(x); }) == 3);
}

TEST_CASE("scopes of kernels of our own count, and those of others do not", "[kernel_meter]") {
  KernelMeter meter;
  meter.begin();
  for (int k = 0; k < 3; ++k) {
    CHECK(kernels_of(meter, [] { RECORD_FUNCTION("meshwright::fused", {}); }) == 1);
    CHECK(kernels_of(meter, [] { RECORD_FUNCTION("record_param_comms", {}); }) == 0);
  }
  const at::Tensor x = at::ones({8});
  CHECK(kernels_of(meter, [&] { meter.uncounted([&] { at::add(x, x); }); }) == 0);
  CHECK(kernels_of(meter, [&] { std::thread([&] { at::add(x, x); }).join(); }) == 0);
  meter.end();
  CHECK(kernels_of(meter, [&] { at::add(x, x); }) == 0);
}
