// Ends the process where a script's code is inside a C function that does not return: no hook of
// Lua's runs there, and nothing else can end a thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "meshwright/error.h"

namespace mw {

// What is done about it: mostly, to write down what there is and to end the process. It is called
// on a thread of its own with what has happened, "function.timeout" or "run.stopped", while the
// thread that is stuck goes on. One that returns is not called again.
using OnStuck = std::function<void(const Error&)>;
// Sets the handler and returns the one before. Without one the process ends at once, with the
// error's exit code.
OnStuck on_stuck(OnStuck handler);

// Looks ten times a second at how long a script's code has been running without a look at the
// clock or at the wish to stop of its own (ScriptWatch, which ends all that Lua itself executes).
class StuckWatch {
 public:
  // How much longer than ScriptWatch's own limits code may take before it counts as stuck.
  static constexpr std::chrono::seconds after_timeout{5}, after_stop{5};

  StuckWatch();
  ~StuckWatch();
  StuckWatch(const StuckWatch&) = delete;
  StuckWatch& operator=(const StuckWatch&) = delete;

  // Code that returns after all while the handler is being called waits in script_ends(),
  // verb_begins(), verb_ends() or function_ends() until the handler returns.

  // The script itself runs, outside of the functions that a verb calls, until it ends. They nest.
  void script_begins();
  void script_ends();
  // A verb runs: the script waits for it.
  void verb_begins();
  void verb_ends();
  // A function of the script runs that a verb has called; `place` is where it was defined.
  void function_begins(double seconds, std::string place);
  void function_ends();

 private:
  struct Shared;
  // The watching thread, which a copy of this process by fork() does not have yet.
  Shared& watched();

  std::shared_ptr<Shared> shared_;
};

// While one is there, a script's own code runs.
class InScript {
 public:
  explicit InScript(StuckWatch& watch) : watch_(watch) { watch_.script_begins(); }
  ~InScript() { watch_.script_ends(); }
  InScript(const InScript&) = delete;
  InScript& operator=(const InScript&) = delete;

 private:
  StuckWatch& watch_;
};

}  // namespace mw
