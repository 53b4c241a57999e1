# Builds a plugin: meshwright_add_plugin(NAME FILE… [LINK TARGET…] [OUTPUT_DIRECTORY DIR]).
#
# A plugin is one loadable module NAME.so, compiled against the SDK headers alone, with every symbol
# hidden but the descriptor. Used by this repository and, after find_package(Meshwright), by others,
# for whom it comes with a precompiled header (MeshwrightPrecompiled.cmake).
function(meshwright_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "OUTPUT_DIRECTORY" "LINK")
  set(target plugin_${name})
  add_library(${target} MODULE ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${target} PRIVATE Meshwright::sdk Meshwright::library ${arg_LINK})
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} DEFINE_SYMBOL ""
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON CXX_EXTENSIONS OFF)
  if(COMMAND meshwright_precompile)
    meshwright_precompile(${target})
  endif()
  # Hidden visibility alone still exports the unique symbols of the standard library's templates.
  set(map "${CMAKE_CURRENT_BINARY_DIR}/meshwright_plugin.map")
  file(CONFIGURE OUTPUT "${map}" CONTENT "{ global: meshwright_plugin; local: *; };\n")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
  if(arg_OUTPUT_DIRECTORY)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${arg_OUTPUT_DIRECTORY}")
  endif()
endfunction()
