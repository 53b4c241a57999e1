# The targets of this repository, found by folder. A folder may be empty or missing.
#   meshwright_core       libmeshwright.so: every floor of core/src but app
#   meshwright_<name>     build/lib/libmeshwright_<name>.so, from plugins/<name>: what is built in
#   meshwright            build/bin/meshwright
#   meshwright_loopback   build/lib/libmeshwright_loopback.so, from libs/launch/loopback
#   meshwright_clock      build/lib/libmeshwright_clock.so, from libs/launch/clock
#   plugin_<name>         build/lib/meshwright/plugins/<name>.so, from plugins/<name>/*.cpp
#   bench_<name>          build/bin/bench_<name>, from bench/<name>.cpp
#   programs              what `./meshwright run` needs: the program and all plugins

find_package(PkgConfig REQUIRED)
pkg_check_modules(lua REQUIRED IMPORTED_TARGET lua5.4-c++)
if(unpacked_include)  # where Debian's luaconf.h looks for another of Lua's headers
  set_property(TARGET PkgConfig::lua APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES
    "${unpacked_usr}/include/${CMAKE_LIBRARY_ARCHITECTURE}")
endif()
pkg_check_modules(hdf5 REQUIRED IMPORTED_TARGET hdf5-serial)
if(hdf5_VERSION VERSION_GREATER_EQUAL 1.12)  # what visits objects is told of them as in 1.10
  set_property(TARGET PkgConfig::hdf5 APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS H5O_info_t_vers=1)
endif()
pkg_check_modules(edit REQUIRED IMPORTED_TARGET libedit)
# Dimension scales; its .pc file is missing from Debian's package.
find_library(MESHWRIGHT_HDF5_HL NAMES hdf5_serial_hl hdf5_hl HINTS ${hdf5_LIBRARY_DIRS} REQUIRED)
find_package(Boost 1.74 REQUIRED CONFIG)  # CMake is to lose its own module for it
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
find_package(Threads REQUIRED)

# What a plugin author compiles against: the SDK's folder, torch, fmt and Boost.DLL's switch.
add_library(meshwright_sdk INTERFACE)
add_library(Meshwright::sdk ALIAS meshwright_sdk)
target_include_directories(meshwright_sdk INTERFACE
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/core/include;${PROJECT_SOURCE_DIR}/plugins/models/include;${PROJECT_SOURCE_DIR}/libs/transport/include>"
  "$<INSTALL_INTERFACE:include>")
target_compile_definitions(meshwright_sdk INTERFACE BOOST_DLL_USE_STD_FS)
target_compile_features(meshwright_sdk INTERFACE cxx_std_20)
target_link_libraries(meshwright_sdk INTERFACE
  Torch::cpu Boost::headers fmt::fmt nlohmann_json::nlohmann_json)

# One precompiled header for all: it knows no more than the SDK's flags, which all targets have.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/pch.cpp" CONTENT "// Holds a header.\n" @ONLY)
add_library(meshwright_pch OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/pch.cpp")
target_link_libraries(meshwright_pch PRIVATE Meshwright::sdk meshwright_warnings)
target_precompile_headers(meshwright_pch PRIVATE "${MESHWRIGHT_PCH}")
# A precompiled header's bytes differ from clone to clone. What ccache looks at instead is a sum
# over the text of all that it includes, so that a second clone finds what the first one compiled.
set(pch "${PROJECT_BINARY_DIR}/CMakeFiles/meshwright_pch.dir/cmake_pch.hxx.gch")
add_custom_command(OUTPUT "${pch}.sum" DEPFILE "${pch}.sum.d" VERBATIM
  COMMAND bash "${PROJECT_SOURCE_DIR}/cmake/pch_sum.sh" "${pch}.sum" ${CMAKE_CXX_COMPILER}
    -std=c++20 "-I$<JOIN:$<TARGET_PROPERTY:Torch::cpu,INTERFACE_INCLUDE_DIRECTORIES>,;-I>" ${unpacked_include} "${MESHWRIGHT_PCH}"
  COMMAND_EXPAND_LISTS COMMENT "Sum of the precompiled header's text")
add_custom_target(meshwright_pch_sum DEPENDS "${pch}.sum")
add_dependencies(meshwright_pch meshwright_pch_sum)

# The kernel. core/src is private to it.
file(GLOB_RECURSE core_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/core/src/*.cpp")
meshwright_together(core_sources ${core_sources})
add_library(meshwright_core SHARED ${core_sources})
set_target_properties(meshwright_core PROPERTIES OUTPUT_NAME meshwright DEFINE_SYMBOL "")
target_include_directories(meshwright_core PRIVATE "${PROJECT_SOURCE_DIR}/core/src")
target_compile_definitions(meshwright_core PUBLIC
  "$<BUILD_INTERFACE:MESHWRIGHT_VERSION=\"${PROJECT_VERSION}\">")
target_link_libraries(meshwright_core
  PUBLIC Meshwright::sdk
  PRIVATE "$<BUILD_INTERFACE:meshwright_warnings>" Threads::Threads ${CMAKE_DL_LIBS})
target_precompile_headers(meshwright_core REUSE_FROM meshwright_pch)

# What is built in registers itself when its library is loaded, though nobody uses a symbol of it.
set(linked_plugins models optimizers data policies)
foreach(name IN LISTS linked_plugins)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/plugins/${name}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/(isa|openmp)/")  # plugin.cmake adds them, with flags of their own
  meshwright_together(sources ${sources})
  add_library(meshwright_${name} SHARED ${sources})
  set_target_properties(meshwright_${name} PROPERTIES DEFINE_SYMBOL "")
  target_include_directories(meshwright_${name} PRIVATE "${PROJECT_SOURCE_DIR}/plugins/${name}")
  set(MESHWRIGHT_PLUGIN_LINK "")
  include("${PROJECT_SOURCE_DIR}/plugins/${name}/plugin.cmake" OPTIONAL)
  target_link_libraries(meshwright_${name}
    PUBLIC Meshwright::sdk "$<LINK_ONLY:meshwright_core>"
    PRIVATE "$<BUILD_INTERFACE:${MESHWRIGHT_PLUGIN_LINK};meshwright_warnings>")
  target_precompile_headers(meshwright_${name} REUSE_FROM meshwright_pch)
  list(APPEND linked_libraries meshwright_${name})
endforeach()
# What a program links that wants all of it.
add_library(meshwright_built_in INTERFACE)
add_library(Meshwright::built_in ALIAS meshwright_built_in)
target_link_libraries(meshwright_built_in INTERFACE meshwright_core ${linked_libraries})
target_link_options(meshwright_built_in INTERFACE "LINKER:--no-as-needed")

# meshwright_add_library(NAME [LINK LIBRARY…] [WITH TARGET…]): libs/NAME, a static library beside
# the kernel. LINK names other libraries of libs/, whose headers it may include: what it says here
# is what tests/layout holds its includes and its symbols to. WITH names what it alone needs of
# others.
set(meshwright_libraries "")
function(meshwright_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK;WITH")
  set(folder "${PROJECT_SOURCE_DIR}/libs/${name}")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${folder}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/launch/(loopback|clock)/")
  meshwright_together(sources ${sources})
  add_library(meshwright_${name} STATIC ${sources})
  foreach(root IN ITEMS libs . libs/frontend)
    target_include_directories(meshwright_${name} PUBLIC
      "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/${root}>")
  endforeach()
  list(TRANSFORM arg_LINK PREPEND meshwright_)
  target_link_libraries(meshwright_${name}
    PUBLIC meshwright_core ${arg_LINK} ${arg_WITH}
    PRIVATE "$<BUILD_INTERFACE:meshwright_warnings>")
  set_target_properties(meshwright_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_precompile_headers(meshwright_${name} REUSE_FROM meshwright_pch)
  set(meshwright_libraries ${meshwright_libraries} meshwright_${name} PARENT_SCOPE)
endfunction()

meshwright_add_library(common)
meshwright_add_library(luajson WITH PkgConfig::lua)
meshwright_add_library(transport)
meshwright_add_library(launch LINK common transport)
meshwright_add_library(prove)
meshwright_add_library(predict LINK common)
meshwright_add_library(search LINK common predict)
meshwright_add_library(observers LINK common)
meshwright_add_library(check LINK common observers prove)
meshwright_add_library(checkpoint LINK common)
find_path(MESHWRIGHT_XXHASH xxhash.h REQUIRED)
target_include_directories(meshwright_checkpoint SYSTEM PRIVATE "${MESHWRIGHT_XXHASH}")
meshwright_add_library(record LINK common predict WITH PkgConfig::hdf5 ${MESHWRIGHT_HDF5_HL})
# Plugins find it in the program (meshwright/run_file.h), which does not call it itself.
set(measured_times _ZN2mw14measured_timesERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt6vectorIiSaIiEE)
target_link_options(meshwright_record INTERFACE
  "LINKER:-u,${measured_times}" "LINKER:--export-dynamic-symbol=${measured_times}")
meshwright_add_library(draw LINK common predict record)
meshwright_add_library(report LINK common draw predict record)
meshwright_add_library(frontend LINK checkpoint common draw luajson predict search)

# Links the core, the ops and what carries messages between processes, without the core's include
# folders: a plugin that reaches into core/src must fail.
add_library(meshwright_library INTERFACE)
add_library(Meshwright::library ALIAS meshwright_library)
target_link_libraries(meshwright_library INTERFACE
  "$<LINK_ONLY:meshwright_core>" "$<LINK_ONLY:meshwright_models>"
  "$<LINK_ONLY:meshwright_transport>")

# The command line, all but its main(), which tests of it lack.
file(GLOB_RECURSE app_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/app/*.cpp")
list(FILTER app_sources EXCLUDE REGEX "/app/main.cpp$")
meshwright_filter_parts(app_sources)
meshwright_together(app_sources ${app_sources})
add_library(meshwright_app OBJECT ${app_sources})
set(app_libraries ${meshwright_libraries})
list(REMOVE_ITEM app_libraries ${meshwright_without_libraries})
target_link_libraries(meshwright_app
  PUBLIC ${app_libraries} meshwright_built_in CLI11::CLI11 PkgConfig::edit PRIVATE meshwright_warnings)
target_precompile_headers(meshwright_app REUSE_FROM meshwright_pch)
add_executable(meshwright "${PROJECT_SOURCE_DIR}/app/main.cpp")
target_link_libraries(meshwright PRIVATE meshwright_app meshwright_warnings)
target_precompile_headers(meshwright REUSE_FROM meshwright_pch)

# What `--processes` loads into mpirun, and `chaos` into the processes of a run. Without sanitizers,
# which mpirun is not built with, and without the C++ library (tests/layout/test_links.py).
foreach(path IN ITEMS launch/loopback launch/clock)
  get_filename_component(name "${path}" NAME)
  add_library(meshwright_${name} SHARED "${PROJECT_SOURCE_DIR}/libs/${path}/${name}.cpp")
  target_compile_options(meshwright_${name} PRIVATE
    -fno-sanitize=all -fno-exceptions -fno-rtti -fno-threadsafe-statics)
  target_link_options(meshwright_${name} PRIVATE -fno-sanitize=all -Wl,--as-needed)
  target_link_libraries(meshwright_${name} PRIVATE ${CMAKE_DL_LIBS})
  add_dependencies(meshwright meshwright_${name})
endforeach()

add_custom_target(programs DEPENDS meshwright)

# Sets KIND and SUMMARY to what the MESHWRIGHT_PLUGIN(…) among the files registers first.
function(meshwright_registered_by kind summary files)
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    if(text MATCHES "MESHWRIGHT_PLUGIN\\(\"[^\"]*\", *\"[^\"]*\",[ \n]*\"([^\"]*)\",[ \n]*mw::([a-z_]+)<")
      set(${summary} "${CMAKE_MATCH_1}" PARENT_SCOPE)
      set(${kind} "${CMAKE_MATCH_2}" PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

function(meshwright_add_own_plugins folder output)
  file(GLOB folders CONFIGURE_DEPENDS LIST_DIRECTORIES true "${folder}/*")
  foreach(path IN LISTS folders)
    get_filename_component(name "${path}" NAME)
    file(GLOB files CONFIGURE_DEPENDS "${path}/*.cpp")
    if(NOT files OR name IN_LIST linked_plugins)
      continue()
    endif()
    # What a plugin alone needs, it finds itself: plugin.cmake sets MESHWRIGHT_PLUGIN_LINK to what
    # is linked, or MESHWRIGHT_PLUGIN_LEFT_OUT to why it cannot be built here, with
    # MESHWRIGHT_PLUGIN_HINT, what to do. It may add to `files`.
    unset(MESHWRIGHT_PLUGIN_LINK)
    unset(MESHWRIGHT_PLUGIN_LEFT_OUT)
    unset(MESHWRIGHT_PLUGIN_HINT)
    include("${path}/plugin.cmake" OPTIONAL)
    if(name IN_LIST meshwright_without AND folder STREQUAL "${PROJECT_SOURCE_DIR}/plugins")
      set(MESHWRIGHT_PLUGIN_LEFT_OUT "it was made without the part ${name}")
      set(MESHWRIGHT_PLUGIN_HINT "build without -DMESHWRIGHT_WITHOUT=${name}")
    endif()
    if(MESHWRIGHT_PLUGIN_LEFT_OUT)
      message(STATUS "Plugin ${name} is left out: ${MESHWRIGHT_PLUGIN_LEFT_OUT} (${MESHWRIGHT_PLUGIN_HINT})")
      unset(kind)
      unset(summary)
      meshwright_registered_by(kind summary "${files}")
      list(APPEND left_out
        "{\"name\": \"${name}\", \"kind\": \"${kind}\", \"summary\": \"${summary}\", \"why\": \"${MESHWRIGHT_PLUGIN_LEFT_OUT}\", \"hint\": \"${MESHWRIGHT_PLUGIN_HINT}\"}")
      continue()
    endif()
    list(APPEND modules "${output}/${name}.so")
    meshwright_together(files ${files})
    meshwright_add_plugin(${name} ${files} OUTPUT_DIRECTORY "${output}" LINK ${MESHWRIGHT_PLUGIN_LINK})
    target_link_libraries(plugin_${name} PRIVATE meshwright_warnings)
    # Of default visibility, as the precompiled header is;
    # what a module exports is what its map says.
    set_target_properties(plugin_${name} PROPERTIES
      CXX_VISIBILITY_PRESET default VISIBILITY_INLINES_HIDDEN OFF)
    target_precompile_headers(plugin_${name} REUSE_FROM meshwright_pch)
    list(APPEND targets plugin_${name})
    if(ARGN)
      add_dependencies(${ARGN} plugin_${name})
    endif()
  endforeach()
  set(MESHWRIGHT_OWN_PLUGINS ${targets} PARENT_SCOPE)
  # What the program says of plugins that it was built without: it reads this file.
  list(JOIN left_out ",\n " left_out)
  file(CONFIGURE OUTPUT "${output}/left_out.json" CONTENT "[${left_out}]\n" @ONLY)
  # The module of a plugin that was renamed or removed would still be found by the program.
  file(GLOB stale "${output}/*.so")
  list(REMOVE_ITEM stale ${modules})
  if(stale)
    file(REMOVE ${stale})
  endif()
endfunction()

meshwright_add_own_plugins("${PROJECT_SOURCE_DIR}/plugins"
                           "${PROJECT_BINARY_DIR}/lib/meshwright/plugins" programs)

file(GLOB bench_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/*.cpp")
foreach(source IN LISTS bench_sources)
  get_filename_component(name "${source}" NAME_WE)
  add_executable(bench_${name} "${source}")
  target_include_directories(bench_${name} PRIVATE "${PROJECT_SOURCE_DIR}/core/src")
  target_link_libraries(bench_${name} PRIVATE ${meshwright_libraries} meshwright_built_in CLI11::CLI11 meshwright_warnings)
  target_precompile_headers(bench_${name} REUSE_FROM meshwright_pch)
endforeach()

# Chart.js, which becomes part of the pages that the program writes.
find_file(MESHWRIGHT_CHART_JS chart.min.js PATHS "${unpacked_usr}/share/javascript/chart.js" /usr/share/javascript/chart.js REQUIRED)

# The program finds its Lua side, cluster files, templates and the parts of its pages at
# ../share/meshwright, installed or not.
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/share/meshwright")
foreach(path IN ITEMS lua clusters tests/reference kit/templates kit/mixes.json
                      kit/calibration.json kit/communicator.lua libs/draw/page bench)
  get_filename_component(name "${path}" NAME)
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${path}"
       "${PROJECT_BINARY_DIR}/share/meshwright/${name}" SYMBOLIC)
endforeach()
file(CREATE_LINK "${PROJECT_SOURCE_DIR}/python/src" "${PROJECT_BINARY_DIR}/share/meshwright/python" SYMBOLIC)
# mw.text "gcide": there once the launcher has unpacked it.
file(CREATE_LINK "${PROJECT_SOURCE_DIR}/.deps/text"
     "${PROJECT_BINARY_DIR}/share/meshwright/text" SYMBOLIC)
file(CREATE_LINK "${MESHWRIGHT_CHART_JS}" "${PROJECT_BINARY_DIR}/share/meshwright/chart.min.js" SYMBOLIC)
