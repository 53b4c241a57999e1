# For builds for ARM64 on another machine: cmake -DCMAKE_TOOLCHAIN_FILE=cmake/arm64.cmake, with a
# root file system of ARM64 in MESHWRIGHT_SYSROOT (mmdebstrap --variant=extract
# --architectures=arm64), and its libtorch in MESHWRIGHT_DEPS_DIR. tests/machines/test_arm64.py does
# it all.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MESHWRIGHT_SYSROOT)
set(CMAKE_SYSROOT "${MESHWRIGHT_SYSROOT}")
set(MESHWRIGHT_LLD "" CACHE FILEPATH "The cross compiler has a linker of its own")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${MESHWRIGHT_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR}
  "${MESHWRIGHT_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${MESHWRIGHT_SYSROOT}/usr/share/pkgconfig")
