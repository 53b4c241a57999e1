# Builds a plugin: meshwright_add_plugin(NAME FILE… [LINK TARGET…] [OUTPUT_DIRECTORY DIR]).
#
# A plugin is one loadable module NAME.so, compiled against the SDK headers alone, with every symbol
# hidden but the descriptor. Used by this repository and, after find_package(Meshwright), by others,
# for whom it comes with a precompiled header (MeshwrightPrecompiled.cmake).
function(meshwright_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "OUTPUT_DIRECTORY" "LINK")
  set(target plugin_${name})
  add_library(${target} MODULE ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${target} PRIVATE Meshwright::sdk Meshwright::library ${arg_LINK})
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} DEFINE_SYMBOL ""
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON CXX_EXTENSIONS OFF)
  if(COMMAND meshwright_precompile)
    meshwright_precompile(${target})
  endif()
  # Hidden visibility alone still exports the unique symbols of the standard library's templates.
  set(map "${CMAKE_CURRENT_BINARY_DIR}/meshwright_plugin.map")
  file(CONFIGURE OUTPUT "${map}" CONTENT "{ global: meshwright_plugin; local: *; };\n")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
  if(arg_OUTPUT_DIRECTORY)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${arg_OUTPUT_DIRECTORY}")
  endif()
endfunction()

# Adds sources in CUDA to a plugin: meshwright_add_cuda(NAME FILE.cu… [ARCHITECTURES 80 90 …]).
# nvcc of the CUDA version of the program's libtorch (13, or 12) compiles them: that of
# MESHWRIGHT_NVCC (OFF: none), of PATH, of a CUDA toolkit, or of the wheel nvidia-cuda-nvcc of this
# Python (python3 -m pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-cuda-runtime). Where there
# is none, the plugin is built without them, and CMake says so; where there is one, the sources see
# WITH_CUDA. The program has CUDA's runtime library, so that the plugin needs no toolkit to run.
function(meshwright_add_cuda name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ARCHITECTURES")
  set(without "")
  if(DEFINED MESHWRIGHT_NVCC AND NOT MESHWRIGHT_NVCC AND NOT MESHWRIGHT_NVCC MATCHES "NOTFOUND$")
    set(without "MESHWRIGHT_NVCC is ${MESHWRIGHT_NVCC}")
  else()
    execute_process(COMMAND python3 -c "import nvidia; print(';'.join(nvidia.__path__))"
                    OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(TRANSFORM wheels APPEND "/cu13/bin" OUTPUT_VARIABLE of_13)
    list(TRANSFORM wheels APPEND "/cuda_nvcc/bin" OUTPUT_VARIABLE of_12)
    find_program(MESHWRIGHT_NVCC nvcc PATHS /usr/local/cuda/bin ${of_${meshwright_cuda_version}})
    if(NOT MESHWRIGHT_NVCC)
      set(without "there is no nvcc (MESHWRIGHT_NVCC names one)")
    else()
      execute_process(COMMAND "${MESHWRIGHT_NVCC}" --version OUTPUT_VARIABLE version ERROR_QUIET)
      if(NOT version MATCHES "release ${meshwright_cuda_version}\\.")
        set(without "${MESHWRIGHT_NVCC} is not of CUDA ${meshwright_cuda_version}, as the program's libtorch is")
      endif()
    endif()
  endif()
  if(NOT without)
    get_filename_component(toolkit "${MESHWRIGHT_NVCC}" REALPATH)
    get_filename_component(toolkit "${toolkit}" DIRECTORY)
    get_filename_component(toolkit "${toolkit}" DIRECTORY)
    find_library(MESHWRIGHT_CUDART NAMES libcudart.so.${meshwright_cuda_version} cudart NAMES_PER_DIR NO_DEFAULT_PATH
                 PATHS "${toolkit}/lib64" "${toolkit}/lib" "${toolkit}/targets/x86_64-linux/lib"
                       "${toolkit}/targets/sbsa-linux/lib")
    if(NOT MESHWRIGHT_CUDART)
      set(without "there is no libcudart.so.${meshwright_cuda_version} beside ${MESHWRIGHT_NVCC}")
    endif()
  endif()
  if(without)
    message(STATUS "${name}: ${without}: without CUDA")
    return()
  endif()
  if(NOT arg_ARCHITECTURES)
    set(arg_ARCHITECTURES 80 90 100)
  endif()
  set(codes "")
  foreach(one IN LISTS arg_ARCHITECTURES)
    list(APPEND codes -gencode "arch=compute_${one},code=sm_${one}")
    set(newest ${one})
  endforeach()
  list(APPEND codes -gencode "arch=compute_${newest},code=compute_${newest}")  # for later GPUs
  foreach(source IN LISTS arg_UNPARSED_ARGUMENTS)
    get_filename_component(source "${source}" ABSOLUTE)
    string(SHA1 id "${source}")
    get_filename_component(stem "${source}" NAME_WE)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${stem}-${id}.cu.o")
    add_custom_command(OUTPUT "${object}" DEPENDS "${source}" DEPFILE "${object}.d"
      COMMAND "${MESHWRIGHT_NVCC}" -c -O3 -std=c++17 -ccbin "${CMAKE_CXX_COMPILER}" ${codes}
        -Xcompiler -fPIC,-fvisibility=hidden -MD -MF "${object}.d" "${source}" -o "${object}"
      VERBATIM)
    target_sources(plugin_${name} PRIVATE "${object}")
  endforeach()
  target_compile_definitions(plugin_${name} PRIVATE WITH_CUDA)
  target_link_libraries(plugin_${name} PRIVATE "${MESHWRIGHT_CUDART}")
  message(STATUS "${name}: CUDA by ${MESHWRIGHT_NVCC} for ${arg_ARCHITECTURES}")
endfunction()
