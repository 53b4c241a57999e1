// The one place that compiles Catch2, and the tests' main().
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "base/vector_math.h"
#include "common/process.h"
#include "meshwright/engine/cpu.h"

int main(int argc, char** argv) {
  mw::exit_without_unloading();
  mw::keep_thread_limit();
  mw::settle_vector_math();
  return Catch::Session().run(argc, argv);
}
