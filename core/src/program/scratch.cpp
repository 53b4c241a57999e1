// Tries once what a library's kernel allocates for itself on this machine, keeps it in a cache,
// and estimates calls that are too large to try.
#include "program/scratch.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <thread>

#include "base/cache.h"
#include "base/cpu.h"
#include "meshwright/ledger.h"

namespace mw {
namespace {

constexpr std::size_t most_kept = 20000;
constexpr std::int64_t failed = -1;

std::string name_of(const LibraryCall& call, at::ScalarType type, int threads) {
  return fmt::format("{} {} {} on {}", call.name, fmt::join(call.sizes, " "), at::toString(type),
                     threads);
}

// Calls up to this are tried as they are, whatever a smaller one takes.
constexpr double always_tried_flops = 1 << 24;
// Of calls for whose larger sizes there is an estimate.
constexpr double most_tried_beside_estimate = 1 << 26;

// A product of which the largest size is halved until it is soon done; of powers of two, so that
// one trial serves all products that are about as large.
LibraryCall smaller(LibraryCall call) {
  for (std::size_t i = 0; i < 3; ++i) {
    const auto size = static_cast<std::uint64_t>(std::max<std::int64_t>(call.sizes[i], 1));
    const auto power = static_cast<std::int64_t>(std::bit_floor(size));
    call.flops *= static_cast<double>(power) / static_cast<double>(size);
    call.sizes[i] = power;
  }
  while (call.flops > cut_down_flops) {
    std::int64_t& largest = *std::max_element(call.sizes.begin(), call.sizes.begin() + 3);
    if (largest < 2) break;
    call.flops /= 2;
    largest /= 2;
  }
  return call;
}

}  // namespace

std::optional<std::int64_t> try_scratch(const LibraryCall& call, at::ScalarType type, int threads) {
  std::optional<std::int64_t> bytes;
  const int threads_before = at::get_num_threads();
  std::thread([&] {
    try {
      // As a rank's thread does (comm/rendezvous.cpp).
      at::get_num_threads();
      at::set_num_threads(threads);
      const std::function<void()> run = call.prepare(call.sizes, type);
      Ledger ledger;
      const MemoryWatch watch(ledger);
      run();
      bytes = ledger.peak_bytes() - ledger.bytes();
    } catch (const std::exception&) {  // the library has no such kernel, or there is no memory
    }
  }).join();
  at::set_num_threads(threads_before);
  return bytes;
}

ScratchBook::ScratchBook(const std::filesystem::path& folder)
    : file_(folder.empty() ? folder : folder / "scratch.json"), key_(kernels_key()) {
  const Cache cache = read_cache(file_);
  const auto found = cache.find(key_);
  if (found == cache.end() || !found->is_object() || found->size() > most_kept) return;
  for (const auto& [name, bytes] : found->items()) {
    if (bytes.is_number_integer() && bytes.get<std::int64_t>() >= 0)
      known_[name] = bytes.get<std::int64_t>();
  }
}

ScratchBook::~ScratchBook() {
  if (fresh_.empty() || file_.empty()) return;
  try {
    Cache cache = read_cache(file_);  // others may have written meanwhile
    Cache& own = cache[key_];
    if (!own.is_object() || own.size() > most_kept) own = Cache::object();
    for (const auto& [name, bytes] : fresh_) own[name] = bytes;
    write_cache(file_, cache);
  } catch (const std::exception&) {  // measured anew next time
  }
}

std::optional<std::int64_t> ScratchBook::measured(const LibraryCall& call, at::ScalarType type,
                                                  int threads) {
  const std::string name = name_of(call, type, threads);
  const std::lock_guard guard(lock_);
  auto known = known_.find(name);
  if (known == known_.end()) {
    const auto bytes = try_scratch(call, type, threads);
    if (bytes) fresh_[name] = *bytes;
    known = known_.emplace(name, bytes.value_or(failed)).first;
  }
  return known->second == failed ? std::nullopt : std::optional(known->second);
}

Scratch ScratchBook::of(const LibraryCall& call, at::ScalarType type, int threads) {
  const auto tried = [&]() -> std::optional<Scratch> {
    const auto bytes = measured(call, type, threads);
    return bytes ? std::optional(Scratch{*bytes, true}) : std::nullopt;
  };
  if (call.estimate != nullptr) {
    if (call.flops <= most_tried_beside_estimate) {
      if (const auto scratch = tried()) return *scratch;
    }
    return {call.estimate(call.sizes, static_cast<int>(c10::elementSize(type)), threads), false};
  }
  if (call.flops <= always_tried_flops) {
    if (const auto scratch = tried()) return *scratch;
  }
  if (call.sizes.size() < 3) return {0, false};  // no product
  const LibraryCall less = smaller(call);
  const auto part = measured(less, type, threads);
  // A kernel that takes nothing for a smaller one is not tried again and again by a search
  // over sizes.
  if (part && *part == 0) return {0, true};
  if (call.flops <= most_tried_flops) {
    if (const auto scratch = tried()) return *scratch;
  }
  const auto result = [](const LibraryCall& c) {
    return static_cast<double>(c.sizes[0]) * static_cast<double>(c.sizes[1]);
  };
  const double times = result(call) / std::max(result(less), 1.0);
  return {static_cast<std::int64_t>(std::min(static_cast<double>(part.value_or(0)) * times, 9e18)),
          false};
}

ScratchBook& scratch_book() {
  static ScratchBook book(cache_folder());
  return book;
}

}  // namespace mw
