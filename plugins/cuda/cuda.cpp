// NVIDIA's GPUs, by libtorch's CUDA library. The module is built without that library and without
// CUDA's headers, so that every build has it: it says what is missing, and loads nothing of CUDA's
// until a run needs it.
#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "compiler.h"
#include "driver.h"
#include "meshwright/error.h"
#include "meshwright/platform.h"
#include "meshwright/plugin.h"

namespace {

namespace fs = std::filesystem;

// libtorch's CUDA side lies beside the libtorch that this program runs with.
fs::path side_of_cuda() {
  Dl_info libtorch{};
  ::dladdr(reinterpret_cast<const void*>(&at::globalContext), &libtorch);
  return fs::path(libtorch.dli_fname).parent_path() / "libtorch_cuda.so";
}

// The oldest driver that runs programs of the CUDA whose runtime library libtorch brought.
std::string_view oldest_driver() {
  void* const runtime = ::dlopen("libcudart.so.12", RTLD_LAZY | RTLD_NOLOAD);
  if (runtime == nullptr) return "580";
  ::dlclose(runtime);
  return "525";
}

class Cuda final : public mw::Platform {
 public:
  at::DeviceType type() const override { return at::kCUDA; }

  void load() const override {
    const fs::path library = side_of_cuda();
    std::error_code error;
    if (!fs::exists(library, error))
      throw mw::Error(mw::Stage::environment, "device.build", "device",
                      "this installation has no " + library.filename().string(),
                      "./meshwright build --preset cuda makes build-cuda/bin/meshwright, which has "
                      "CUDA's libraries");
    if (::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) return;
    throw mw::Error(mw::Stage::environment, "device.build", "device", ::dlerror(),
                    "a library that it names and that is not there comes with ./meshwright build "
                    "--preset cuda, or with CUDA");
  }

  // The reason without libtorch's advice, which is for builds other than this one.
  std::string why_none() const override {
    const std::string text = Platform::why_none();
    const std::size_t advice = std::min(text.find(" Please "), text.find(" Did you "));
    if (advice == std::string::npos) return text + visible();
    // CUDA's error number, after the advice
    const std::size_t number = text.find("Error ", advice);
    return text.substr(0, advice) + (number == std::string::npos ? "" : " " + text.substr(number)) +
           visible();
  }

  std::string needs() const override {
    const char* const hides = visible().empty()
                                  ? ""
                                  : "; CUDA_VISIBLE_DEVICES names numbers of GPUs that "
                                    "nvidia-smi -L lists, or is left out";
    return fmt::format(
        "GPUs need NVIDIA's driver, {} or newer, which nvidia-smi shows{}; CPUs need none{}",
        oldest_driver(),
        oldest_driver() == "580" ? " (525 or newer for --preset cuda12, with CUDA 12)" : "", hides);
  }

  // The GPU's UUID, as nvidia-smi -L lists it; for a part of a GPU (MIG), the UUID of that part.
  std::string id(at::Device device) const override {
    std::array<unsigned char, 16> uuid{};
    int handle = 0;
    const auto get = reinterpret_cast<int (*)(int*, int)>(symbol("cuDeviceGet"));
    const auto name = reinterpret_cast<int (*)(void*, int)>(symbol("cuDeviceGetUuid_v2"));
    if (get == nullptr || name == nullptr || get(&handle, device.index()) != 0 ||
        name(uuid.data(), handle) != 0)
      throw mw::Error(mw::Stage::environment, "device.id", "device",
                      fmt::format("device: NVIDIA's driver does not say which GPU {} is",
                                  static_cast<int>(device.index())),
                      "nvidia-smi -L must list the UUIDs of all GPUs");
    std::string text = "GPU-";
    for (std::size_t i = 0; i < uuid.size(); ++i) {
      const bool begins = i == 4 || i == 6 || i == 8 || i == 10;
      text += fmt::format("{}{:02x}", begins ? "-" : "", uuid[i]);
    }
    return text;
  }

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 11
  // This libtorch says it in its CUDA library alone, whose class CUDAStream is a c10::Stream.
  void* native(const c10::Stream& stream) const override {
    using Native = void*(const c10::Stream*);
    static const auto native = [] {
      const std::string side = side_of_cuda().parent_path() / "libc10_cuda.so";
      void* const library = ::dlopen(side.c_str(), RTLD_LAZY | RTLD_NOLOAD);
      return library == nullptr ? nullptr
                                : reinterpret_cast<Native*>(
                                      ::dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv"));
    }();
    if (native == nullptr) throw std::runtime_error("libc10_cuda.so has no CUDAStream::stream()");
    return native(&stream);
  }
#endif

  std::unique_ptr<const mw::DeviceKernel> compile(at::Device device, const std::string& text,
                                                  const char* name) const override {
    return cuda::compile(device, text, name, side_of_cuda().parent_path());
  }

  // cuBLAS adds in one order where its workspaces have a fixed size.
  void make_sums_repeat() const override {
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    Platform::make_sums_repeat();
  }

  std::vector<std::string> files() const override {
    std::vector<std::string> files;
    std::error_code error;
    for (fs::directory_iterator entry("/dev", error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().filename().string().starts_with("nvidia")) files.push_back(entry->path());
    }
    cuda::driver();  // loads the driver, beside which lie further libraries that it opens later
    return files;
  }

 private:
  // What hides GPUs from this process.
  static std::string visible() {
    const char* const given = std::getenv("CUDA_VISIBLE_DEVICES");
    return given == nullptr ? "" : fmt::format(" (CUDA_VISIBLE_DEVICES is \"{}\")", given);
  }
  static void* symbol(const char* name) {
    return cuda::driver() == nullptr ? nullptr : ::dlsym(cuda::driver(), name);
  }
};

}  // namespace

MESHWRIGHT_PLUGIN("cuda", "1.0.0", "NVIDIA's GPUs, by libtorch's CUDA side", mw::device<Cuda>())
