# Packages that the launcher unpacked into .deps/root, for users who are not root
# (cmake/packages.sh). Without that folder this file does nothing.
set(unpacked_usr "${PROJECT_SOURCE_DIR}/.deps/root/usr")
if(EXISTS "${unpacked_usr}/../.packages")
  list(PREPEND CMAKE_PREFIX_PATH "${unpacked_usr}")
  list(PREPEND CMAKE_PROGRAM_PATH "${unpacked_usr}/../bin")
  set(unpacked_lib "${unpacked_usr}/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
  set(ENV{PKG_CONFIG_PATH} "${unpacked_lib}/pkgconfig:${unpacked_usr}/share/pkgconfig:$ENV{PKG_CONFIG_PATH}")
  set(unpacked_include "-I${unpacked_usr}/include")
  set(CMAKE_BUILD_RPATH "${unpacked_lib}")
endif()
