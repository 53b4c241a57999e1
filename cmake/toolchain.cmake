# Compiler, linker, ccache, warnings and sanitizers: how every target of ours is built.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
# No debug information and no -O3: both cost build time and bring nothing to code whose hot loops
# are in libtorch.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# ccache lives in the user's cache folder, so that a second clone compiles nothing. The settings are
# baked into the launcher line, so that a plain `ninja -C build` shares the cache too.
find_program(MESHWRIGHT_CCACHE ccache)
if(MESHWRIGHT_CCACHE)
  set(cache_home "$ENV{XDG_CACHE_HOME}")
  if(NOT cache_home AND NOT "$ENV{HOME}" STREQUAL "")
    set(cache_home "$ENV{HOME}/.cache")
  elseif(NOT cache_home)
    set(cache_home "${PROJECT_SOURCE_DIR}/.deps/cache")
  endif()
  set(ccache_dir "$ENV{CCACHE_DIR}")
  if(NOT ccache_dir)
    set(ccache_dir "${cache_home}/meshwright/ccache")
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER
    env CCACHE_DIR=${ccache_dir} CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    ${MESHWRIGHT_CCACHE})
endif()

# Not mold: Debian 12's protects a page that no segment has, so that some programs do not start, and
# with -z norelro it links others without end.
find_program(MESHWRIGHT_LLD ld.lld)
if(MESHWRIGHT_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# One set of code-generation flags for all targets, executables too: a precompiled header serves
# only files that are compiled with the flags it was made with.
add_link_options(LINKER:--as-needed)
# The older kind of search path, which what a library needs is looked up in too: libraries of others
# lie beside the program where they are unpacked (unpacked.cmake) or released (release.sh).
add_link_options(LINKER:--disable-new-dtags)
add_compile_options(-fPIC -fdiagnostics-color=always)
if(MESHWRIGHT_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize=vptr)
  add_link_options(-fsanitize=address,undefined)
elseif(MESHWRIGHT_SANITIZE STREQUAL "thread")
  # g++ warns that fences are not modelled; the fences are libstdc++'s and torch's, not ours.
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
  add_link_options(-fsanitize=thread)
elseif(MESHWRIGHT_SANITIZE STREQUAL "fuzzer")
  # A finding ends the process, as libFuzzer keeps the input that a process dies of.
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow
    -fno-sanitize=vptr,function -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(MESHWRIGHT_SANITIZE)
  message(FATAL_ERROR
    "MESHWRIGHT_SANITIZE is '${MESHWRIGHT_SANITIZE}'; use address, thread or fuzzer.")
endif()

# Linked into each program and library, before libstdc++.
add_library(older_libstdcxx STATIC "${PROJECT_SOURCE_DIR}/cmake/older_libstdcxx.cpp")
link_libraries("$<BUILD_INTERFACE:older_libstdcxx>")

add_library(meshwright_warnings INTERFACE)
target_compile_options(meshwright_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi
  -Wimplicit-fallthrough -Wno-missing-field-initializers
  # g++ 13 and 14 take each function that returns a reference for one into its arguments.
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>)
if(MESHWRIGHT_WERROR)
  target_compile_options(meshwright_warnings INTERFACE -Werror)
endif()

set(MESHWRIGHT_PCH "${PROJECT_SOURCE_DIR}/cmake/pch.h")
