# The fuzzers (docs/trust.md), in the preset fuzz alone: one program, build-fuzz/bin/fuzz_readers,
# that holds every target of tests/fuzz, and the plugins that plans of its experiments name.

file(GLOB fuzz_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/fuzz/*.cpp")
list(FILTER fuzz_sources EXCLUDE REGEX "_test\\.cpp$")
meshwright_together(fuzz_sources ${fuzz_sources})
add_executable(fuzz_readers "${PROJECT_SOURCE_DIR}/tests/fuzz/entry/fuzzer.cpp" ${fuzz_sources})
target_include_directories(fuzz_readers PRIVATE "${PROJECT_SOURCE_DIR}/tests" "${PROJECT_SOURCE_DIR}/core/src")
target_link_libraries(fuzz_readers PRIVATE
  meshwright_app meshwright_checkpoint meshwright_frontend meshwright_launch meshwright_record
  meshwright_report meshwright_built_in)
target_link_options(fuzz_readers PRIVATE -fsanitize=fuzzer)
add_dependencies(fuzz_readers plugin_dp plugin_zero plugin_tp plugin_sp plugin_pp plugin_ep)
