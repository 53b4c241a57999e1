#The only module that links libtorch's CUDA side. It belongs to the cuda preset; with the toolkit
#there other builds can compile and link it too, by the target check_nccl, which a test does.
find_package(CUDAToolkit 13.0 QUIET) find_path(MESHWRIGHT_NCCL_INCLUDE nccl.h HINTS ${
    CUDAToolkit_INCLUDE_DIRS}) set(nccl_state
                                   "") if (NOT CUDAToolkit_FOUND OR NOT MESHWRIGHT_NCCL_INCLUDE)
    set(MESHWRIGHT_PLUGIN_LEFT_OUT
        "there is no CUDA 13 toolkit with nccl.h") elseif(NOT EXISTS
                                                          "${torch_root}/lib/libtorch_cuda.so")
        set(MESHWRIGHT_PLUGIN_LEFT_OUT
            "libtorch's CUDA side is not unpacked (./meshwright build --preset cuda)") else()
            meshwright_torch_cuda() if (NOT TARGET nccl_headers) add_library(
                nccl_headers INTERFACE) target_include_directories(nccl_headers SYSTEM INTERFACE
                                                                   "${MESHWRIGHT_NCCL_INCLUDE}")
                target_compile_definitions(nccl_headers INTERFACE USE_C10D_NCCL)
                    target_link_libraries(nccl_headers INTERFACE Torch::cuda) endif()
                        set(MESHWRIGHT_PLUGIN_LINK nccl_headers) if (NOT MESHWRIGHT_CUDA) set(
                            MESHWRIGHT_PLUGIN_LEFT_OUT
                            "this build has no CUDA (./meshwright build --preset cuda)")
                            meshwright_add_plugin(nccl_checked ${files} OUTPUT_DIRECTORY
                                                  "${PROJECT_BINARY_DIR}/checked" LINK nccl_headers)
                                set_target_properties(
                                    plugin_nccl_checked PROPERTIES EXCLUDE_FROM_ALL ON
                                        CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN OFF)
                                    target_link_libraries(
                                        plugin_nccl_checked PRIVATE meshwright_warnings)
                                        add_custom_target(check_nccl DEPENDS plugin_nccl_checked)
                                            set(nccl_state
                                                "check") endif() endif() if (NOT nccl_state)
                                                set(nccl_state
                                                    "${MESHWRIGHT_PLUGIN_LEFT_OUT}") endif()
                                                    file(CONFIGURE OUTPUT
                                                         "${PROJECT_BINARY_DIR}/nccl.txt" CONTENT
                                                         "${nccl_state}\n" @ONLY)
