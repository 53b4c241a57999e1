// Reads the CPU's model, features and cores, and sets the number of threads for kernels.
#include "meshwright/engine/host.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/full.h>
#include <ATen/ops/lgamma.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sinh.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include "meshwright/engine/control_groups.h"
#include "meshwright/engine/hash.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// The value in the first line of that name in /proc/cpuinfo; "" if there is no such line.
std::string in_cpuinfo(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t start = line.find_first_not_of(" \t:", name.size());
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

// A hash of the CPU's features, since virtual machines on different CPUs report the same model
// name, "Intel(R) Xeon(R) Processor".
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
  static const int count = allowed_cores();
  return count;
}

int thread_limit() {
  static const int limit = [] {
    const char* const text = std::getenv("OMP_THREAD_LIMIT");
    if (text == nullptr || *text == '\0') return std::numeric_limits<int>::max();
    int given = 0;
    const char* const end = text + std::strlen(text);
    if (std::from_chars(text, end, given).ptr != end || given < 1)
      throw Error(Stage::environment, "environment.value", "",
                  fmt::format("OMP_THREAD_LIMIT is {}, which is no number of threads", quote(text)),
                  "set it to 1 or more, or unset it");
    return given;
  }();
  return limit;
}

void keep_thread_limit() {
  // OpenMP respects the affinity, but not the CPU limit of a control group.
  const int most = std::min(thread_limit(), core_count());
  if (at::get_num_threads() > most) at::set_num_threads(most);
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

namespace {
thread_local const char* waits_for = nullptr;
}

HostWait::HostWait(const char* why) : before_(waits_for) {
  waits_for = why;
}

HostWait::~HostWait() {
  waits_for = before_;
}

const char* HostWait::current() {
  return waits_for;
}

void settle_vector_math() {
  // A static variable makes other threads wait until its initialisation has ended.
  static const bool settled = [] {
    using Function = at::Tensor& (*)(at::Tensor&, const at::Tensor&);
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({1}, 0.5, type);
      at::Tensor y = at::empty_like(x);
      for (const Function function :
           {Function{at::acos_out},  Function{at::asin_out},   Function{at::atan_out},
            Function{at::cos_out},   Function{at::cosh_out},   Function{at::erf_out},
            Function{at::erfc_out},  Function{at::erfinv_out}, Function{at::exp_out},
            Function{at::expm1_out}, Function{at::lgamma_out}, Function{at::log_out},
            Function{at::log10_out}, Function{at::log1p_out},  Function{at::log2_out},
            Function{at::rsqrt_out}, Function{at::sin_out},    Function{at::sinh_out},
            Function{at::sqrt_out},  Function{at::tan_out},    Function{at::tanh_out}}) {
        function(y, x);
      }
    }
    return true;
  }();
  static_cast<void>(settled);
}

}  // namespace mw
