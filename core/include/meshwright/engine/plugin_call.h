// Calls into code of plugins: whatever it throws becomes an Error that names the plugin and where
// the script has it.
#pragma once

#include <string>

#include "meshwright/error.h"

namespace mw {

// A plugin that is called, as messages name it.
struct Speaker {
  std::string plugin;  // "tp"; empty: nobody
  std::string place;   // "plan[2]"; may be empty
};

// The problem as the speaker's. Its key, the name of an option or empty, becomes a path from the
// experiment; its message gets that path in front, or the speaker's place and name, unless it
// begins with either itself: "tp(3) cannot …".
Problem attributed(const Speaker& speaker, Problem problem);

// What is being thrown, for people: an exception's text, a text, "the integer 5", a type's name. To
// be called in a handler.
std::string thrown_text();

// In a handler of what a plugin threw while it `did` ("edited the plan"): throws an Error of this
// stage instead. An Error keeps its stage, code and words, attributed; thrown on as they are: those
// of a script, which say their own line, and in a run (`stage`) all of them.
[[noreturn]] void throw_named(const Speaker& speaker, const char* did, Stage stage = Stage::plan);

template <class Body>
auto call_plugin(const Speaker& speaker, const char* did, Body&& body, Stage stage = Stage::plan) {
  try {
    return body();
  } catch (...) {
    throw_named(speaker, did, stage);
  }
}

}  // namespace mw
