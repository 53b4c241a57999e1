# Tests, found by folder.
#   tests/<area>/*_test.cpp            one Catch2 program test_<area>; one ctest entry a file, as a
#                                      process costs half a second before its first test. An area
#                                      that is called as a plugin is has the plugin's files in it
#   tests/<area>/*.cpp                 what these share, in the same program
#   tests/<area>/test_*.py, test_*.sh  one ctest entry each
#   tests/plugins/<name>/*.cpp         modules for tests, in build/lib/meshwright/test-plugins
#   tests/support                      what the tests share, of both languages
# Label: the area's name for parity and cli, else unit; scripts default to cli and may say
# `# label: x` in their first lines. Full products of options are of the label matrix, which
# `./meshwright test` leaves out: Catch2's tag [matrix], Python's decorator @matrix
# (tests/support/cases.py); Catch2's [sampled] runs in part, and as a whole in the matrix
# (tests/support/sample.h). In the normal run cli/test_pairs stands for them. Time limits end what
# hangs; a loaded machine must not reach them.
#
# Catch2's tag [kernels]: run with two more instruction sets (tests/with_instructions.sh), as the
# result depends on which kernels ATen and oneDNN choose: their scratch and their rounding. All else
# computes with kernels too, but asks only what holds for any, such as equality with one rank.
# Hardly a machine has less than AVX2: the kernels without vectors are tried in the matrix.

find_package(Catch2 2.13 QUIET)  # Debian 12's
if(NOT Catch2_FOUND)
  find_package(Catch2 3 REQUIRED)  # Debian 13's and Ubuntu's, under the other's names
  include_directories(BEFORE "${PROJECT_SOURCE_DIR}/tests/support/catch3")
endif()

set(MESHWRIGHT_TEST_PYTHON python3 CACHE FILEPATH "Python with the tests' packages")
set(test_environment
  "MESHWRIGHT_BIN=${PROJECT_BINARY_DIR}/bin/meshwright"
  "MESHWRIGHT_SOURCE=${PROJECT_SOURCE_DIR}"
  "MESHWRIGHT_BUILD=${PROJECT_BINARY_DIR}"
  "MESHWRIGHT_CXX=${CMAKE_CXX_COMPILER}"  # compiles texts of fused kernels
  "MESHWRIGHT_TEST_PLUGINS=${PROJECT_BINARY_DIR}/lib/meshwright/test-plugins"
  "PYTHONPATH=${PROJECT_SOURCE_DIR}/tests/support"
  "MESHWRIGHT_PYTHON=${MESHWRIGHT_TEST_PYTHON}"  # draws figures
  # Nothing else uses the cores, as far as tests are told: none depends on what does.
  MESHWRIGHT_FIRST_USE=off
  "MESHWRIGHT_SYSTEM_ROOT=${PROJECT_BINARY_DIR}/no-system"
  OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0)
if(meshwright_without)
  list(JOIN meshwright_without " " without)
  list(APPEND test_environment "MESHWRIGHT_LEFT_OUT=${without}")
endif()

# What lets calls of the program share the loading of its libraries: tests/support/loaded.py.
if(NOT MESHWRIGHT_SANITIZE)
  add_library(meshwright_loaded MODULE "${PROJECT_SOURCE_DIR}/tests/support/loaded.cpp")
  target_link_libraries(meshwright_loaded PRIVATE meshwright_warnings ${CMAKE_DL_LIBS})
  list(APPEND test_environment "MESHWRIGHT_LOADED=${PROJECT_BINARY_DIR}/lib/libmeshwright_loaded.so")
endif()

# Catch2's main is 650 KB of header: compiled once.
add_library(catch_main OBJECT "${PROJECT_SOURCE_DIR}/tests/main.cpp")
target_link_libraries(catch_main PUBLIC Catch2::Catch2)
target_include_directories(catch_main PRIVATE "${PROJECT_SOURCE_DIR}/core/include" "${PROJECT_SOURCE_DIR}/core/src" "${PROJECT_SOURCE_DIR}/libs")

add_custom_target(test_plugins)
meshwright_add_own_plugins("${PROJECT_SOURCE_DIR}/tests/plugins"
                           "${PROJECT_BINARY_DIR}/lib/meshwright/test-plugins" test_plugins)

# What takes 20 s of a core or more begins first, so that no core is idle at the end. tests/repeat
# measures.
set(long_tests cli/test_ablations cli/test_account cli/test_bench_train cli/test_chaos cli/test_ends
  cli/test_kit cli/test_microbatch cli/test_page_plans cli/test_page_tutorial cli/test_pairs
  cli/test_prediction cli/test_published cli/test_readme cli/test_release cli/test_search
  cli/test_sweep cli/test_what_if cuda/test_nvrtc device/waits_test experiments/test_experiments
  layout/test_headers model/fused_test mpi/test_mpi mpi/test_processes_option nccl/test_nccl
  plugin/test_copied predict/ledger_match_test predict/search_test report/test_figures
  slurm/test_slurm sweep/test_judged)

# meshwright_add_test(NAME LABEL COST COMMAND…)
function(meshwright_add_test name label cost)
  if(name IN_LIST long_tests)
    set(cost 1000)
  endif()
  set(limit 1200)
  if(label MATCHES "^(matrix|machines)$")
    set(limit 18000)  # full products, which nobody waits for
  endif()
  if(meshwright_without)
    list(PREPEND ARGN bash "${PROJECT_SOURCE_DIR}/tests/without.sh")
  endif()
  add_test(NAME "${name}" COMMAND ${ARGN} WORKING_DIRECTORY "${PROJECT_BINARY_DIR}")
  set_tests_properties("${name}" PROPERTIES LABELS ${label} COST ${cost} TIMEOUT ${limit}
    SKIP_RETURN_CODE 77 ENVIRONMENT "${test_environment}")
endfunction()

# Sets OUT to whether one of the files has TEXT; configures again when they change.
function(meshwright_any_has out text)
  set(${out} FALSE PARENT_SCOPE)
  foreach(file IN LISTS ARGN)
    set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    file(STRINGS "${file}" lines REGEX "${text}" LIMIT_COUNT 1)
    if(lines)
      set(${out} TRUE PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# Takes out of a list of C++ tests those that include what is left out of the program.
function(meshwright_filter_tests files)
  if(NOT meshwright_without)
    return()
  endif()
  list(JOIN meshwright_without "|" parts)
  foreach(file IN LISTS ${files})
    meshwright_any_has(has_part "#include \"app/(${parts})/" "${file}")
    if(NOT has_part)
      list(APPEND left "${file}")
    endif()
  endforeach()
  set(${files} ${left} PARENT_SCOPE)
endfunction()

# These may include what is private to the kernel.
set(tests_of_the_kernel base comm device dp fuzz mesh model parity plan processes program run schedule)

file(GLOB areas CONFIGURE_DEPENDS LIST_DIRECTORIES true "${PROJECT_SOURCE_DIR}/tests/*")
foreach(path IN LISTS areas)
  get_filename_component(area "${path}" NAME)
  if(area MATCHES "^(plugins|support)$" OR NOT IS_DIRECTORY "${path}")
    continue()
  endif()
  if(area STREQUAL "fuzz" AND meshwright_without MATCHES "sweep|calibrate")
    continue()  # it has readers of these parts
  endif()
  set(label unit)
  if(area MATCHES "^(parity|cli)$")
    set(label ${area})
  endif()

  file(GLOB sources CONFIGURE_DEPENDS "${path}/*_test.cpp")
  if(EXISTS "${PROJECT_SOURCE_DIR}/plugins/${area}" AND NOT TARGET plugin_${area})
    set(sources "")  # the plugin is left out
  endif()
  meshwright_filter_tests(sources)
  if(sources)
    set(program "$<TARGET_FILE:test_${area}>" --filenames-as-tags)
    foreach(source IN LISTS sources)
      get_filename_component(name "${source}" NAME_WE)
      meshwright_add_test("${area}/${name}" ${label} 1 ${program} "[#${name}]~[matrix]~[.]")
    endforeach()
    meshwright_any_has(has_matrix "\\[(matrix|sampled)\\]" ${sources})
    if(has_matrix)
      meshwright_add_test("${area}/matrix" matrix 100
        "${CMAKE_COMMAND}" -E env MESHWRIGHT_MATRIX=1 ${program} "[matrix],[sampled]")
    endif()
    meshwright_any_has(has_kernels "\\[kernels\\]" ${sources})
    if(has_kernels)
      foreach(set IN ITEMS avx2 default)
        set(kernels_label ${label})
        if(set STREQUAL "default")
          set(kernels_label matrix)
        endif()
        meshwright_add_test("${area}/kernels of ${set}" ${kernels_label} 100
          bash "${PROJECT_SOURCE_DIR}/tests/with_instructions.sh" ${set} ${program} "[kernels]~[matrix]")
      endforeach()
    endif()
    file(GLOB shared CONFIGURE_DEPENDS "${path}/*.cpp")
    meshwright_filter_tests(shared)
    if(area STREQUAL "device")  # the simulated accelerator itself
      file(GLOB simulated CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/plugins/sim/*.cpp")
      list(APPEND shared ${simulated})
    endif()
    set(found ${sources})
    list(REMOVE_ITEM shared ${sources})
    list(APPEND sources ${shared})
    file(GLOB own CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/plugins/${area}/*.cpp")
    meshwright_together(sources ${sources} ${own})
    add_executable(test_${area} ${sources})
    target_include_directories(test_${area} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
    if(area IN_LIST tests_of_the_kernel)
      target_include_directories(test_${area} PRIVATE "${PROJECT_SOURCE_DIR}/core/src")
    endif()
    if(own)
      target_include_directories(test_${area} PRIVATE "${PROJECT_SOURCE_DIR}/plugins/${area}")
      get_target_property(own_links plugin_${area} LINK_LIBRARIES)
      list(FILTER own_links INCLUDE REGEX "^MPI::")
      target_link_libraries(test_${area} PRIVATE ${own_links})
    endif()
    target_link_libraries(test_${area} PRIVATE catch_main ${meshwright_libraries} meshwright_built_in meshwright_warnings)
    meshwright_any_has(has_app "#include \"app/" ${found} ${shared})
    if(has_app)
      target_link_libraries(test_${area} PRIVATE meshwright_app)
    endif()
    target_precompile_headers(test_${area} REUSE_FROM meshwright_pch)
    add_dependencies(test_${area} test_plugins programs)
  endif()

  file(GLOB scripts CONFIGURE_DEPENDS "${path}/test_*.py" "${path}/test_*.sh")
  foreach(script IN LISTS scripts)
    get_filename_component(name "${script}" NAME_WE)
    string(REGEX REPLACE "^test_([a-z]+).*" "\\1" about "${name}")
    if(about IN_LIST meshwright_without OR area IN_LIST meshwright_without)
      continue()  # of a part that is left out
    endif()
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
    meshwright_add_test("${area}/${name}" ${label} 10 ${command})
    meshwright_any_has(has_matrix "@matrix" ${script})
    if(has_matrix)
      meshwright_add_test("${area}/${name} matrix" matrix 100
        "${CMAKE_COMMAND}" -E env MESHWRIGHT_MATRIX=1 ${command})
    endif()
  endforeach()
endforeach()
