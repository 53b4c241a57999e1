// A line of a terminal, edited as people are used to, with history and completion.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "lua/script.h"

namespace mw {

class LineEditor {
 public:
  // `history`: a file that is read now and written at the end; one that cannot be is left out.
  LineEditor(const std::filesystem::path& history,
             std::function<Completion(const std::string& before)> complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // The line without its end; nothing at the end of the input (Ctrl-D on an empty line). Throws
  // Stopped at Ctrl-C.
  std::optional<std::string> read(const std::string& prompt);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// $XDG_STATE_HOME/meshwright/history or ~/.local/state/meshwright/history.
std::filesystem::path history_file();

}  // namespace mw
