// NVRTC, the files that keep what it made, and the launch of kernels by NVIDIA's driver.
#include "compiler.h"

#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <vector>

#include "driver.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/hash.h"

namespace cuda {
namespace {

namespace fs = std::filesystem;

template <class... T>
void call(void* library, const char* name, T... arguments) {
  const int error = function<int(T...)>(library, name)(arguments...);
  if (error != 0) throw std::runtime_error(fmt::format("{} ended with error {}", name, error));
}

// The NVRTC library. One of libtorch's libraries loads NVRTC from where libtorch's wheels put
// it; if it is missing, the system's NVRTC is taken.
void* nvrtc(const fs::path& libraries) {
  static void* const library = [&] {
    const std::string own = libraries / "libcaffe2_nvrtc.so";
    void* found = nullptr;
    for (const char* const name : {own.c_str(), "libnvrtc.so.13", "libnvrtc.so.12"}) {
      if (found == nullptr) found = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    }
    return found;
  }();
  if (library == nullptr) throw std::runtime_error("there is no libnvrtc.so.13 or libnvrtc.so.12");
  return library;
}

// What NVRTC returns as a size and as so many bytes.
std::string returned(void* library, void* program, const char* size_name, const char* name) {
  std::size_t size = 0;
  call(library, size_name, program, &size);
  std::string text(size, '\0');
  call(library, name, program, text.data());
  return text;
}

std::string compiled(void* library, const std::string& text, const std::string& architecture) {
  void* program = nullptr;
  call(library, "nvrtcCreateProgram", &program, text.c_str(), "kernel.cu", 0,
       static_cast<const char* const*>(nullptr), static_cast<const char* const*>(nullptr));
  const std::string target = "--gpu-architecture=" + architecture;
  std::array<const char*, 2> options{target.c_str(), "--std=c++17"};
  std::string made, fault;
  try {
    call(library, "nvrtcCompileProgram", program, 2, options.data());
    made = returned(library, program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN");
  } catch (const std::exception& error) {
    fault = fmt::format("{}: {}", error.what(),
                        returned(library, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog"));
  }
  call(library, "nvrtcDestroyProgram", &program);
  if (!fault.empty()) throw std::runtime_error(fault);
  return made;
}

std::string sum_of(const std::string& bytes) {
  mw::Fnv1a<std::uint64_t> sum;
  sum.add(bytes.data(), bytes.size());
  return fmt::format("{:016x}", sum.value());
}

// A file holds a sum of what follows: one that is damaged counts as none.
std::optional<std::string> read_kept(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (bytes.size() <= 16) return std::nullopt;
  const std::string sum = bytes.substr(0, 16);
  bytes.erase(0, 16);
  if (sum_of(bytes) != sum) return std::nullopt;
  return bytes;
}

// Modules stay loaded to the process's end: work that is queued may need them.
class Kernel final : public mw::DeviceKernel {
 public:
  Kernel(at::Device device, int handle, const std::string& code, const char* name)
      : device_(device) {
    const c10::DeviceGuard guard(device_);
    call(driver(), "cuDevicePrimaryCtxRetain", &context_, handle);
    make_current();
    void* module = nullptr;
    call(driver(), "cuModuleLoadData", &module, static_cast<const void*>(code.data()));
    call(driver(), "cuModuleGetFunction", &function_, module, name);
  }

  void launch(std::int64_t blocks, int threads, const void* argument) const override {
    const c10::DeviceGuard guard(device_);
    make_current();
    void* const stream = mw::native_stream(device_);
    std::array<const void*, 1> arguments{argument};
    call(driver(), "cuLaunchKernel", function_, static_cast<unsigned>(blocks), 1U, 1U,
         static_cast<unsigned>(threads), 1U, 1U, 0U, stream, arguments.data(),
         static_cast<void**>(nullptr));
  }

 private:
  // CUDA's runtime gives a thread a context only when it first needs one.
  void make_current() const {
    void* now = nullptr;
    call(driver(), "cuCtxGetCurrent", &now);
    if (now == nullptr) call(driver(), "cuCtxSetCurrent", context_);
  }

  const at::Device device_;
  void* context_ = nullptr;
  void* function_ = nullptr;
};

}  // namespace

std::string binary(const std::string& text, const std::string& architecture,
                   const fs::path& libraries) {
  void* const library = nvrtc(libraries);
  int major = 0, minor = 0;
  call(library, "nvrtcVersion", &major, &minor);
  const std::string key = fmt::format("{}.{} {}\n{}", major, minor, architecture, text);
  const fs::path folder = mw::cache_folder() / "kernels", file = folder / (sum_of(key) + ".cubin");
  if (auto kept = read_kept(file)) return std::move(*kept);
  std::string made = compiled(library, text, architecture);
  std::error_code error;  // without the file, it is compiled again next time
  fs::create_directories(folder, error);
  mw::replace_whole(file, sum_of(made) + made);
  return made;
}

std::unique_ptr<const mw::DeviceKernel> compile(at::Device device, const std::string& text,
                                                const char* name, const fs::path& libraries) {
  constexpr int major_attribute = 75, minor_attribute = 76;
  int handle = 0, major = 0, minor = 0;
  call(driver(), "cuDeviceGet", &handle, static_cast<int>(device.index()));
  call(driver(), "cuDeviceGetAttribute", &major, major_attribute, handle);
  call(driver(), "cuDeviceGetAttribute", &minor, minor_attribute, handle);
  const std::string code = binary(text, fmt::format("sm_{}{}", major, minor), libraries);
  return std::make_unique<Kernel>(device, handle, code, name);
}

}  // namespace cuda
