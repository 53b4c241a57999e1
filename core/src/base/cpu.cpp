// Asks the system for the CPU's model, features and cores.
#include "meshwright/engine/cpu.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <thread>

#include "meshwright/engine/hash.h"

namespace mw {
namespace {

// What the first line of that name says; "" if there is none.
std::string in_cpuinfo(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t start = line.find_first_not_of(" \t:", name.size());
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

// Virtual machines of different CPUs bear one name: "Intel(R) Xeon(R) Processor".
std::string features() {
  Fnv1a<std::uint32_t> hash;
  const std::string names = in_cpuinfo("flags") + in_cpuinfo("Features");
  hash.add(names.data(), names.size());
  return fmt::format("{:08x}", hash.value());
}

}  // namespace

std::string cpu_model() {
  const std::string model = in_cpuinfo("model name");
  return model.empty() ? "unknown CPU" : model;
}

int core_count() {
  static const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return count;
}

int thread_limit() {
  static const int limit = [] {
    const char* const text = std::getenv("OMP_THREAD_LIMIT");
    const int given = text == nullptr ? 0 : std::atoi(text);
    return given > 0 ? given : std::numeric_limits<int>::max();
  }();
  return limit;
}

void keep_thread_limit() {
  if (at::get_num_threads() > thread_limit()) at::set_num_threads(thread_limit());
}

int threads_of_rank(int ranks, int asked, int cores) {
  const int wanted = asked > 0 ? asked : std::max(1, cores / std::max(1, ranks));
  return std::min(wanted, thread_limit());
}

std::string kernels_key() {
  std::string key = fmt::format("{}, features {}, {}, torch {}", cpu_model(), features(),
                                at::get_cpu_capability(), TORCH_VERSION);
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS",
                           "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_ENABLE_INSTRUCTIONS"}) {
    if (const char* value = std::getenv(name)) key += fmt::format(", {}={}", name, value);
  }
  return key;
}

}  // namespace mw
