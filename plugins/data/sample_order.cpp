// Finds a sample's offset: by arithmetic in sequential order, by a permutation in shuffled order.
#include "sample_order.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <bit>
#include <cmath>

#include "meshwright/engine/hash.h"
#include "meshwright/engine/text.h"

namespace mw {

Permutation::Permutation(std::uint64_t size, std::uint64_t key) : size_(size), key_(key) {
  const int bits = std::bit_width(size - 1);
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  mask_ = (std::uint64_t{1} << half_bits_) - 1;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  constexpr int rounds = 6;
  do {
    std::uint64_t left = index >> half_bits_, right = index & mask_;
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t next = left ^ (mix64(key_ + mix64(right * rounds + round)) & mask_);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

void EachFileOnce::take(const std::filesystem::path& file, Problems& problems) {
  struct stat info {};
  if (::stat(file.c_str(), &info) != 0) return;
  const auto [first, fresh] = taken_.try_emplace({info.st_dev, info.st_ino}, file);
  if (fresh) return;
  problems.add(Stage::options, "data.twice", "path",
               first->second == file ? fmt::format("{} is named twice", file.string())
                                     : fmt::format("{} and {} are the same file",
                                                   first->second.string(), file.string()),
               "name each file once; a copy of a file gives it a greater share");
}

void SampleOrder::add_options(Options& options) {
  options.integer("sequence", "tokens of one sample")
      .optional()
      .at_least(1)
      .unit("tokens")
      .choice("order", {"shuffled", "sequential"},
              "shuffled: windows in an order of the seed's, each once per epoch; "
              "sequential: in the order of the file")
      .fallback("shuffled")
      .list("part",
            "which of the tokens, as fractions of them: { 0, 0.9 } to train on, { 0.9, 1 } to hold "
            "out")
      .optional();
}

SampleOrder::SampleOrder(const Values& values, const DataContext& context)
    : sequential_(values.text("order") == "sequential"),
      seed_(static_cast<std::uint64_t>(context.seed)),
      sequence_(context.sequence) {
  if (values.has("part")) part_ = values.at("part");
}

void SampleOrder::take(std::int64_t all, const std::string& what, Problems& problems) {
  double from = 0, to = 1;
  if (!part_.is_null()) {
    const bool two =
        part_.is_array() && part_.size() == 2 && part_[0].is_number() && part_[1].is_number();
    if (two) {
      from = part_[0].get<double>();
      to = part_[1].get<double>();
    }
    if (!two || !(from >= 0) || !(to <= 1) || !(from < to)) {
      problems.add(Stage::options, "option.value", "part",
                   fmt::format("part: {} is no part of the tokens", lua_text(part_)),
                   "write two fractions, the lesser first: part = { 0.9, 1 }");
      return;
    }
  }
  first_ = std::llround(from * static_cast<double>(all));
  tokens_ = std::llround(to * static_cast<double>(all)) - first_;
  // Sequential offsets are taken mod (tokens - S - 1), which must not be zero.
  const std::int64_t beside = sequential_ ? 2 : 1;
  if (tokens_ >= sequence_ + beside) return;
  problems.add(
      Stage::options, "data.too-short", "path",
      fmt::format("{} holds {} tokens, one {} sample of sequence = {} needs {}", what, tokens_,
                  sequential_ ? "sequential" : "shuffled", sequence_, sequence_ + beside),
      tokens_ < 3 ? "give it a longer text"
                  : fmt::format("use a longer text, or sequence = {} or less", tokens_ - beside));
}

std::int64_t SampleOrder::offset(std::int64_t k, std::int64_t sequence) const {
  if (sequential_) return first_ + k * sequence % (tokens_ - sequence - 1);
  return first_ + shuffled_place(k, (tokens_ - 1) / sequence, seed_) * sequence;
}

std::int64_t shuffled_place(std::int64_t k, std::int64_t count, std::uint64_t seed) {
  const auto epoch = static_cast<std::uint64_t>(k / count);
  const Permutation shuffled(static_cast<std::uint64_t>(count), mix64(seed) ^ mix64(~epoch));
  return static_cast<std::int64_t>(shuffled(static_cast<std::uint64_t>(k % count)));
}

}  // namespace mw
