// How the process ends where a script's code does not come back from a C function (lua/stuck.h).
#pragma once

#include <utility>

#include "app/output.h"
#include "lua/stuck.h"

namespace mw {

// Sets the handler of stuck scripts until the end of the scope.
class IfStuck {
 public:
  explicit IfStuck(OnStuck handler) : before_(on_stuck(std::move(handler))) {}
  ~IfStuck() { on_stuck(std::move(before_)); }
  IfStuck(const IfStuck&) = delete;
  IfStuck& operator=(const IfStuck&) = delete;

 private:
  OnStuck before_;
};

// Prints the error and ends the process.
[[noreturn]] void end_stuck(const Error& error, Output& output);
// The error as one of a run: what a script's function does wrong in a run is the run's failure.
Error stuck_in_run(const Error& error);

}  // namespace mw
