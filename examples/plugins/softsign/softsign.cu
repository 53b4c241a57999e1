// The kernels of softsign: one pass over memory each way.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "softsign.h"

namespace {

// The type in which an element is computed.
template <class Stored>
struct Computed {
  using Real = float;
};
template <>
struct Computed<double> {
  using Real = double;
};

template <class Stored>
__global__ void kernel(Elements e) {
  using Real = typename Computed<Stored>::Real;
  const auto* x = static_cast<const Stored*>(e.x);
  const auto* gradient = static_cast<const Stored*>(e.gradient);
  auto* out = static_cast<Stored*>(e.out);
  const std::int64_t step = std::int64_t{blockDim.x} * gridDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < e.count;
       i += step) {
    const auto at = static_cast<Real>(x[i]);
    Real made = softsign(at);
    if (gradient != nullptr) made = softsign_slope(at) * static_cast<Real>(gradient[i]);
    if (e.adds) made += static_cast<Real>(out[i]);
    out[i] = static_cast<Stored>(made);
  }
}

template <class Stored>
void launch(const Elements& e, cudaStream_t stream) {
  constexpr int threads = 256, most_blocks = 4096;
  const std::int64_t blocks = (e.count + threads - 1) / threads;
  const auto grid = static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks);
  kernel<Stored><<<grid, threads, 0, stream>>>(e);
}

}  // namespace

extern "C" const char* softsign_on_cuda(const Elements* e, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (e->count == 0) return nullptr;
  switch (e->number) {
    case Number::fp32:
      launch<float>(*e, on);
      break;
    case Number::fp64:
      launch<double>(*e, on);
      break;
    case Number::bf16:
      launch<__nv_bfloat16>(*e, on);
      break;
    case Number::fp16:
      launch<__half>(*e, on);
      break;
  }
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
