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

// What programs and tests go by is the code and the key; the words are for people, and nothing
// reads them.
struct Problem {
  Stage stage = Stage::run;
  std::string code;     // its kind, one of docs/errors.md: "option.range"
  std::string key;      // what of the experiment is at fault: "plan[2].ways"; empty: nothing of it
  std::string message;  // what happened, with the numbers
  std::string hint = {};  // what to do; the nearest valid choice. May be empty
  // Where the author wrote what is at fault, "script.lua:12" or "--set steps=0": found by the key,
  // by what read the script.
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

// What an exception that is no Error has to say, with a hint: what the standard library throws says
// nothing of its own ("std::bad_alloc").
Problem problem_of(const std::exception& thrown);

// Throws Error (run, "interrupted") from the first wish to stop on (SIGINT, SIGTERM): for what ends
// with nothing done, as planning does. A plugin's search that takes seconds calls it now and then.
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
