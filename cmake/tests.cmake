# Tests, found by folder.
#   tests/<area>/*_test.cpp            one Catch2 program test_<area>; of the label unit, run whole with two more
#                                      instruction sets (tests/with_instructions.sh), which choose other kernels
#   tests/<area>/test_*.py, test_*.sh  one ctest entry each
#   tests/plugins/<name>/*.cpp         modules for tests, in build/lib/meshwright/test-plugins
# Label: the area's name for parity, cli and slow, else unit; scripts default to cli and may say
# `# label: x` in their first lines. Time limits end what hangs; a loaded machine must not reach them.

find_package(Catch2 2.13 REQUIRED)
list(APPEND CMAKE_MODULE_PATH "${Catch2_DIR}")
include(Catch)

set(MESHWRIGHT_TEST_PYTHON python3 CACHE FILEPATH "Python with the tests' packages")
set(test_environment
  "MESHWRIGHT_BIN=${PROJECT_BINARY_DIR}/bin/meshwright"
  "MESHWRIGHT_SOURCE=${PROJECT_SOURCE_DIR}"
  "MESHWRIGHT_BUILD=${PROJECT_BINARY_DIR}"
  "MESHWRIGHT_TEST_PLUGINS=${PROJECT_BINARY_DIR}/lib/meshwright/test-plugins"
  OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0)

# Catch2's main is 650 KB of header: compiled once.
add_library(catch_main OBJECT "${PROJECT_SOURCE_DIR}/tests/main.cpp")
target_link_libraries(catch_main PUBLIC Catch2::Catch2)

add_custom_target(test_plugins)
meshwright_add_own_plugins("${PROJECT_SOURCE_DIR}/tests/plugins"
                           "${PROJECT_BINARY_DIR}/lib/meshwright/test-plugins" test_plugins)

file(GLOB areas CONFIGURE_DEPENDS LIST_DIRECTORIES true "${PROJECT_SOURCE_DIR}/tests/*")
foreach(path IN LISTS areas)
  get_filename_component(area "${path}" NAME)
  if(area STREQUAL "plugins" OR NOT IS_DIRECTORY "${path}")
    continue()
  endif()
  set(label unit)
  if(area MATCHES "^(parity|cli|slow)$")
    set(label ${area})
  endif()

  file(GLOB sources CONFIGURE_DEPENDS "${path}/*_test.cpp")
  if(sources)
    meshwright_together(sources ${sources})
    add_executable(test_${area} ${sources})
    target_link_libraries(test_${area} PRIVATE catch_main meshwright_core meshwright_warnings)
    target_precompile_headers(test_${area} REUSE_FROM meshwright_pch)
    add_dependencies(test_${area} test_plugins programs)
    catch_discover_tests(test_${area} TEST_PREFIX "${area}/"
      PROPERTIES LABELS ${label} TIMEOUT 600 ENVIRONMENT "${test_environment}")
    if(label STREQUAL "unit")
      foreach(set IN ITEMS avx2 default)
        add_test(NAME "${area}/all with ${set}" COMMAND
          bash "${PROJECT_SOURCE_DIR}/tests/with_instructions.sh" ${set} $<TARGET_FILE:test_${area}>
          WORKING_DIRECTORY "${PROJECT_BINARY_DIR}")
        set_tests_properties("${area}/all with ${set}" PROPERTIES LABELS unit TIMEOUT 1200
          SKIP_RETURN_CODE 77 COST 100 ENVIRONMENT "${test_environment}")
      endforeach()
    endif()
  endif()

  file(GLOB scripts CONFIGURE_DEPENDS "${path}/test_*.py" "${path}/test_*.sh")
  foreach(script IN LISTS scripts)
    get_filename_component(name "${script}" NAME_WE)
    set(label cli)
    file(STRINGS "${script}" label_line REGEX "^# label: [a-z]+" LIMIT_COUNT 1)
    if(label_line)
      string(REGEX REPLACE "^# label: ([a-z]+).*" "\\1" label "${label_line}")
    endif()
    if(script MATCHES "\\.py$")
      set(command "${MESHWRIGHT_TEST_PYTHON}" "${script}")
    else()
      set(command bash "${script}")
    endif()
    add_test(NAME "${area}/${name}" COMMAND ${command} WORKING_DIRECTORY "${PROJECT_BINARY_DIR}")
    set_tests_properties("${area}/${name}" PROPERTIES
      LABELS ${label} TIMEOUT 1200 ENVIRONMENT "${test_environment}")
  endforeach()
endforeach()
