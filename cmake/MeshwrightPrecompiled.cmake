# meshwright_precompile(TARGET): the target is compiled with the SDK's precompiled header.
#
# libtorch's headers take three quarters of a plugin's compile time. They are precompiled once for
# each compiler, set of flags and libtorch, into a folder that all plugins of a user share:
# $XDG_CACHE_HOME/meshwright/precompiled, or ~/.cache/…; another one is named with
# -DMESHWRIGHT_PRECOMPILED_DIR. -DMESHWRIGHT_PRECOMPILED=OFF does without. Where a target's own
# flags differ, g++ passes the precompiled header over and reads the text beside it.

option(MESHWRIGHT_PRECOMPILED "Compile plugins with a precompiled header" ON)
set(meshwright_package_dir "${CMAKE_CURRENT_LIST_DIR}")

# Sets OUT to the header to include first, and makes a target that precompiles it; OUT is empty
# where there is none.
function(meshwright_precompiled_header out)
  set(${out} "" PARENT_SCOPE)
  if(NOT MESHWRIGHT_PRECOMPILED OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR NOT CMAKE_BUILD_TYPE)
    return()
  endif()
  set(folder "${MESHWRIGHT_PRECOMPILED_DIR}")
  if(NOT folder AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(folder "$ENV{XDG_CACHE_HOME}/meshwright/precompiled")
  elseif(NOT folder AND NOT "$ENV{HOME}" STREQUAL "")
    set(folder "$ENV{HOME}/.cache/meshwright/precompiled")
  elseif(NOT folder)
    set(folder "${CMAKE_BINARY_DIR}/precompiled")
  endif()

  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  get_directory_property(options COMPILE_OPTIONS)
  get_directory_property(definitions COMPILE_DEFINITIONS)
  list(TRANSFORM definitions PREPEND "-D")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}")
  list(APPEND flags ${options} ${definitions} -std=c++20 -fPIC -fvisibility=hidden
       -fvisibility-inlines-hidden)
  file(SHA256 "${meshwright_package_dir}/precompiled.h" text)
  file(SHA256 "${torch_root}/include/torch/csrc/api/include/torch/version.h" torch)
  string(SHA256 sum "${CMAKE_CXX_COMPILER};${CMAKE_CXX_COMPILER_VERSION};${flags};${text};${torch};\
${torch_root};${fmt_VERSION};${nlohmann_json_VERSION};${Boost_VERSION}")
  string(SUBSTRING "${sum}" 0 16 key)
  set(header "${folder}/${key}/meshwright.h")
  set(${out} "${header}" PARENT_SCOPE)
  if(TARGET meshwright_precompiled)
    return()
  endif()

  set(sdk "$<TARGET_PROPERTY:Meshwright::sdk,INTERFACE_COMPILE_DEFINITIONS>")
  set(torch_headers "$<TARGET_PROPERTY:Torch::cpu,INTERFACE_INCLUDE_DIRECTORIES>")
  # A file of this build folder stands for the one in the cache, which other folders may have made.
  set(stamp "${CMAKE_BINARY_DIR}/meshwright_precompiled_${key}")
  add_custom_command(OUTPUT "${stamp}" VERBATIM COMMAND_EXPAND_LISTS
    COMMAND "${CMAKE_COMMAND}" "-Dheader=${header}" "-Dsum=${sum}" "-Dstamp=${stamp}"
      -P "${meshwright_package_dir}/precompile.cmake" -- "${CMAKE_CXX_COMPILER}" ${flags}
      "-D$<JOIN:${sdk},;-D>" "-isystem;$<JOIN:${torch_headers},;-isystem;>"
    COMMENT "The headers of libtorch, precompiled (half a minute, once; kept in ${folder})")
  add_custom_target(meshwright_precompiled DEPENDS "${stamp}")
endfunction()

function(meshwright_precompile target)
  meshwright_precompiled_header(header)
  if(header)
    add_dependencies(${target} meshwright_precompiled)
    target_compile_options(${target} PRIVATE "SHELL:-include \"${header}\"")
  endif()
endfunction()
