# libtorch from the unpacked wheel as imported targets of our own.
#   Torch::cpu    libtorch_cpu + libc10, everything the CPU build links
#   Torch::cuda   libtorch_cuda + libc10_cuda, CUDA's runtime and NCCL's header (option
#                 MESHWRIGHT_CUDA, or meshwright_torch_cuda() for the one target that needs it)
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
# libgomp, libcudart and libcupti are found at run time through libtorch's own RPATH. The wheels of
# CUDA 13 have one folder for all (cu13), those of CUDA 12 one for each library.
set(cuda_root "${MESHWRIGHT_DEPS_DIR}/libtorch/nvidia")
file(GLOB cuda_libraries "${cuda_root}/*/lib")
list(JOIN cuda_libraries ":" cuda_rpath_link)
target_link_options(Torch::cpu INTERFACE "LINKER:-rpath-link,${torch_root}/lib:${cuda_rpath_link}")
file(GLOB cuda_runtime "${cuda_root}/*/lib/libcudart.so.*")
string(REGEX MATCH "[0-9]+$" meshwright_cuda_version "${cuda_runtime}")

# Whether the headers and libraries that libtorch's CUDA side was built with are unpacked, as the
# launcher does for the presets of CUDA. A toolkit's headers do for compiling only: another NCCL's
# may have its options in another size.
set(meshwright_cuda_unpacked FALSE)
if(EXISTS "${cuda_root}/nccl/include/nccl.h")
  set(meshwright_cuda_unpacked TRUE)
endif()

macro(meshwright_torch_cuda)
  if(NOT TARGET Torch::cuda)
    foreach(name IN ITEMS c10_cuda torch_cuda)
      if(NOT EXISTS "${torch_root}/lib/lib${name}.so")
        message(FATAL_ERROR "lib${name}.so is not unpacked. Run ./meshwright build --preset cuda.")
      endif()
      add_library(Torch::${name} SHARED IMPORTED)
      set_target_properties(Torch::${name} PROPERTIES
        IMPORTED_LOCATION "${torch_root}/lib/lib${name}.so" IMPORTED_SONAME lib${name}.so)
    endforeach()
    add_library(Torch::cuda INTERFACE IMPORTED)
    if(meshwright_cuda_unpacked)
      add_library(Torch::cudart SHARED IMPORTED)
      set_target_properties(Torch::cudart PROPERTIES
        IMPORTED_LOCATION "${cuda_runtime}" IMPORTED_SONAME libcudart.so.${meshwright_cuda_version})
      file(GLOB cuda_includes "${cuda_root}/*/include")
      target_include_directories(Torch::cuda INTERFACE ${cuda_includes})
      target_link_libraries(Torch::cuda INTERFACE Torch::cudart)
    else()
      find_package(CUDAToolkit ${meshwright_cuda_version} REQUIRED)
      find_path(MESHWRIGHT_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
      target_include_directories(Torch::cuda INTERFACE "${MESHWRIGHT_NCCL_INCLUDE}")
      target_link_libraries(Torch::cuda INTERFACE CUDA::cudart)
    endif()
    target_link_libraries(Torch::cuda INTERFACE Torch::cpu Torch::torch_cuda Torch::c10_cuda)
    # Nothing refers to libtorch_cuda's kernels by symbol: they register themselves when loaded.
    target_link_options(Torch::cuda INTERFACE "LINKER:--no-as-needed")
  endif()
endmacro()
if(MESHWRIGHT_CUDA)
  if(NOT meshwright_cuda_unpacked)
    message(FATAL_ERROR "CUDA's libraries are not at ${cuda_root}. Run ./meshwright build --preset cuda: "
                        "it fetches and unpacks the pinned wheels, then configures.")
  endif()
  meshwright_torch_cuda()
endif()
