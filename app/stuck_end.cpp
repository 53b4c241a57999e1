// Prints why the process ends, and ends it without waiting for its threads.
#include "app/stuck_end.h"

#include <unistd.h>

#include <cstdio>
#include <vector>

#include "meshwright/engine/interrupt.h"

namespace mw {

void end_stuck(const Error& error, Output& output) {
  output.error(error);
  std::fflush(nullptr);
  ::_exit(exit_code_ending_by(error));
}

Error stuck_in_run(const Error& error) {
  std::vector<Problem> problems = error.problems();
  for (Problem& problem : problems) problem.stage = Stage::run;
  return Error(std::move(problems));
}

}  // namespace mw
