// How Meshwright reports what went wrong: a Problem says what happened and what to do about it;
// an Error carries one or more of them (all of a script's problems are reported at once).
#pragma once

#include <exception>
#include <string>
#include <vector>

namespace mw {

// Where a problem was found. Decides the exit code and the `stage` key of a JSON error line.
enum class Stage { script, options, plan, run, environment };

// "script", "options", "plan", "run", "environment".
const char* name_of(Stage stage);

// 2 for script and options, 3 for plan, 1 for run, 5 for environment.
int exit_code_of(Stage stage);

// One error with a remedy. Programs and tests read `code` and `key`; message and hint are for
// people only.
struct Problem {
  Stage stage = Stage::run;
  std::string code;       // the kind of problem, one of docs/errors.md: "option.range"
  std::string key;        // the experiment's key at fault, "plan[2].ways"; empty: none
  std::string message;    // what happened, with the numbers
  std::string hint = {};  // what to do, with the nearest valid choice; may be empty
  // Where the author wrote the value at fault, "script.lua:12" or "--set steps=0". The reader of
  // the script finds the place by `key`.
  std::string place = {};

  std::string text() const;  // the message with the place in front
};

class Error : public std::exception {
 public:
  Error(Stage stage, std::string code, std::string key, std::string message, std::string hint = "");
  explicit Error(Problem problem);
  explicit Error(std::vector<Problem> problems);  // at least one

  const std::vector<Problem>& problems() const { return problems_; }
  // The exit code of the gravest problem: script and options before plan before the rest.
  int exit_code() const;
  // All texts, one a line, each with its hint in brackets.
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::vector<Problem> problems_;
  std::string text_;
};

// Turns an exception that is no Error into a problem with a message for users and a hint, because
// messages of the standard library, such as "std::bad_alloc", do not help.
Problem problem_of(const std::exception& thrown);

// Throws Error (run, "run.stopped") once the user has asked to stop (SIGINT, SIGTERM). For work
// that may end without a result, such as planning. A plugin's search that takes seconds should call
// this now and then.
void throw_if_stopped();

// Collects problems so that a user sees all of them at once.
class Problems {
 public:
  void add(Stage stage, std::string code, std::string key, std::string message,
           std::string hint = "");
  void add(Problem problem);
  void add(const Error& error);
  void add(const Problems& others);
  bool empty() const { return list_.empty(); }
  const std::vector<Problem>& list() const { return list_; }
  void throw_if_any() const;  // throws Error with all of them

 private:
  std::vector<Problem> list_;
};

}  // namespace mw
