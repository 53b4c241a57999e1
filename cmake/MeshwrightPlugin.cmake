# meshwright_add_plugin(NAME FILE… [LINK TARGET…] [OUTPUT_DIRECTORY DIR])
#
# A plugin is one loadable module NAME.so, compiled against the SDK headers alone, with every symbol
# hidden but the descriptor. Used by this repository and, after find_package(Meshwright), by others.
function(meshwright_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "OUTPUT_DIRECTORY" "LINK")
  set(target plugin_${name})
  add_library(${target} MODULE ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${target} PRIVATE Meshwright::sdk ${arg_LINK})
  target_compile_definitions(${target} PRIVATE MESHWRIGHT_PLUGIN_NAME="${name}")
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} DEFINE_SYMBOL ""
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(arg_OUTPUT_DIRECTORY)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${arg_OUTPUT_DIRECTORY}")
  endif()
endfunction()
