# Parts of the program that a build may leave out: -DMESHWRIGHT_WITHOUT="search;sweep".
# The program then has nothing of app/PART, libs/PART and plugins/PART. In place of what others call
# stands app/PART/left_out.cpp, which says so. Tests of libs/PART still link it.
set(meshwright_parts search report check chaos sweep kit calibrate)
list(JOIN meshwright_parts ", " parts)
set(MESHWRIGHT_WITHOUT "" CACHE STRING "Parts to leave out of the program: ${parts}")
foreach(part IN LISTS MESHWRIGHT_WITHOUT)
  if(NOT part IN_LIST meshwright_parts)
    message(FATAL_ERROR "MESHWRIGHT_WITHOUT: there is no part ${part} that can be left out; parts: ${parts}")
  endif()
endforeach()
set(meshwright_without ${MESHWRIGHT_WITHOUT})
if(check IN_LIST meshwright_without AND NOT kit IN_LIST meshwright_without)
  list(APPEND meshwright_without kit)
  message(STATUS "kit is left out too: it tries plugins with the part check")
endif()
list(TRANSFORM meshwright_without PREPEND meshwright_ OUTPUT_VARIABLE meshwright_without_libraries)

# Takes out of a list of the sources of app those that this build does not have.
function(meshwright_filter_parts sources_of_app)
  set(files ${${sources_of_app}})
  list(FILTER files EXCLUDE REGEX "/left_out.cpp$")
  foreach(part IN LISTS meshwright_without)
    list(FILTER files EXCLUDE REGEX "/app/${part}/")
    list(APPEND files "${PROJECT_SOURCE_DIR}/app/${part}/left_out.cpp")
  endforeach()
  set(${sources_of_app} ${files} PARENT_SCOPE)
endfunction()
