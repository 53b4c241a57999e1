# Files of one folder are compiled together, about twenty at a time: what each file pays for the
# headers of ATen and JSON, even precompiled (instantiating what they left pending), is then paid
# once for all of them. So names in anonymous namespaces are unique within a folder.
# `./meshwright lint` compiles each file apart too, and so finds an include that only a neighbour
# has.

option(MESHWRIGHT_UNITY "Compile about twenty files of a folder together" ON)
set(meshwright_files_together 20)
# What -O2 switches on and a precompiled header must be used with as it was made.
set(of_o2 "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13
   AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  set(of_o2 ";-munroll-only-small-loops;-mvzeroupper")
endif()

# Folders of code that runs once a command or waits for files, and tests, whose time is libtorch's:
# a third of the compile time would go into optimising it, which no run shows.
set(meshwright_lightly_optimised
    app core/src/registry libs/check libs/common libs/draw libs/frontend libs/observers
    libs/prove/lemmas libs/record libs/report tests)

# meshwright_together(OUT FILE…): what to compile for these files (absolute paths): files that
# include some of one folder each. Not CMake's own UNITY_BUILD, whose files name absolute paths:
# another clone's cache of compiled objects would not know them.
function(meshwright_together out)
  if(NOT MESHWRIGHT_UNITY)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(together "${PROJECT_BINARY_DIR}/together")
  set(folders "")
  foreach(source IN LISTS ARGN)
    get_filename_component(folder "${source}" DIRECTORY)
    file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${folder}")
    string(MAKE_C_IDENTIFIER "${folder}" key)
    list(APPEND folders "${key}")
    set(light_${key} FALSE)
    foreach(light IN LISTS meshwright_lightly_optimised)
      string(FIND "${folder}/" "${light}/" at)
      if(at EQUAL 0)
        set(light_${key} TRUE)
      endif()
    endforeach()
    list(APPEND files_${key} "${source}")
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set(units "")
  foreach(key IN LISTS folders)
    list(SORT files_${key})
    list(LENGTH files_${key} count)
    math(EXPR batches "(${count} + ${meshwright_files_together} - 1) / ${meshwright_files_together}")
    set(index 0)
    foreach(source IN LISTS files_${key})
      math(EXPR batch "${index} * ${batches} / ${count}")
      file(RELATIVE_PATH path "${together}" "${source}")
      string(APPEND text_${key}_${batch} "#include \"${path}\"\n")
      math(EXPR index "${index} + 1")
    endforeach()
    math(EXPR last "${batches} - 1")
    foreach(batch RANGE ${last})
      set(unit "${together}/${key}_${batch}.cpp")
      # Another target may compile other files of the folder.
      get_property(known GLOBAL PROPERTY "meshwright_unit_${key}_${batch}")
      if(known AND NOT known STREQUAL "${text_${key}_${batch}}")
        string(MD5 sum "${text_${key}_${batch}}")
        string(SUBSTRING "${sum}" 0 8 sum)
        set(unit "${together}/${key}_${batch}_${sum}.cpp")
      else()
        set_property(GLOBAL PROPERTY "meshwright_unit_${key}_${batch}" "${text_${key}_${batch}}")
      endif()
      file(CONFIGURE OUTPUT "${unit}" CONTENT "${text_${key}_${batch}}" @ONLY)
      list(APPEND units "${unit}")
      if(light_${key})
        set_property(SOURCE "${unit}"
          APPEND PROPERTY COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1${of_o2}>")
      endif()
    endforeach()
  endforeach()
  set(${out} ${units} PARENT_SCOPE)
endfunction()
