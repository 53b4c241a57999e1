// How a process is started: with its words, variables and output, and not at all where its program
// is missing.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/files.h"
#include "common/process.h"

using namespace mw;

namespace {

std::string said_by(ProcessStart start, int& status) {
  const auto file = std::filesystem::temp_directory_path() /
                    ("meshwright-start-" + std::to_string(::getpid()) + ".txt");
  start.output = file.string();
  const pid_t process = start_process(start);
  REQUIRE(::waitpid(process, &status, 0) == process);
  const std::string said = whole_file(file).value_or("");
  std::filesystem::remove(file);
  return said;
}

}  // namespace

TEST_CASE("a process has the words, the variables and the output that it is started with") {
  ::setenv("MESHWRIGHT_TEST_OTHER", "here", 1);
  ProcessStart start;
  start.command = {"sh", "-c", "echo $1 $MESHWRIGHT_TEST_ONE $MESHWRIGHT_TEST_OTHER; cat; exit 3",
                   "sh", "word"};
  start.variables = {"MESHWRIGHT_TEST_ONE=one"};
  int status = 0;
  CHECK(said_by(start, status) == "word one here\n");
  CHECK(WEXITSTATUS(status) == 3);
  start.variables.push_back("MESHWRIGHT_TEST_OTHER=there");
  CHECK(said_by(start, status) == "word one there\n");
}

TEST_CASE("the first word need not be the program's file") {
  ProcessStart start;
  start.program = "/bin/sh";
  start.command = {"called", "-c", "echo $0", "so"};
  int status = 0;
  CHECK(said_by(start, status) == "so\n");
}

TEST_CASE("a program that is not there does not start") {
  ProcessStart start;
  start.command = {"meshwright-is-no-program"};
  CHECK_THROWS_AS(start_process(start), std::system_error);
}

TEST_CASE("a process is ended with the one that it is tied to") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t between = ::fork();
  if (between == 0) {
    ::close(ends[0]);
    if (fork_tied(SIGKILL) == 0) {
      for (;;) ::pause();  // it holds the pipe for as long as it lives
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  char byte = 0;
  CHECK(::read(ends[0], &byte, 1) == 0);  // which ends with the last of both
  ::close(ends[0]);
  REQUIRE(::waitpid(between, nullptr, 0) == between);
}
