# Loops are compiled for several instruction sets, apart from all else, with the floating-point
# flags that let the compiler vectorise them. They include no header of ATen.
set(vector_options -O3 -fopenmp-simd -fno-math-errno -fno-trapping-math)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A loop that first runs up to an aligned address would round by where its operands lie.
  list(APPEND vector_options --param=vect-max-peeling-for-alignment=0)
endif()
set(vector_isas plain)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND vector_isas avx2 avx512)
endif()
set(vector_options_avx2 -mavx2 -mfma)
set(vector_options_avx512 -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mprefer-vector-width=512)
foreach(isa IN LISTS vector_isas)
  set(source "${PROJECT_SOURCE_DIR}/plugins/models/ops/vector/isa/${isa}.cpp")
  set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON
    COMPILE_OPTIONS "${vector_options};${vector_options_${isa}}")
  target_sources(meshwright_models PRIVATE "${source}")
endforeach()

# The threads are libtorch's: its own copy of the runtime, whose name the system's has too.
set(source "${PROJECT_SOURCE_DIR}/plugins/models/ops/openmp/on_threads.cpp")
set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # clang's OpenMP has another runtime: the fuzzers' one thread
  set_source_files_properties("${source}" PROPERTIES COMPILE_OPTIONS -fopenmp)
endif()
target_sources(meshwright_models PRIVATE "${source}")
add_library(Torch::gomp SHARED IMPORTED)
set_target_properties(Torch::gomp PROPERTIES
  IMPORTED_LOCATION "${torch_root}/lib/libgomp.so.1" IMPORTED_SONAME libgomp.so.1)
set(MESHWRIGHT_PLUGIN_LINK Torch::gomp meshwright_luajson)
