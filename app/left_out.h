// What stands in for a part of the program that a build was made without (cmake/parts.cmake).
#pragma once

#include <fmt/format.h>

#include <string>

#include "app/command.h"
#include "meshwright/error.h"

namespace mw {

// Throws Error (environment): the program was made without the part ("search").
[[noreturn]] inline void throw_left_out(const std::string& part) {
  throw Error(Stage::environment, "part.left_out", "",
              fmt::format("this program was made without {}", part),
              fmt::format("build it again without -DMESHWRIGHT_WITHOUT={}", part));
}

// A command of such a part. It takes any arguments, and refuses.
class LeftOutCommand final : public Command {
 public:
  LeftOutCommand(const char* path, int place, const char* part)
      : Command({path, place, "left out of this build"}), part_(part) {}

  void add_options(CLI::App& command) override { command.allow_extras(); }
  Arguments& arguments() override { return arguments_; }
  int run(Output&) override { throw_left_out(part_); }

 private:
  const char* part_;
  Arguments arguments_;
};

}  // namespace mw
