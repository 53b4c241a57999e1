// Ends the process where a script's code is inside a C function that does not return: no hook of
// Lua's runs there, and nothing else can end a thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "meshwright/error.h"

namespace mw {

// A handler for stuck code: mostly, it saves what there is and ends the process. It is called on a
// thread of its own with the error, "function.timeout" or "run.stopped", while the stuck thread
// goes on. If it returns, it is not called again.
using OnStuck = std::function<void(const Error&)>;
// Sets the handler and returns the one before. Without one the process ends at once, with the
// error's exit code.
OnStuck on_stuck(OnStuck handler);

// Looks ten times a second at how long a script's code has run on past the limits of ScriptWatch,
// which ends all code that Lua itself executes.
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

  // Around the script's own code, outside of functions that a verb calls. Calls may nest.
  void script_begins();
  void script_ends();
  // Around a verb, for which the script waits.
  void verb_begins();
  void verb_ends();
  // Around a script's function that a verb calls; `place` is where the function was defined.
  void function_begins(double seconds, std::string place);
  void function_ends();

 private:
  struct Shared;
  // Starts the watching thread where this process has none, as a copy by fork() has not.
  Shared& watched();

  std::shared_ptr<Shared> shared_;
};

// Tells a StuckWatch that a script's own code runs.
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
