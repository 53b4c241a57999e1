// Measures this machine (matrix products, elementwise work, copies, wake-ups) and keeps the
// result for later runs; asks the system how much memory this process may use.
#include "predict/device.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "common/core_meter.h"
#include "common/run_timing.h"
#include "common/statistics.h"
#include "meshwright/engine/control_groups.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/text.h"
#include "meshwright/ops.h"
#include "meshwright/options.h"
#include "meshwright/threads.h"

namespace mw {
namespace {

// Seconds that this thread had a core: other programs on the machine do not count.
double worked() {
  return core_seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

// Seconds of one call: the median of batches of `calls` that fit into `budget`, after one call to
// warm up. The quickest batch would have a speed that a step never has.
template <class Body>
double median_seconds(double budget, int calls, Body&& body) {
  body();
  std::vector<double> seconds;
  const double end = worked() + budget;
  do {
    const double start = worked();
    for (int i = 0; i < calls; ++i) body();
    seconds.push_back((worked() - start) / calls);
  } while (worked() < end);
  return median(std::move(seconds));
}

constexpr std::int64_t small = 64, large = 384;

double gemm_flops(std::int64_t n) {
  return 2.0 * static_cast<double>(n * n * n);
}

LocalDims dims_of(std::initializer_list<std::pair<const char*, std::int64_t>> sizes) {
  LocalDims dims;
  for (const auto& [dim, size] : sizes) dims.set({dim, 0, size, size, {}});
  return dims;
}

// A linear layer's product of n by n matrices, as a plan's op computes it, with the library that
// the op uses on this machine.
class LinearProduct {
 public:
  LinearProduct(std::int64_t n, at::ScalarType type)
      : dims_(dims_of({{"batch", n}, {"hidden", n}, {"ffn", n}})), matrix_(at::ones({n, n}, type)) {
    op_.type = linear();
    op_.inputs = {{-1, {"batch", "hidden"}}, {-1, {"ffn", "hidden"}}};
    op_.output_dims = {{"batch", "ffn"}};
  }
  void operator()() const {
    OpCall call{dims_, {matrix_, matrix_}};
    op_.type->forward(op_, call);
  }

 private:
  LocalDims dims_;
  at::Tensor matrix_;
  Op op_;
};

double gemm_seconds(std::int64_t n, at::ScalarType type, double budget) {
  return median_seconds(budget, n == small ? 20 : 1, LinearProduct(n, type));
}

GemmFit fit_gemm(at::ScalarType type) {
  const double s = gemm_seconds(small, type, 0.008), l = gemm_seconds(large, type, 0.02);
  GemmFit fit;
  fit.rate = (gemm_flops(large) - gemm_flops(small)) / std::max(l - s, 1e-9);
  fit.overhead = std::max(s - gemm_flops(small) / fit.rate, 1e-9);
  return fit;
}

// exp counts as 10 operations (as the ops count it), a multiplication as one.
double pointwise_rate(at::ScalarType type) {
  const std::int64_t n = 16384;
  const at::Tensor x = at::full({n}, 0.5, type), y = at::full({n}, 0.5, type);
  at::Tensor z = at::empty({n}, type);
  const double seconds = median_seconds(0.008, 10, [&] {
    at::mul_out(z, x, y);
    z.add_(x);
    at::exp_out(z, z);
    z.mul_(y);
  });
  return 13.0 * n / seconds;
}

// Share of `rate` that attention's kernel reaches, by a head's size. The kernel's products are
// small: narrow heads reach a fifth of what large products do.
struct AttentionShares {
  LogCurve forward, backward;
};

// Measures causal attention of 256 tokens, as a plan's op computes it.
AttentionShares attention_shares(double rate) {
  constexpr std::int64_t heads = 4, tokens = 256;
  std::vector<std::pair<double, double>> forward, backward;
  for (const std::int64_t width : {16, 64, 128}) {
    Op op;
    op.type = attention();
    const Dims tensor{"batch", "seq", "heads", "head_dim"},
        keys{"batch", "keys", "heads", "head_dim"};
    op.inputs = {{-1, tensor}, {-1, keys}, {-1, keys}};
    op.output_dims = {tensor};
    const LocalDims dims = dims_of(
        {{"batch", 1}, {"seq", tokens}, {"keys", tokens}, {"heads", heads}, {"head_dim", width}});
    const at::Tensor q = at::full({1, tokens, heads, width}, 0.5, at::kFloat);
    OpCall call{dims, {q, q, q}};
    const auto attend = [&] { op.type->forward(op, call); };
    const auto attend_backward = [&] {
      OpCall back{dims, call.inputs, call.outputs, call.saved, {q}};
      back.wants.assign(3, true);
      op.type->backward(op, back);
    };
    const auto share = [&](Piece piece, double seconds) {
      const double flops = op.type->cost(op, piece, dims, 4).executed;
      return std::pair<double, double>(width, std::clamp(flops / (seconds * rate), 1e-3, 1.0));
    };
    forward.push_back(share(Piece::forward, median_seconds(0.008, 1, attend)));
    backward.push_back(share(Piece::backward, median_seconds(0.01, 1, attend_backward)));
  }
  return {LogCurve(forward), LogCurve(backward)};
}

double copy_rate(std::int64_t pairs = 16) {
  const std::int64_t n = 1 << 20;  // 4 MiB: the size of an activation
  // A step comes back to an activation after it has touched all others, when no cache holds it. So
  // copies go in turn through more memory than the caches have.
  const at::Tensor from = at::ones({pairs, n}, at::kFloat);
  const at::Tensor to = at::ones({pairs, n}, at::kFloat);
  std::int64_t ring_step = 0;
  return 8.0 * n / median_seconds(0.03, 1, [&] {
           to[ring_step].copy_(from[ring_step]);
           ring_step = (ring_step + 1) % pairs;
         });
}

double call_overhead() {
  const at::Tensor x = at::ones({8}, at::kFloat);
  at::Tensor y = at::ones({8}, at::kFloat);
  return median_seconds(0.004, 50, [&] { y.add_(x); });
}

// Seconds of half a round trip between two threads that sleep.
double latency_seconds() {
  std::atomic<int> ring_step{0};
  constexpr int rounds = 200;
  std::jthread other = start_thread([&] {
    for (int i = 0; i < rounds; ++i) {
      ring_step.wait(2 * i);
      ring_step.store(2 * i + 2);
      ring_step.notify_one();
    }
  });
  const double start = seconds_now();
  for (int i = 0; i < rounds; ++i) {
    ring_step.store(2 * i + 1);
    ring_step.notify_one();
    for (int seen = ring_step.load(); seen != 2 * i + 2; seen = ring_step.load())
      ring_step.wait(seen);
  }
  const double seconds = seconds_now() - start;
  other.join();
  return seconds / (2 * rounds);
}

// The mean of what `measure` returns on each core while all cores run it.
template <class Measure>
double mean_of_all_cores(int cores, const Measure& measure) {
  std::vector<double> found(static_cast<std::size_t>(cores));
  std::vector<std::jthread> threads;
  for (double& own : found) {
    threads.push_back(start_thread([&own, &measure] {
      at::set_num_threads(1);
      own = measure();
    }));
  }
  threads.clear();  // joins the threads
  return std::accumulate(found.begin(), found.end(), 0.0) / cores;
}

double copy_rate_at_once(int cores, double alone) {
  if (cores == 1) return alone;
  // Many cores share their caches, so each copies through less memory: a pair of tensors has 8 MiB,
  // and all cores together take 1 GiB, or, beyond 64 cores, 16 MiB each.
  const std::int64_t pairs = std::clamp<std::int64_t>(128 / cores, 2, 16);
  return std::min(alone, mean_of_all_cores(cores, [pairs] { return copy_rate(pairs); }));
}

// What remains of a core's GEMM rate when every core works.
double rate_of_all_cores(int cores, double alone) {
  if (cores == 1) return 1;
  const double mean = mean_of_all_cores(cores, [] {
    const LinearProduct product(large, at::kFloat);
    product();
    int calls = 0;
    const double start = worked();
    do {
      product();
      ++calls;
    } while (worked() - start < 0.03);
    return (worked() - start) / calls;
  });
  return std::clamp(alone / mean, 0.1, 1.0);
}

std::string cache_key() {
  return fmt::format("{}, {} cores, {}", kernels_key(), core_count(), 8);
}

double positive(const Json& json, const char* key) {
  const double value = json.at(key).get<double>();
  if (!(value > 0) || !std::isfinite(value)) throw std::invalid_argument(key);
  return value;
}

Json fit_json(const GemmFit& fit) {
  return {{"rate", fit.rate}, {"overhead", fit.overhead}};
}
GemmFit read_fit(const Json& json) {
  return {positive(json, "rate"), positive(json, "overhead")};
}

}  // namespace

int Device::threads_of(int ranks, int asked) const {
  return threads_of_rank(ranks, asked, cores);
}

double Device::peak(int ranks, int element, int threads) const {
  const double rate = gemm(element).rate;
  const int busy = std::min(ranks * threads_of(ranks, threads), cores);
  return rate * busy * (busy == cores ? all_cores : 1);
}

Json Device::to_json() const {
  return {{"name", name},
          {"gemm16", fit_json(gemm16)},
          {"gemm32", fit_json(gemm32)},
          {"gemm64", fit_json(gemm64)},
          {"pointwise16", pointwise16},
          {"pointwise32", pointwise32},
          {"pointwise64", pointwise64},
          {"attention", attention.to_json()},
          {"attention_backward", attention_backward.to_json()},
          {"bandwidth", bandwidth},
          {"bandwidth_at_once", bandwidth_at_once},
          {"own_cache", own_cache},
          {"op_overhead", op_overhead},
          {"latency", latency},
          {"cores", cores},
          {"all_cores", all_cores},
          {"memory", memory},
          {"others_cores", number_or_null(others)}};
}

Device Device::from_json(const Json& json) {
  Device d;
  d.name = json.at("name").get<std::string>();
  d.gemm16 = read_fit(json.at("gemm16"));
  d.gemm32 = read_fit(json.at("gemm32"));
  d.gemm64 = read_fit(json.at("gemm64"));
  d.pointwise16 = positive(json, "pointwise16");
  d.pointwise32 = positive(json, "pointwise32");
  d.pointwise64 = positive(json, "pointwise64");
  if (json.contains("attention")) {  // calibrations of an older version have no curves of attention
    d.attention = LogCurve::from_json(json.at("attention"));
    d.attention_backward = LogCurve::from_json(json.at("attention_backward"));
  }
  d.bandwidth = positive(json, "bandwidth");
  d.bandwidth_at_once = positive(json, "bandwidth_at_once");
  d.own_cache = json.at("own_cache").get<double>();
  if (!(d.own_cache >= 0)) throw std::invalid_argument("own_cache");
  d.op_overhead = positive(json, "op_overhead");
  d.latency = positive(json, "latency");
  const auto cores = whole_number(json.at("cores")), memory = whole_number(json.at("memory"));
  if (!cores || *cores < 1 || *cores > 1'000'000 || !memory || *memory <= 0)
    throw std::invalid_argument("cores, memory");
  d.cores = static_cast<int>(*cores);
  d.all_cores = positive(json, "all_cores");
  d.memory = *memory;
  d.others = number_under(json, "others_cores");
  return d;
}

Device measure_device() {
  const int threads_before = at::get_num_threads();
  CoreMeter meter(system_root(), seconds_now(), cpu_seconds_now());
  Device d;
  // In a thread of its own: ATen's thread count belongs to the thread that sets it.
  in_own_thread([&d] {
    at::set_num_threads(1);
    // The guards under which a rank calls its kernels.
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    d.name = cpu_model();
    d.gemm16 = fit_gemm(at::kBFloat16);
    d.gemm32 = fit_gemm(at::kFloat);
    d.gemm64 = fit_gemm(at::kDouble);
    d.pointwise16 = pointwise_rate(at::kBFloat16);
    d.pointwise32 = pointwise_rate(at::kFloat);
    d.pointwise64 = pointwise_rate(at::kDouble);
    const AttentionShares attention = attention_shares(d.gemm32.rate);
    d.attention = attention.forward;
    d.attention_backward = attention.backward;
    d.bandwidth = copy_rate();
    d.op_overhead = call_overhead();
    d.latency = latency_seconds();
    d.cores = core_count();
    d.bandwidth_at_once = copy_rate_at_once(d.cores, d.bandwidth);
    d.own_cache = std::max(0.0, static_cast<double>(sysconf(_SC_LEVEL2_CACHE_SIZE)));
    d.all_cores = rate_of_all_cores(d.cores, d.gemm32.overhead + gemm_flops(large) / d.gemm32.rate);
    d.memory = machine_memory();
  });
  at::set_num_threads(threads_before);
  d.others = meter.take(seconds_now(), cpu_seconds_now()).others;
  return d;
}

Device this_device(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "devices.json";
  const std::string key = cache_key();
  Cache cache = read_cache(file);
  std::optional<Device> known;
  if (const auto found = cache.find(key); found != cache.end()) {
    try {
      known = Device::from_json(*found);
      // An entry of another form, or a damaged one, is measured anew.
    } catch (const std::exception&) {
    }
  }
  if (known && !are_busy(known->others, known->cores)) return *known;
  Device device = measure_device();
  if (known && known->others <= device.others) return *known;
  cache[key] = device.to_json();
  write_cache(file, cache);
  return device;
}

const Device& this_device() {
  static const Device device = [] {
    Device found = this_device(cache_folder());
    found.memory = machine_memory();  // the limit of a container does not belong to the CPU
    return found;
  }();
  return device;
}

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

// The number in a file of a control group; no limit if the file has no number ("max") or does not
// exist. Version 1 writes a huge number for no limit.
std::int64_t limit_in(const fs::path& file) {
  std::ifstream stream(file);
  std::uint64_t bytes = 0;
  if (!(stream >> bytes) || bytes == 0 || bytes > static_cast<std::uint64_t>(no_limit))
    return no_limit;
  return static_cast<std::int64_t>(bytes);
}

std::int64_t of_groups(const fs::path& root) {
  std::int64_t least = no_limit;
  for (const ControlGroup& group : control_groups("memory", root)) {
    // Beyond memory.high the kernel lets processes crawl.
    for (const char* file : {"memory.limit_in_bytes", "memory.max", "memory.high"})
      if (group.first_version == (std::string_view(file) == "memory.limit_in_bytes"))
        least = std::min(least, limit_in(group.folder / file));
  }
  return least;
}

std::int64_t of_machine(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string word; file >> word;) {
    std::int64_t kibibytes = 0;
    if (word == "MemTotal:" && file >> kibibytes) return kibibytes * 1024;
  }
  return static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
}

std::int64_t of_process() {
  std::int64_t least = no_limit;
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    least = std::min(least, static_cast<std::int64_t>(
                                std::min<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(no_limit))));
  }
  return least;
}

}  // namespace

std::int64_t machine_memory(const fs::path& root) {
  return std::min({of_machine(root), of_groups(root), root == "/" ? of_process() : no_limit});
}

}  // namespace mw
