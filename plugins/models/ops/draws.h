// Numbers drawn at random by index: each is a function of the run's seed, the sample, the place in
// it, the op's name and the element, so any mix, a recomputation and a resumed run draw the same.
#pragma once

#include <ATen/ATen.h>

#include <numbers>

#include "expression.h"
#include "kernel.h"
#include "meshwright/engine/hash.h"
#include "meshwright/inputs.h"

namespace mw::kernel {

class Draws {
 public:
  // `numbers`: draw_number() of the tokens (batch, seq), viewed with the dims `to`, those of what
  // the op makes.
  Draws(const Op& op, const LocalDims& dims, at::Tensor numbers, const Dims& to)
      : numbers_(std::move(numbers)), sequence_(dims.at("seq").global) {
    Fnv1a<std::uint64_t> hash;
    hash.add(op.name.data(), op.name.size());
    key_ = hash.value();
    const auto count = static_cast<std::int64_t>(to.size());
    places_ = at::zeros(std::vector<std::int64_t>(to.size(), 1), numbers_.options());
    std::int64_t stride = 1;
    for (std::int64_t d = count; d-- > 0;) {
      const Dim dim = to[static_cast<std::size_t>(d)];
      if (dim == Dim("batch") || dim == Dim("seq")) continue;
      std::vector<std::int64_t> shape(to.size(), 1);
      shape[static_cast<std::size_t>(d)] = -1;
      places_ = places_ + places_of(dims.at(dim), numbers_).mul_(stride).view(shape);
      stride *= dims.at(dim).global;
    }
  }

  // A draw, by its place among Expressions' draws, for some elements: `part` is a function that
  // takes their part of a tensor with the dims of the output.
  template <class Part>
  at::Tensor draw(int which, const Part& part, at::ScalarType real) const {
    if (which != normal) return uniform(which, part, real);
    // Box and Muller 1958, of two draws that no expression names
    const at::Tensor size = uniform(normal, part, real).neg_().add_(1).log_().mul_(-2).sqrt_();
    return uniform(normal + 1, part, real).mul_(2 * std::numbers::pi).cos_().mul_(size);
  }
  // What it is where nothing is drawn: its mean.
  static double mean(int which) { return which == normal ? 0 : 0.5; }
  // Bytes that the kernels of a draw read and write, for so many elements of so many tokens.
  static double bytes(int which, std::int64_t elements, std::int64_t tokens) {
    constexpr double one = 2 * 10 * 16;  // integers of 8 bytes, twice mixed
    return one * static_cast<double>(which == of_sample ? tokens : elements) *
           (which == normal ? 2 : 1);
  }

 private:
  static constexpr int of_sample = 2, normal = 3;  // among Expressions' draws

  // In [0, 1), a multiple of 2^-24: the same number in every precision.
  template <class Part>
  at::Tensor uniform(int draw, const Part& part, at::ScalarType real) const {
    const auto key =
        static_cast<std::int64_t>(key_ + (static_cast<std::uint64_t>(draw) + 1) * golden);
    at::Tensor numbers = part(numbers_);
    if (draw == of_sample) {
      const at::Tensor seed = numbers.bitwise_right_shift(63 - seed_bits);
      const at::Tensor sample =
          numbers.bitwise_and((std::int64_t{1} << (63 - seed_bits)) - 1).floor_divide(sequence_);
      numbers = seed.bitwise_left_shift(63 - seed_bits).add_(sample);
    }
    at::Tensor bits = mixed(numbers.bitwise_xor(key));
    if (draw != of_sample) bits = mixed(bits + part(places_) * static_cast<std::int64_t>(golden));
    constexpr int used = 24;
    return logical_shift(bits, 64 - used).to(real).mul_(1.0 / (1 << used));
  }

  static constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;

  static at::Tensor logical_shift(const at::Tensor& bits, int by) {
    return bits.bitwise_right_shift(by).bitwise_and_((std::int64_t{1} << (64 - by)) - 1);
  }
  // finalise64 (engine/hash.h), whose operations of 64 bits are the same kernels on every device.
  static at::Tensor mixed(at::Tensor bits) {
    bits = bits.bitwise_xor(logical_shift(bits, 30))
               .mul_(static_cast<std::int64_t>(0xBF58476D1CE4E5B9));
    bits = bits.bitwise_xor_(logical_shift(bits, 27))
               .mul_(static_cast<std::int64_t>(0x94D049BB133111EB));
    return bits.bitwise_xor_(logical_shift(bits, 31));
  }

  at::Tensor numbers_, places_;
  std::int64_t sequence_;
  std::uint64_t key_ = 0;
};

}  // namespace mw::kernel
