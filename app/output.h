// What the program says, and where: results and people's text on stdout, diagnostics on stderr.
// If --json is given, stdout carries one JSON object a line and everything else goes to stderr.
#pragma once

#include <set>
#include <string>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

// The exit code of a process that is to end with `code`. If something for stdout could not be
// written, as where the disk is full, it is never 0, and an error is printed on stderr.
int with_stdout_written(int code);

class Output {
 public:
  // With `json`, whatever else writes to stdout (a script's print, a library) goes to stderr from
  // here on.
  explicit Output(bool json, bool quiet = false);

  bool json() const { return json_; }
  bool quiet() const { return quiet_; }    // no text but errors and what a script prints
  bool colour() const { return colour_; }  // stderr is a terminal and NO_COLOR is not set
  // Writes a result: a line of JSON with --json, and nothing without.
  void result(const Json& object);
  // Writes text for people to stdout, or to stderr with --json, and adds a missing newline. Nothing
  // if quiet.
  void text(const std::string& text);
  // From here on, stdout is for document() alone: all else goes to stderr.
  void keep_stdout();
  // Undoes keep_stdout() and what --json does to stdout, in a process that only starts another one.
  void give_stdout_back();
  // Writes what somebody saves or pipes on, quiet or not: to the original stdout, with --json to
  // stderr.
  void document(const std::string& text);
  // From here on only error() says anything, and stdout goes nowhere: another process speaks.
  void mute();
  // Writes a diagnostic to stderr. Nothing if quiet.
  void note(const std::string& text);
  // Whether the text is asked about for the first time, so that a loop says it only once.
  bool says_first(const std::string& text) { return said_.insert(text).second; }
  // Writes a diagnostic even if quiet: a run lacks something that somebody relies on.
  void warn(const std::string& text);
  // Every problem: "error: …" and its hint on stderr; with --json a line each on stdout too.
  void error(const Error& error);

 private:
  bool json_, quiet_, colour_;
  bool muted_ = false;
  std::set<std::string> said_;
  int lines_ = 1;  // file descriptor of the JSON lines
};

}  // namespace mw
