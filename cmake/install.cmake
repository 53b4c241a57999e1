# `cmake --install build --prefix P`: the program, its plugins and Lua side, the SDK, and a CMake
# package: find_package(Meshwright) gives Meshwright::sdk and meshwright_add_plugin. libtorch is not
# copied: the package remembers where it is unpacked, and MESHWRIGHT_DEPS_DIR overrides that.

include(CMakePackageConfigHelpers)
# lib, not lib/<multiarch>: the program looks for its plugins at ../lib/meshwright/plugins.
set(package_dir lib/cmake/Meshwright)

# INSTALL_RPATH_USE_LINK_PATH would leave libtorch out: .deps lies inside the source folder.
set_property(TARGET meshwright_core PROPERTY INSTALL_RPATH "${torch_root}/lib")
set_property(TARGET meshwright PROPERTY INSTALL_RPATH "$ORIGIN/../lib" "${torch_root}/lib")

set_target_properties(meshwright_sdk PROPERTIES EXPORT_NAME sdk)
set_target_properties(meshwright_core PROPERTIES EXPORT_NAME core)
set_target_properties(meshwright_library PROPERTIES EXPORT_NAME library)
install(TARGETS meshwright_sdk meshwright_core meshwright_library EXPORT MeshwrightTargets
        LIBRARY DESTINATION lib)
install(TARGETS meshwright RUNTIME DESTINATION bin)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/core/include/" DESTINATION include)
install(DIRECTORY "${PROJECT_BINARY_DIR}/lib/meshwright/plugins" DESTINATION lib/meshwright
        OPTIONAL FILES_MATCHING PATTERN "*.so")
foreach(name IN ITEMS lua clusters)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${name}" DESTINATION share/meshwright OPTIONAL)
endforeach()

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
  DESTINATION ${package_dir})
