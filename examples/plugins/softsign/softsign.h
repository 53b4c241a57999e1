// What softsign does to an element, and how its kernels are called.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ON_BOTH __host__ __device__
#else
#define ON_BOTH
#endif

// x / (1 + |x|), and its derivative.
template <class Real>
ON_BOTH Real softsign(Real x) {
  return x / (1 + (x < 0 ? -x : x));
}
template <class Real>
ON_BOTH Real softsign_slope(Real x) {
  const Real d = 1 + (x < 0 ? -x : x);
  return 1 / (d * d);
}

enum class Number : int { fp32, fp64, bf16, fp16 };

// Pointers to memory of the GPU, of `count` elements each.
struct Elements {
  const void* x = nullptr;
  const void* gradient = nullptr;  // the result's gradient; null: the call is a forward
  void* out = nullptr;             // the result, or the gradient of x
  bool adds = false;               // backward: whether to add to `out`
  std::int64_t count = 0;
  Number number = Number::fp32;
};
// Queues the kernel on the stream, a cudaStream_t. Returns what CUDA says: null, or an error.
extern "C" const char* softsign_on_cuda(const Elements* elements, void* stream);
