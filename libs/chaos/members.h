// The processes of a run that is disturbed, whoever has started them: those of this machine in
// whose words the run's folder stands.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mw::chaos {

struct Members {
  std::vector<pid_t> ranks;      // that carry ranks; ascending
  std::vector<pid_t> launchers;  // the outermost process, mpirun and srun
  bool none() const { return ranks.empty() && launchers.empty(); }
  std::vector<pid_t> all() const;
};
Members members_of(const std::filesystem::path& folder);

// "process 2 (4711)": its number among those of the run, where its launcher has told it.
std::string text_of_member(pid_t process);
std::int64_t resident_bytes(pid_t process);  // 0: it is gone

// Processes that stand still (SIGSTOP) as long as it lives. If this process is killed, a copy of it
// lets them continue.
class Standstill {
 public:
  explicit Standstill(std::vector<pid_t> processes);
  ~Standstill();
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;
  bool any() const { return any_; }  // some process was there

 private:
  const std::vector<pid_t> processes_;
  pid_t watcher_ = -1;
  bool any_ = false;
};

// No file of the process grows beyond 4 KiB from now on; and as before again.
void limit_files(pid_t process, bool limited);

}  // namespace mw::chaos
