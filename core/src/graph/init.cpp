// Makes initial weights by counter-based random numbers, so that each rank computes only its own
// slice.
#include "graph/init.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <vector>

#include "meshwright/engine/hash.h"
#include "meshwright/threads.h"

namespace mw {
namespace {

using Block = std::array<std::uint32_t, 4>;

constexpr std::int64_t filled_by_thread = 1 << 14;  // least elements for each thread

// Calls fill(from, to) for parts of [0, count), one on each of the calling rank's threads.
// at::parallel_for, a template of libtorch's headers, would make a single call: it asks for a
// compiler's OpenMP, which this build does not turn on.
template <typename Fill>
void in_parts(std::int64_t count, const Fill& fill) {
  const std::int64_t parts =
      std::clamp<std::int64_t>(count / filled_by_thread, 1, at::get_num_threads());
  const std::int64_t each = (count + parts - 1) / parts;
  std::vector<std::jthread> others;
  for (std::int64_t from = each; from < count; from += each)
    others.push_back(
        start_thread([&fill, from, to = std::min(from + each, count)] { fill(from, to); }));
  fill(std::int64_t{0}, std::min(each, count));
}

// Philox4x32-10; the constants are the paper's.
Block philox(std::uint64_t counter, std::uint64_t key) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter);
  std::uint32_t c1 = static_cast<std::uint32_t>(counter >> 32), c2 = 0, c3 = 0;
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c0, p1 = std::uint64_t{0xCD9E8D57} * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {c0, c1, c2, c3};
}

std::uint64_t key_of(const std::string& name, std::uint64_t seed) {
  Fnv1a<std::uint64_t> hash;
  hash.add(name.data(), name.size());
  return finalise64(hash.value() ^ (seed * 0x9E3779B97F4A7C15));
}

std::array<double, 4> normals(std::uint64_t block, std::uint64_t key) {
  const Block bits = philox(block, key);
  std::array<double, 4> out;
  for (int pair = 0; pair < 2; ++pair) {
    // u is in (0, 1), so that its logarithm is finite.
    const double u = (static_cast<double>(bits[2 * pair]) + 0.5) * 0x1p-32;
    const double angle = 2 * std::numbers::pi * static_cast<double>(bits[2 * pair + 1]) * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(u));
    out[2 * pair] = radius * std::cos(angle);
    out[2 * pair + 1] = radius * std::sin(angle);
  }
  return out;
}

// Fills `out` with elements [first, first + count) of the whole tensor.
template <typename T>
void fill_run(T* out, std::int64_t first, std::int64_t count, std::uint64_t key, double std) {
  std::int64_t i = 0;
  while (i < count) {
    const std::int64_t element = first + i;
    const std::array<double, 4> four = normals(static_cast<std::uint64_t>(element / 4), key);
    for (std::int64_t j = element % 4; j < 4 && i < count; ++j, ++i) {
      out[i] = static_cast<T>(std * four[j]);
    }
  }
}

template <typename T>
void fill_normal(T* out, const std::vector<std::int64_t>& shape, const std::vector<Range>& ranges,
                 std::uint64_t key, double std) {
  // Finds runs of elements that are contiguous in the whole tensor: the last dims that the slice
  // has in full, and the dim before them.
  std::size_t split = shape.size();
  std::int64_t whole = 1;
  while (split > 0 && ranges[split - 1].size == shape[split - 1]) whole *= shape[--split];
  std::int64_t run = whole, stride = whole, base = 0;
  if (split > 0) {
    --split;
    run = ranges[split].size * whole;
    base = ranges[split].offset * whole;
    stride = shape[split] * whole;
  }
  std::int64_t runs = 1;
  for (std::size_t d = 0; d < split; ++d) runs *= ranges[d].size;
  const auto start_of = [&](std::int64_t r) {
    std::int64_t start = base, step = stride;
    for (std::size_t d = split; d-- > 0;) {
      start += (ranges[d].offset + r % ranges[d].size) * step;
      r /= ranges[d].size;
      step *= shape[d];
    }
    return start;
  };
  in_parts(runs * run, [&](std::int64_t from, std::int64_t to) {
    while (from < to) {
      const std::int64_t r = from / run, within = from % run;
      const std::int64_t count = std::min(run - within, to - from);
      fill_run(out + from, start_of(r) + within, count, key, std);
      from += count;
    }
  });
}

}  // namespace

void fill_slice(const at::Tensor& out, const Value& value, std::uint64_t seed,
                const std::vector<std::int64_t>& shape, const std::vector<Range>& ranges) {
  if (ranges.size() != shape.size() || static_cast<std::size_t>(out.dim()) != shape.size()) {
    throw std::invalid_argument("fill_slice: \"" + value.name +
                                "\": ranges, shape and tensor differ in dims");
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (out.size(static_cast<std::int64_t>(d)) != ranges[d].size || ranges[d].offset < 0 ||
        ranges[d].offset + ranges[d].size > shape[d]) {
      throw std::invalid_argument("fill_slice: \"" + value.name + "\": dim " + std::to_string(d) +
                                  ": the range is not of the tensor's size, or not in its shape");
    }
  }
  if (out.numel() == 0) return;
  switch (value.init.kind) {
    case Init::Kind::ones:
      out.fill_(1);
      return;
    case Init::Kind::zeros:
      out.zero_();
      return;
    case Init::Kind::normal:
      break;
  }
  const bool direct = out.is_cpu() && out.is_contiguous() &&
                      (out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble);
  // bf16 and fp16 weights are rounded from fp32, so that they equal copies of fp32 masters.
  const at::ScalarType type = out.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor made = direct ? out : at::empty(out.sizes(), at::TensorOptions(type));
  const std::uint64_t key = key_of(value.name, seed);
  if (type == at::kDouble) {
    fill_normal(made.data_ptr<double>(), shape, ranges, key, value.init.std);
  } else {
    fill_normal(made.data_ptr<float>(), shape, ranges, key, value.init.std);
  }
  if (!direct) out.copy_(made);
}

void fill(const at::Tensor& out, const Value& value, std::uint64_t seed) {
  std::vector<Range> ranges;
  for (const std::int64_t size : out.sizes()) ranges.push_back({0, size});
  fill_slice(out, value, seed, out.sizes().vec(), ranges);
}

}  // namespace mw
