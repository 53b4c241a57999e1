// Calls functions of NVIDIA's libraries by their names, which are looked up at the first call. The
// libraries' ABI is stable, and this project can be built where CUDA's headers are not installed.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace cuda {

// The driver's library; null if it cannot be loaded.
inline void* driver() {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return library;
}

// A function of a library, or of those that it loads. Throws if there is none.
template <class Function>
Function* function(void* library, const char* name) {
  void* const found = library == nullptr ? nullptr : ::dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("no function ") + name);
  return reinterpret_cast<Function*>(found);
}

}  // namespace cuda
