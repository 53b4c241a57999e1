// Shares work out over copies of this process, which send their results back through pipes.
#include "common/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <new>

#include "meshwright/engine/files.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/error.h"
#include "meshwright/threads.h"

namespace mw {
namespace {

using ForkedWork = std::function<std::string(std::size_t)>;

struct Copy {
  pid_t process = -1;
  int pipe = -1;
  std::string rest;  // beginning of a line whose end has not come yet
};

// A counter in shared memory, by which the copies take the work items one by one.
class SharedCounter {
 public:
  SharedCounter() {
    void* const memory = ::mmap(nullptr, sizeof(std::atomic<std::size_t>), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    next_ = new (memory) std::atomic<std::size_t>(0);
  }
  ~SharedCounter() { ::munmap(next_, sizeof *next_); }
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;
  std::size_t take() { return next_->fetch_add(1); }

 private:
  std::atomic<std::size_t>* next_;
};

[[noreturn]] void work_as_copy(int pipe, std::size_t count, SharedCounter& counter,
                               const ForkedWork& work) {
  int code = 0;
  try {
    for (std::size_t i = counter.take(); i < count && !stop_requested(); i = counter.take()) {
      const std::string line = fmt::format("{} {}\n", i, work(i));
      if (!write_whole(pipe, line.data(), line.size())) break;
    }
  } catch (const std::exception& error) {
    const std::string line = fmt::format("! {}\n", error.what());
    (void)write_whole(pipe, line.data(), line.size());
    code = 1;
  }
  ::_exit(code);  // skips the destructors and exit handlers of the parent process
}

Copy make_copy(std::size_t count, SharedCounter& counter, const ForkedWork& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(Stage::run, "run.exception", "", "no more pipes");
  std::fflush(nullptr);
  const pid_t process = fork_tied(SIGKILL);
  if (process == 0) {
    ::close(ends[0]);
    work_as_copy(ends[1], count, counter, work);
  }
  const int why = errno;
  ::close(ends[1]);
  if (process < 0) {
    ::close(ends[0]);
    throw not_started("process.start", "process", why);
  }
  return {process, ends[0], ""};
}

class Copies {
 public:
  Copies(std::size_t count, int processes, const ForkedWork& work) : results_(count) {
    for (int i = 0; i < processes; ++i) copies_.push_back(make_copy(count, counter_, work));
  }
  ~Copies() {
    for (const Copy& copy : copies_) {
      if (copy.pipe >= 0) {
        ::close(copy.pipe);
        ::kill(copy.process, SIGKILL);
      }
      ::waitpid(copy.process, nullptr, 0);
    }
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  std::vector<std::string> results() {
    while (open_pipes() > 0) {
      throw_if_stopped();
      std::vector<pollfd> ready;
      for (const Copy& copy : copies_) ready.push_back({copy.pipe, POLLIN, 0});
      if (::poll(ready.data(), ready.size(), 200) < 0 && errno != EINTR) break;
      for (std::size_t i = 0; i < ready.size(); ++i) {
        if (ready[i].revents != 0) read_from(copies_[i]);
      }
    }
    throw_if_stopped();
    if (left_ != 0) {
      throw Error(Stage::run, "sweep.copy", "",
                  fmt::format("processes that planned cells have ended with {} cells to go{}",
                              left_, ends_of_copies()),
                  "predict fewer cells at a time");
    }
    return std::move(results_);
  }

 private:
  // Says how each copy ended that did not end with status 0.
  std::string ends_of_copies() {
    std::string text;
    for (Copy& copy : copies_) {
      int status = 0;
      if (::waitpid(copy.process, &status, 0) != copy.process || status == 0) continue;
      text += fmt::format("; process {}: {}", copy.process,
                          WIFSIGNALED(status) ? signal_name(WTERMSIG(status))
                                              : fmt::format("exit code {}", WEXITSTATUS(status)));
    }
    return text;
  }

  int open_pipes() const {
    int open = 0;
    for (const Copy& copy : copies_) open += copy.pipe >= 0 ? 1 : 0;
    return open;
  }

  void read_from(Copy& copy) {
    char block[1 << 16];
    const ssize_t got = ::read(copy.pipe, block, sizeof block);
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) {
      ::close(copy.pipe);
      copy.pipe = -1;
      return;
    }
    copy.rest.append(block, static_cast<std::size_t>(got));
    std::size_t from = 0;
    for (std::size_t end; (end = copy.rest.find('\n', from)) != std::string::npos; from = end + 1)
      take(copy.rest.substr(from, end - from));
    copy.rest.erase(0, from);
  }

  void take(const std::string& line) {
    const std::size_t space = line.find(' ');
    if (line.starts_with("!"))
      throw Error(Stage::run, "run.exception", "", line.substr(std::min(line.size(), space + 1)));
    results_.at(std::stoul(line)) = line.substr(space + 1);
    --left_;
  }

  std::vector<std::string> results_;
  std::size_t left_ = results_.size();
  SharedCounter counter_;
  std::vector<Copy> copies_;
};

}  // namespace

std::vector<std::string> forked_map(std::size_t count, int processes, const ForkedWork& work) {
  if (processes > 1 && count > 1) return Copies(count, processes, work).results();
  std::vector<std::string> results;
  for (std::size_t i = 0; i < count; ++i) {
    throw_if_stopped();
    results.push_back(work(i));
  }
  return results;
}

}  // namespace mw
