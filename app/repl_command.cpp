// The command repl: a Lua prompt, whose lines are edited as people are used to, with history and
// completion (libedit).
#include <fcntl.h>
#include <fmt/format.h>
#include <histedit.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <system_error>

#include "app/option_text.h"
#include "app/script_command.h"
#include "app/stuck_end.h"
#include "app/texts.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

class LineEditor {
 public:
  // `history`: a file that is read now and written at the end, unless that fails.
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

struct LineEditor::State {
  std::string prompt;
  fs::path file;
  std::function<Completion(const std::string&)> complete;
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::mbstate_t decoding{};
  int woken = -1;  // readable once Ctrl-C was typed
};

constexpr int most_lines_kept = 2000;

volatile std::sig_atomic_t given_up = 0;
volatile std::sig_atomic_t wakes = -1;  // the write end of OwnInterrupt's pipe; -1: none
extern "C" void give_up(int) {
  const int error = errno;
  given_up = 1;
  const char byte = 0;
  if (::write(wakes, &byte, 1) < 0) errno = error;
}

// While a line is read, Ctrl-C ends the line and nothing else. It wakes the reader through a pipe:
// the signal may come before the reader waits, or to another thread.
class OwnInterrupt {
 public:
  OwnInterrupt() {
    if (::pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) != 0)
      throw std::system_error(errno, std::generic_category(), "pipe");
    given_up = 0;
    wakes = pipe_[1];
    struct sigaction action {};
    action.sa_handler = give_up;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before_);
  }
  ~OwnInterrupt() {
    sigaction(SIGINT, &before_, nullptr);
    wakes = -1;
    ::close(pipe_[0]);
    ::close(pipe_[1]);
  }
  int woken() const { return pipe_[0]; }
  OwnInterrupt(const OwnInterrupt&) = delete;
  OwnInterrupt& operator=(const OwnInterrupt&) = delete;

 private:
  int pipe_[2] = {-1, -1};
  struct sigaction before_ {};
};

LineEditor::State& editor_state(EditLine* editor) {
  void* state = nullptr;
  el_get(editor, EL_CLIENTDATA, &state);
  return *static_cast<LineEditor::State*>(state);
}

char* prompt_of(EditLine* editor) {
  return editor_state(editor).prompt.data();
}

// Reads for libedit, whose own function would go on reading after a signal.
int read_character(EditLine* editor, wchar_t* into) {
  std::mbstate_t& decoding = editor_state(editor).decoding;
  while (true) {
    pollfd waiting[] = {{STDIN_FILENO, POLLIN, 0}, {editor_state(editor).woken, POLLIN, 0}};
    const int ready = ::poll(waiting, 2, -1);
    if (given_up != 0 || stop_requested()) return -1;
    if (ready < 0 && errno == EINTR) continue;
    char byte = 0;
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    const std::size_t used = std::mbrtowc(into, &byte, 1, &decoding);
    if (used == static_cast<std::size_t>(-2)) continue;  // only the first bytes of a character
    if (used == static_cast<std::size_t>(-1)) {  // no character: the byte is passed on as it is
      decoding = {};
      *into = static_cast<unsigned char>(byte);
    }
    return 1;
  }
}

std::string shared_beginning(const std::vector<std::string>& words) {
  std::string shared = words.front();
  for (const std::string& word : words) {
    const auto end = std::mismatch(shared.begin(), shared.end(), word.begin(), word.end()).first;
    shared.erase(end, shared.end());
  }
  return shared;
}

unsigned char complete_word(EditLine* editor, int) {
  const LineInfo* line = el_line(editor);
  const Completion found = editor_state(editor).complete(std::string(line->buffer, line->cursor));
  if (found.choices.empty()) return CC_REFRESH_BEEP;
  const std::string more = shared_beginning(found.choices).substr(found.word.size());
  if (!more.empty()) {
    el_insertstr(editor, more.c_str());
    return CC_REFRESH;
  }
  if (found.choices.size() == 1) return CC_NORM;
  int columns = 80;
  el_get(editor, EL_GETTC, "co", &columns);
  std::size_t widest = 0;
  for (const std::string& name : found.choices) widest = std::max(widest, name.size());
  const std::size_t each =
      std::max<std::size_t>(1, static_cast<std::size_t>(std::max(columns, 20)) / (widest + 2));
  std::string text = "\n";
  for (std::size_t i = 0; i < found.choices.size(); ++i) {
    const bool last = i + 1 == found.choices.size() || (i + 1) % each == 0;
    text += last ? found.choices[i] + "\n" : fmt::format("{:{}}", found.choices[i], widest + 2);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return CC_REDISPLAY;
}

// $XDG_STATE_HOME/meshwright/history or ~/.local/state/meshwright/history.
fs::path history_file() {
  const char* xdg = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (xdg != nullptr && *xdg == '/') return fs::path(xdg) / "meshwright/history";
  if (home != nullptr && *home == '/') return fs::path(home) / ".local/state/meshwright/history";
  return {};
}

LineEditor::LineEditor(const fs::path& history,
                       std::function<Completion(const std::string&)> complete)
    : state_(std::make_unique<State>()) {
  std::setlocale(LC_CTYPE, "");  // for characters alone: numbers stay as programs write them
  if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
  State& state = *state_;
  state.file = history;
  state.complete = std::move(complete);
  state.history = history_init();
  HistEvent event{};
  ::history(state.history, &event, H_SETSIZE, most_lines_kept);
  ::history(state.history, &event, H_SETUNIQUE, 1);
  if (!state.file.empty()) ::history(state.history, &event, H_LOAD, state.file.c_str());
  state.editor = el_init("meshwright", stdin, stdout, stderr);
  el_set(state.editor, EL_CLIENTDATA, &state);
  el_set(state.editor, EL_PROMPT, prompt_of);
  el_set(state.editor, EL_EDITOR, "emacs");
  el_set(state.editor, EL_HIST, ::history, state.history);
  el_set(state.editor, EL_GETCFN, read_character);
  el_set(state.editor, EL_ADDFN, "complete", "what the word may become", complete_word);
  el_set(state.editor, EL_BIND, "^I", "complete", nullptr);
  el_set(state.editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_source(state.editor, nullptr);  // the user's own ~/.editrc
}

LineEditor::~LineEditor() {
  State& state = *state_;
  el_end(state.editor);
  if (!state.file.empty()) {
    std::error_code error;
    fs::create_directories(state.file.parent_path(), error);
    HistEvent event{};
    const mode_t before = ::umask(077);  // what was typed is the user's own
    ::history(state.history, &event, H_SAVE, state.file.c_str());
    ::umask(before);
  }
  history_end(state.history);
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  State& state = *state_;
  state.prompt = prompt;
  state.decoding = {};
  const OwnInterrupt own;
  state.woken = own.woken();
  // libedit shows the prompt before it takes the terminal; Ctrl-D typed in between would be lost.
  el_set(state.editor, EL_PREP_TERM, 1);
  int length = 0;
  const char* line = el_gets(state.editor, &length);
  if (given_up != 0) {
    el_reset(state.editor);
    std::fputs("^C\n", stdout);
    std::fflush(stdout);
    throw Stopped("interrupted");
  }
  if (line == nullptr || length <= 0) return std::nullopt;
  std::string text(line, static_cast<std::size_t>(length));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.find_first_not_of(" \t") != std::string::npos) {
    HistEvent event{};
    ::history(state.history, &event, H_ENTER, text.c_str());
  }
  return text;
}

int run_repl(const ScriptArguments& arguments, Output& output) {
  stop_on_signals();
  const IfStuck if_stuck([&output](const Error& error) { end_stuck(error, output); });
  PluginRegistry plugins = registry_of(arguments);
  AppHost host(output, plugins);
  Script script(host, script_options(arguments, "train", output));
  Prompt prompt;
  prompt.print = [&output](const std::string& text) { output.text(text); };
  prompt.error = [&output](const Error& error) { output.error(error); };
  prompt.help = [&](const std::string& name) -> std::string {
    const Json found = from_library("help", {{"types", lua_types(plugins)}, {"name", name}});
    if (found.is_string()) return found;
    const auto names = found.get<std::vector<std::string>>();
    const std::string near = did_you_mean(names.front(), {names.begin() + 1, names.end()});
    throw Error(Stage::script, "help.unknown", "",
                fmt::format("help: nothing is called {}", quote(name)),
                near.empty() ? "help() says what there is" : near);
  };
  if (::isatty(STDIN_FILENO) == 0) {
    prompt.read = [](const std::string&) -> std::optional<std::string> {
      std::string line;
      if (!std::getline(std::cin, line)) return std::nullopt;
      return line;
    };
    script.repl(prompt);
  } else {
    output.text(version_line() +
                ", mw is loaded; help() says more, Tab completes, Ctrl-C ends a line or a run, "
                "Ctrl-D ends");
    LineEditor editor(history_file(),
                      [&script](const std::string& before) { return script.complete(before); });
    prompt.read = [&editor](const std::string& text) { return editor.read(text); };
    script.repl(prompt);
    output.text("");
  }
  return stop_requested() ? exit_interrupted : 0;
}

const CommandOf<ScriptArguments> repl_command{
    {"repl", 200, "a Lua prompt with mw loaded"},
    [](CLI::App& command, ScriptArguments& a) { add_common(command, a, false); },
    run_repl};

}  // namespace
}  // namespace mw
