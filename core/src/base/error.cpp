// Errors that carry several problems, and the exit code that the gravest of them decides.
#include "meshwright/error.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <utility>

namespace mw {
namespace {

// The gravity of a problem, 0 the gravest: a fault of the script may cause all other problems.
int gravity(Stage stage) {
  switch (stage) {
    case Stage::script:
    case Stage::options:
      return 0;
    case Stage::plan:
      return 1;
    case Stage::environment:
      return 2;
    case Stage::run:
      break;
  }
  return 3;
}

std::string text_of(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) {
    if (!text.empty()) text += '\n';
    text += problem.text();
    if (!problem.hint.empty()) text += " [" + problem.hint + "]";
  }
  return text;
}

}  // namespace

const char* name_of(Stage stage) {
  static constexpr std::array names{"script", "options", "plan", "run", "environment"};
  return names.at(static_cast<std::size_t>(stage));
}

int exit_code_of(Stage stage) {
  switch (stage) {
    case Stage::script:
    case Stage::options:
      return 2;
    case Stage::plan:
      return 3;
    case Stage::environment:
      return 5;
    case Stage::run:
      break;
  }
  return 1;
}

std::string Problem::text() const {
  return place.empty() ? message : place + ": " + message;
}

Error::Error(Stage stage, std::string code, std::string key, std::string message, std::string hint)
    : Error(Problem{stage, std::move(code), std::move(key), std::move(message), std::move(hint)}) {}

Error::Error(Problem problem) : Error(std::vector<Problem>{std::move(problem)}) {}

Error::Error(std::vector<Problem> problems) : problems_(std::move(problems)) {
  if (problems_.empty())
    problems_.push_back({Stage::run, "run.exception", "", "an error without a message was thrown",
                         "throw mw::Error with at least one problem"});
  text_ = text_of(problems_);
}

int Error::exit_code() const {
  const auto gravest = std::min_element(
      problems_.begin(), problems_.end(),
      [](const Problem& a, const Problem& b) { return gravity(a.stage) < gravity(b.stage); });
  return gravest == problems_.end() ? exit_code_of(Stage::run) : exit_code_of(gravest->stage);
}

namespace {
constexpr const char* no_memory_hint =
    "make the model, the batch or the number of ranks smaller; meshwright plan says what a rank "
    "needs";
}  // namespace

Problem problem_of(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr ||
      dynamic_cast<const std::length_error*>(&thrown) != nullptr) {
    return {Stage::run, "run.memory", "", "there is not enough memory for what was asked",
            no_memory_hint};
  }
  if (const auto* of_torch = dynamic_cast<const c10::Error*>(&thrown)) {
    const bool memory = dynamic_cast<const c10::OutOfMemoryError*>(&thrown) != nullptr;
    return {Stage::run, memory ? "run.memory" : "run.exception", "",
            of_torch->what_without_backtrace(), memory ? no_memory_hint : ""};
  }
  if (const auto* of_path = dynamic_cast<const std::filesystem::filesystem_error*>(&thrown)) {
    return {Stage::options, "file.read", "",
            fmt::format("{}: {}", of_path->path1().string(), of_path->code().message()),
            "name another file or folder"};
  }
  if (dynamic_cast<const std::logic_error*>(&thrown) != nullptr) {
    return {Stage::run, "run.internal", "",
            std::string("an error inside the program: ") + thrown.what(),
            "this should have been refused with a reason: please report it with the script"};
  }
  return {Stage::run, "run.exception", "", thrown.what()};
}

void Problems::add(Stage stage, std::string code, std::string key, std::string message,
                   std::string hint) {
  add(Problem{stage, std::move(code), std::move(key), std::move(message), std::move(hint)});
}

void Problems::add(Problem problem) {
  list_.push_back(std::move(problem));
}

void Problems::add(const Error& error) {
  list_.insert(list_.end(), error.problems().begin(), error.problems().end());
}

void Problems::add(const Problems& others) {
  list_.insert(list_.end(), others.list_.begin(), others.list_.end());
}

void Problems::throw_if_any() const {
  if (!list_.empty()) throw Error(list_);
}

}  // namespace mw
