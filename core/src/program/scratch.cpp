// Tries once what a library's kernel allocates for itself on this machine, keeps it in a cache,
// and estimates calls that are too large to try.
#include "meshwright/engine/scratch.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/ledger.h"
#include "meshwright/threads.h"

namespace mw {
namespace {

constexpr std::size_t most_kept = 20000;
constexpr std::int64_t failed = -1;

std::string name_of(const LibraryCall& call, at::ScalarType type, int threads) {
  return fmt::format("{} {} {} on {}", call.name, fmt::join(call.sizes, " "), at::toString(type),
                     threads);
}

// Most operations of a call that is tried, where there is an estimate for larger ones.
constexpr double most_tried_beside_estimate = 1 << 26;

// Whether the environment keeps oneDNN from some of this CPU's instructions.
bool restricted() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* const value = std::getenv(name);
    const std::string_view isa = value == nullptr ? "" : value;
    if (!isa.empty() && isa != "DEFAULT" && isa != "ALL") return true;
  }
  return false;
}

// Whether this CPU has instructions for products of such 2-byte numbers.
bool has_products_of(at::ScalarType type) {
#if defined(__x86_64__)
  if (type == at::kBFloat16) return __builtin_cpu_supports("avx512bf16");
#if (defined(__clang__) && __clang_major__ >= 16) || (!defined(__clang__) && __GNUC__ >= 12)
  if (type == at::kHalf) return __builtin_cpu_supports("avx512fp16");
#endif
#endif
  static_cast<void>(type);
  return false;
}

// Products of 2-byte numbers run at a hundredth of the others' speed where no instructions serve
// them.
double most_tried(at::ScalarType type) {
  const bool fast = c10::elementSize(type) > 2 || (has_products_of(type) && !restricted());
  return fast ? most_tried_flops : most_tried_flops / 16;
}

// Kernels treat sizes in blocks, and copy what is left over: which sizes are whole blocks decides
// over their scratch. A size is cut down by whole blocks, therefore; to a power of two of them, so
// that one trial serves all products that are about as large.
constexpr std::int64_t block = 64;

std::int64_t cut(std::int64_t size, std::int64_t blocks) {
  const auto whole = static_cast<std::uint64_t>(std::max<std::int64_t>(blocks, 1));
  return size < block ? size
                      : block * static_cast<std::int64_t>(std::bit_floor(whole)) + size % block;
}

// A product whose largest size of the first `sizes` ones has half as many blocks; false if all have
// but one.
bool halve(LibraryCall& call, std::ptrdiff_t sizes) {
  std::int64_t& largest = *std::max_element(call.sizes.begin(), call.sizes.begin() + sizes);
  if (largest < 2 * block) return false;
  const double before = static_cast<double>(largest);
  largest = cut(largest, largest / block / 2);
  call.flops *= static_cast<double>(largest) / before;
  return true;
}

// A product like this one that is soon done.
LibraryCall smaller(LibraryCall call) {
  for (std::size_t i = 0; i < 3; ++i) {
    const auto before = static_cast<double>(std::max<std::int64_t>(call.sizes[i], 1));
    call.sizes[i] = cut(call.sizes[i], call.sizes[i] / block);
    call.flops *= static_cast<double>(call.sizes[i]) / before;
  }
  while (call.flops > cut_down_flops && halve(call, 3)) {
  }
  return call;
}

double result_of(const LibraryCall& call) {
  return static_cast<double>(call.sizes[0]) * static_cast<double>(call.sizes[1]);
}

}  // namespace

std::optional<std::int64_t> try_scratch(const LibraryCall& call, at::ScalarType type, int threads) {
  std::optional<std::int64_t> bytes;
  const int threads_before = at::get_num_threads();
  in_own_thread([&] {
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
  });
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
  if (call.sizes.size() < 3) {  // no product
    if (const auto scratch = tried()) return *scratch;
    return {0, false};
  }
  if (call.flops <= most_tried(type)) {
    if (const auto scratch = tried()) return *scratch;
  }
  return {estimate(call, type, threads), false};
}

std::int64_t ScratchBook::estimate(const LibraryCall& call, at::ScalarType type, int threads) {
  const LibraryCall less = smaller(call);
  LibraryCall least = less;
  const bool two = halve(least, 2);
  const auto taken = [&](const LibraryCall& one) {
    return static_cast<double>(measured(one, type, threads).value_or(0));
  };
  const double bytes = taken(less);
  double of_result = bytes / std::max(result_of(less), 1.0);
  if (two) of_result = (bytes - taken(least)) / (result_of(less) - result_of(least));
  const double all = bytes + std::max(of_result, 0.0) * (result_of(call) - result_of(less));
  return static_cast<std::int64_t>(std::min(all, 9e18));
}

ScratchBook& scratch_book() {
  static ScratchBook book(cache_folder());
  return book;
}

}  // namespace mw
