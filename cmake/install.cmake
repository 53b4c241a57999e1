# `cmake --install build --prefix P`: the program, its plugins and Lua side, the SDK, a CMake
# package (find_package(Meshwright) gives Meshwright::sdk and meshwright_add_plugin), templates of
# plugins, docs and examples.
#
# Nothing in it points into the source folder but one thing: libtorch, half a gigabyte, is not
# copied. The kit remembers where it is unpacked; `cmake --install build --prefix P --component
# libtorch` puts it into the kit, which then needs neither. MESHWRIGHT_DEPS_DIR overrides it for
# plugins.

include(CMakePackageConfigHelpers)
# lib, not lib/<multiarch>: the program looks for its plugins at ../lib/meshwright/plugins.
set(package_dir lib/cmake/Meshwright)
set(libtorch_dir lib/meshwright/libtorch)

# INSTALL_RPATH_USE_LINK_PATH would leave libtorch out: .deps lies inside the source folder.
set(own_torch "$ORIGIN/../${libtorch_dir}/torch/lib")
set_property(TARGET meshwright_core PROPERTY INSTALL_RPATH "${own_torch}" "${torch_root}/lib")
# A release has the machine's libraries beside it (release.py).
set_property(TARGET meshwright PROPERTY INSTALL_RPATH
  "$ORIGIN/../lib" "$ORIGIN/../lib/meshwright/system" "${own_torch}" "${torch_root}/lib" ${CMAKE_BUILD_RPATH})

set_target_properties(meshwright_sdk PROPERTIES EXPORT_NAME sdk)
set_target_properties(meshwright_core PROPERTIES EXPORT_NAME core)
set_target_properties(meshwright_library PROPERTIES EXPORT_NAME library)
install(TARGETS meshwright_sdk meshwright_core meshwright_library EXPORT MeshwrightTargets
        LIBRARY DESTINATION lib)
foreach(name IN LISTS linked_plugins)
  set_property(TARGET meshwright_${name} PROPERTY INSTALL_RPATH "$ORIGIN" "${own_torch}" "${torch_root}/lib")
  set_target_properties(meshwright_${name} PROPERTIES EXPORT_NAME ${name})
endforeach()
set_target_properties(meshwright_built_in PROPERTIES EXPORT_NAME built_in)
set_target_properties(meshwright_transport PROPERTIES EXPORT_NAME transport)
install(TARGETS ${linked_libraries} meshwright_built_in meshwright_transport EXPORT MeshwrightTargets
        LIBRARY DESTINATION lib ARCHIVE DESTINATION lib)
install(TARGETS meshwright RUNTIME DESTINATION bin)
install(TARGETS meshwright_loopback meshwright_clock LIBRARY DESTINATION lib)
# Not as files: their search path would be the build folder's. The program has loaded what they
# need, but for CUDA's side.
if(MESHWRIGHT_CUDA)
  set_property(TARGET plugin_nccl PROPERTY INSTALL_RPATH "$ORIGIN/../libtorch/torch/lib" "${torch_root}/lib")
endif()
install(TARGETS ${MESHWRIGHT_OWN_PLUGINS} LIBRARY DESTINATION lib/meshwright/plugins OPTIONAL)
install(FILES "${PROJECT_BINARY_DIR}/lib/meshwright/plugins/left_out.json"
        DESTINATION lib/meshwright/plugins)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/core/include/" "${PROJECT_SOURCE_DIR}/plugins/models/include/"
        "${PROJECT_SOURCE_DIR}/libs/transport/include/"
        DESTINATION include)
foreach(name IN ITEMS lua clusters scripts docs examples)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${name}" DESTINATION share/meshwright OPTIONAL
          PATTERN "*.py" EXCLUDE)
endforeach()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/kit/templates" DESTINATION share/meshwright)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/tests/reference" DESTINATION share/meshwright
        PATTERN "*.py" EXCLUDE)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/libs/draw/page" DESTINATION share/meshwright)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/bench/train" DESTINATION share/meshwright/bench
        PATTERN "__pycache__" EXCLUDE)
file(GLOB python_packages "${PROJECT_SOURCE_DIR}/python/src/meshwright_*")  # those that it starts
install(DIRECTORY ${python_packages} DESTINATION share/meshwright/python PATTERN "__pycache__" EXCLUDE)
# Where it is a link, what it leads to.
get_filename_component(chart_js "${MESHWRIGHT_CHART_JS}" REALPATH)
install(FILES "${chart_js}" DESTINATION share/meshwright RENAME chart.min.js)
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/NOTICE"
              "${PROJECT_SOURCE_DIR}/CITATION.cff" "${PROJECT_SOURCE_DIR}/kit/mixes.json"
              "${PROJECT_SOURCE_DIR}/kit/calibration.json"
              "${PROJECT_SOURCE_DIR}/kit/communicator.lua"
        DESTINATION share/meshwright)
# What .deps has is a link into the user's cache: the file itself goes along.
install(CODE "
  if(EXISTS \"${PROJECT_SOURCE_DIR}/.deps/text/gcide.txt\")
    file(REAL_PATH \"${PROJECT_SOURCE_DIR}/.deps/text/gcide.txt\" text)
    file(INSTALL \"\${text}\" DESTINATION
         \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/meshwright/text\")
  endif()")
install(DIRECTORY "${MESHWRIGHT_DEPS_DIR}/libtorch/" DESTINATION ${libtorch_dir}
        COMPONENT libtorch EXCLUDE_FROM_ALL USE_SOURCE_PERMISSIONS)

install(EXPORT MeshwrightTargets NAMESPACE Meshwright:: DESTINATION ${package_dir})
configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/MeshwrightConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/MeshwrightConfig.cmake" INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/MeshwrightConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/MeshwrightConfig.cmake" "${PROJECT_BINARY_DIR}/MeshwrightConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/torch.cmake" "${PROJECT_SOURCE_DIR}/cmake/MeshwrightPlugin.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/MeshwrightPrecompiled.cmake" "${PROJECT_SOURCE_DIR}/cmake/precompile.cmake"
  "${PROJECT_SOURCE_DIR}/kit/precompiled.h"
  DESTINATION ${package_dir})
