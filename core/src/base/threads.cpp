// Starts threads, and reads the system's limits on how many there may be.
#include "meshwright/threads.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <fstream>
#include <future>
#include <system_error>

#include "meshwright/engine/control_groups.h"

namespace mw {

std::jthread start_thread(std::function<void()> work) {
  try {
    return std::jthread(std::move(work));
  } catch (const std::system_error& error) {
    throw not_started("thread.start", "thread", error.code().value());
  }
}

void in_own_thread(const std::function<void()>& work) {
  std::packaged_task<void()> task(work);
  start_thread([&task] { task(); }).join();
  task.get_future().get();
}

Error not_started(const std::string& code, const std::string& what, int reason) {
  int threads = 0;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "Threads:") status >> threads;
  std::string limits;
  rlimit user{};
  if (getrlimit(RLIMIT_NPROC, &user) == 0 && user.rlim_cur != RLIM_INFINITY)
    limits = fmt::format("this user may have {} threads in all (ulimit -u)", user.rlim_cur);
  for (const ControlGroup& group : control_groups("pids")) {
    long most = 0;
    if (!(std::ifstream(group.folder / "pids.max") >> most)) continue;
    limits += fmt::format("{}its control group may have {} (pids.max)",
                          limits.empty() ? "" : ", and ", most);
    break;
  }
  return {
      Stage::environment, code, "",
      fmt::format("the system does not start another {}: {}; this process has {} thread{}", what,
                  std::generic_category().message(reason), threads, threads == 1 ? "" : "s"),
      fmt::format("{}use fewer ranks and threads, or have the limit raised",
                  limits.empty() ? "" : limits + ": ")};
}

}  // namespace mw
