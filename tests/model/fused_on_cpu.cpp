// Compiles texts of fused kernels for the CPU. Threads of a block are coroutines that change at
// barriers, so that reductions of blocks run as on a GPU.
#include "fused_on_cpu.h"

#include <c10/util/Half.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <stdexcept>

namespace mw::test {
namespace {

namespace fs = std::filesystem;

std::atomic<int> texts = 0, runs = 0;

// Without <cmath>, which would take half of the compiler's time.
constexpr const char* before = R"(
#include <ucontext.h>
#define FUNCTION(name) \
  float name(float x) { return __builtin_##name##f(x); } \
  double name(double x) { return __builtin_##name(x); }
namespace {
FUNCTION(exp) FUNCTION(log) FUNCTION(log1p) FUNCTION(sqrt) FUNCTION(tanh) FUNCTION(erf)
FUNCTION(sin) FUNCTION(cos) FUNCTION(fabs)
float pow(float x, float y) { return __builtin_powf(x, y); }
double pow(double x, double y) { return __builtin_pow(x, y); }
}
#define __global__
#define __device__
#define __shared__ static
struct Dim3 { int x; };
static Dim3 threadIdx, blockIdx, blockDim, gridDim;
static unsigned __float_as_uint(float x) { unsigned y; __builtin_memcpy(&y, &x, 4); return y; }
static float __uint_as_float(unsigned x) { float y; __builtin_memcpy(&y, &x, 4); return y; }
extern "C" {
float (*float_of_fp16)(unsigned short);
unsigned short (*fp16_of_float)(float);
}
static ucontext_t threads[512], all;
static char stacks[512][16384];
static void __syncthreads() { swapcontext(&threads[threadIdx.x], &all); }
template <class T> static T __shfl_xor_sync(unsigned, T x, int other) {
  static T given[512];
  given[threadIdx.x] = x;
  __syncthreads();
  const T y = given[threadIdx.x ^ other];
  __syncthreads();
  return y;
}
)";

constexpr const char* after = R"(
static const Argument* argument;
static int ended;
static void thread() { kernel(*argument); ++ended; }
extern "C" int launch(int blocks, int size, const void* given, int barriers) {
  argument = (const Argument*)given;
  gridDim.x = blocks; blockDim.x = size;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (int t = 0; t < size; ++t) {
      threadIdx.x = t;
      if (!barriers) { thread(); continue; }
      getcontext(&threads[t]);
      threads[t].uc_stack = {stacks[t], 0, sizeof(stacks[t])};
      threads[t].uc_link = &all;
      makecontext(&threads[t], thread, 0);
    }
    for (ended = 0; barriers && ended < size;) {
      if (ended != 0) return 1;  // some threads wait at a barrier that others do not reach
      for (int t = 0; t < size; ++t) {
        threadIdx.x = t;
        swapcontext(&all, &threads[t]);
      }
    }
  }
  return 0;
}
)";

float float_of(unsigned short bits) {
  return c10::Half(bits, c10::Half::from_bits());
}
unsigned short fp16_of(float x) {
  return c10::Half(x).x;
}

class Kernel final : public DeviceKernel {
 public:
  Kernel(void* library, bool barriers) : barriers_(barriers) {
    *static_cast<float (**)(unsigned short)>(symbol(library, "float_of_fp16")) = float_of;
    *static_cast<unsigned short (**)(float)>(symbol(library, "fp16_of_float")) = fp16_of;
    launch_ = reinterpret_cast<Launch*>(symbol(library, "launch"));
  }
  void launch(std::int64_t blocks, int threads, const void* argument) const override {
    const std::lock_guard lock(mutex_);
    ++runs;
    if (launch_(static_cast<int>(blocks), threads, argument, barriers_ ? 1 : 0) != 0)
      throw std::logic_error("a barrier that only some threads reach");
  }

 private:
  using Launch = int(int, int, const void*, int);
  static void* symbol(void* library, const char* name) {
    void* const found = ::dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(name);
    return found;
  }
  const bool barriers_;
  Launch* launch_ = nullptr;
  mutable std::mutex mutex_;  // the threads of a block are variables of the library
};

void write(const fs::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

}  // namespace

int fused_compiled() {
  return texts;
}
int fused_runs() {
  return runs;
}

std::unique_ptr<const DeviceKernel> FusedOnCpu::compile(at::Device, const std::string& text,
                                                        const char*) const {
  ++texts;
  if (const char* const folder = std::getenv("MESHWRIGHT_FUSED_TEXTS")) {
    write(fs::path(folder) / fmt::format("{:016x}.cu", std::hash<std::string>()(text)), text);
    return nullptr;
  }
  std::string made = (fs::temp_directory_path() / "meshwright-fused-XXXXXX").string();
  if (::mkdtemp(made.data()) == nullptr) throw std::runtime_error("no temporary folder");
  const fs::path folder = made;
  write(folder / "kernel.cpp", before + text + after);
  const char* const compiler = std::getenv("MESHWRIGHT_CXX");
  const std::string command = fmt::format(
      "{} -std=c++20 -O1 -w -fno-strict-aliasing -fPIC -shared -o {}/kernel.so {}/kernel.cpp "
      "> {}/said 2>&1",
      compiler != nullptr ? compiler : "c++", made, made, made);
  const bool done = std::system(command.c_str()) == 0;
  void* const library =
      done ? ::dlopen((folder / "kernel.so").c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  std::ifstream said(folder / "said");
  const std::string what{std::istreambuf_iterator<char>(said), {}};
  fs::remove_all(folder);
  if (library == nullptr) throw std::runtime_error(what + "\n" + text);
  return std::make_unique<Kernel>(library, text.find("__syncthreads") != std::string::npos);
}

}  // namespace mw::test
