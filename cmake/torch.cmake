# libtorch from the unpacked wheel as imported targets of our own.
#   Torch::cpu    libtorch_cpu + libc10, everything the CPU build links
#   Torch::cuda   libtorch_cuda + libc10_cuda and the toolkit's runtime (option MESHWRIGHT_CUDA, or
#                 meshwright_torch_cuda() for the one target that needs it)
# The wheel's CMake package is not used: it stops without a CUDA toolkit.

# Also installed: the package's configuration sets MESHWRIGHT_DEPS_DIR and includes it.

if(NOT MESHWRIGHT_DEPS_DIR)
  set(MESHWRIGHT_DEPS_DIR "${PROJECT_SOURCE_DIR}/.deps" CACHE PATH "Folder with the unpacked wheels")
endif()
set(torch_root "${MESHWRIGHT_DEPS_DIR}/libtorch/torch")
if(NOT EXISTS "${torch_root}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch is not at ${torch_root}. Run ./meshwright build once: it fetches and "
                      "unpacks the pinned wheels, then configures.")
endif()

add_library(Torch::c10 SHARED IMPORTED)
set_target_properties(Torch::c10 PROPERTIES
  IMPORTED_LOCATION "${torch_root}/lib/libc10.so" IMPORTED_SONAME libc10.so)

add_library(Torch::cpu SHARED IMPORTED)
set_target_properties(Torch::cpu PROPERTIES
  IMPORTED_LOCATION "${torch_root}/lib/libtorch_cpu.so" IMPORTED_SONAME libtorch_cpu.so)
# An imported target's include folders are SYSTEM: no warnings from torch's headers.
target_include_directories(Torch::cpu INTERFACE
  "${torch_root}/include" "${torch_root}/include/torch/csrc/api/include")
target_compile_definitions(Torch::cpu INTERFACE USE_DISTRIBUTED)
target_link_libraries(Torch::cpu INTERFACE Torch::c10)
# libgomp, libcudart and libcupti are found at run time through libtorch's own RPATH.
target_link_options(Torch::cpu INTERFACE
  "LINKER:-rpath-link,${torch_root}/lib:${MESHWRIGHT_DEPS_DIR}/libtorch/nvidia/cu13/lib")

macro(meshwright_torch_cuda)
  if(NOT TARGET Torch::cuda)
    find_package(CUDAToolkit 13.0 REQUIRED)
    foreach(name IN ITEMS c10_cuda torch_cuda)
      if(NOT EXISTS "${torch_root}/lib/lib${name}.so")
        message(FATAL_ERROR "lib${name}.so is not unpacked. Run ./meshwright build --preset cuda.")
      endif()
      add_library(Torch::${name} SHARED IMPORTED)
      set_target_properties(Torch::${name} PROPERTIES
        IMPORTED_LOCATION "${torch_root}/lib/lib${name}.so" IMPORTED_SONAME lib${name}.so)
    endforeach()
    add_library(Torch::cuda INTERFACE IMPORTED)
    target_link_libraries(Torch::cuda INTERFACE
      Torch::cpu Torch::torch_cuda Torch::c10_cuda CUDA::cudart)
    # Nothing refers to libtorch_cuda's kernels by symbol: they register themselves when loaded.
    target_link_options(Torch::cuda INTERFACE "LINKER:--no-as-needed")
  endif()
endmacro()
if(MESHWRIGHT_CUDA)
  meshwright_torch_cuda()
endif()
