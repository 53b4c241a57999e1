// Compiles texts of CUDA C++ for a GPU, by NVRTC, which comes with libtorch's CUDA side.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <string>

#include "meshwright/platform.h"

namespace cuda {

// The kernel `name` of a text. What NVRTC makes is kept in the user's cache folder, by the text,
// NVRTC's version and the GPU's architecture. `libraries`: the folder of libtorch's libraries.
// Throws an exception with what NVRTC or the driver says.
std::unique_ptr<const mw::DeviceKernel> compile(at::Device device, const std::string& text,
                                                const char* name,
                                                const std::filesystem::path& libraries);

// The binary code of a text for an architecture ("sm_90"), as compile() keeps it.
std::string binary(const std::string& text, const std::string& architecture,
                   const std::filesystem::path& libraries);

}  // namespace cuda
