// One process at a time holds a file, on file systems with locks and without.
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>

#include "common/file_lock.h"
#include "support/temporary_folder.h"

namespace {
bool without_locks = false;
}

// In place of the C library's: a file system without locks.
extern "C" int flock(int file, int operation) noexcept {
  if (without_locks) {
    errno = ENOSYS;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_flock, file, operation));
}

namespace mw {
namespace {

namespace fs = std::filesystem;

// Runs in a process of its own, which is killed when it has said that it is ready.
template <class Work>
void in_killed_process(const Work& work) {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FileLock lock = work();
    const char held = lock.held() ? '1' : '0';
    if (::write(ready[1], &held, 1) == 1) ::pause();
    ::_exit(0);
  }
  char held = '?';
  REQUIRE(::read(ready[0], &held, 1) == 1);
  CHECK(held == '1');
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

struct Locks {
  explicit Locks(bool there) { without_locks = !there; }
  ~Locks() { without_locks = false; }
};

TEST_CASE("A file is held by one at a time, with locks and without") {
  for (const bool locks : {true, false}) {
    const Locks system(locks);
    const TemporaryFolder folder;
    const fs::path file = folder.path() / "log.lock";
    FileLock first(file);
    CHECK(first.held());
    CHECK(first.still_held());
    CHECK((first.descriptor() >= 0) == locks);
    const FileLock second(file);
    CHECK_FALSE(second.held());
    CHECK(second.holder().find(std::to_string(::getpid())) != std::string::npos);
    CHECK(second.unsure().empty());
    FileLock moved = std::move(first);
    CHECK_FALSE(FileLock(file).held());
    moved.let_go();
    CHECK(FileLock(file).held());
    CHECK(FileLock(file, /*wait=*/true).held());
    FileLock last(file);
    last.remove();
    CHECK(fs::is_empty(folder.path()));
  }
}

TEST_CASE("A process that was killed holds nothing") {
  for (const bool locks : {true, false}) {
    const Locks system(locks);
    const TemporaryFolder folder;
    const fs::path file = folder.path() / "cell";
    in_killed_process([&] { return FileLock(file); });
    CHECK(FileLock(file).held());
  }
}

TEST_CASE("Of several processes that take a file of one that was killed, one has it") {
  const Locks system(false);
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "cell", held = folder.path() / "held";
  constexpr int rounds = 20, processes = 4;
  for (int round = 0; round < rounds; ++round) {
    in_killed_process([&] { return FileLock(file); });
    int begin[2];
    REQUIRE(::pipe(begin) == 0);
    for (int p = 0; p < processes; ++p) {
      if (::fork() != 0) continue;
      char go = 0;
      ::close(begin[1]);
      static_cast<void>(::read(begin[0], &go, 1));  // all of them at once
      const FileLock lock(file);
      // While one holds it nobody else may make this folder.
      if (lock.held() && ::mkdir(held.c_str(), 0777) != 0) ::_exit(1);
      if (lock.held()) ::rmdir(held.c_str());
      ::_exit(lock.held() ? 2 : 0);
    }
    ::close(begin[0]);
    ::close(begin[1]);
    int had = 0;
    for (int p = 0; p < processes; ++p) {
      int status = 0;
      REQUIRE(::wait(&status) > 0);
      CHECK(WEXITSTATUS(status) != 1);
      had += WEXITSTATUS(status) == 2 ? 1 : 0;
    }
    CHECK(had >= 1);
    CHECK(FileLock(file).held());  // all have ended
  }
}

TEST_CASE("Of a process on another machine nobody here knows whether it runs") {
  const Locks system(false);
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "log.lock", held = folder.path() / "log.lock.held";
  fs::create_symlink("1.7.anotherboot.1.node-3.site", held);
  const FileLock lock(file);
  CHECK_FALSE(lock.held());
  CHECK(lock.holder() == "process 1 on node-3.site");
  CHECK(lock.unsure() == held);
  fs::remove(held);
  CHECK(FileLock(file).held());
}

TEST_CASE("Who died while it removed a dead process's link is the one that is told") {
  const Locks system(false);
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "log.lock";
  in_killed_process([&] { return FileLock(file); });
  const fs::path removing = folder.path() / "log.lock.held.removing";
  fs::create_symlink("1.7.anotherboot.1.node-3.site", removing);
  const FileLock lock(file);
  CHECK_FALSE(lock.held());
  CHECK(lock.holder() == "process 1 on node-3.site");
  CHECK(lock.unsure() == removing);
  fs::remove(removing);
  CHECK(FileLock(file).held());
}

TEST_CASE("A lock whose file is removed or made anew is no longer held") {
  for (const bool locks : {true, false}) {
    const Locks system(locks);
    const TemporaryFolder folder;
    const fs::path inner = folder.path() / "inner";
    fs::create_directories(inner);
    FileLock lock(inner / "lock");
    fs::remove_all(inner);
    CHECK_FALSE(lock.still_held());
    fs::create_directories(inner);
    lock = FileLock(inner / "lock");
    CHECK(lock.still_held());
  }
}

}  // namespace
}  // namespace mw
