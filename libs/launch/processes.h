// The processes that a launcher has started, joined over a carrier (meshwright/carrier.h).
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/engine/processes.h"

namespace mw {

// Where a process runs: the host's name, which is for people, and the boot id of the machine's
// kernel, empty where it cannot be read; and the run's token, which only the first process sees of
// another.
struct HostId {
  std::string name, boot, token = {};
};
HostId own_host();
// What tells the processes of one run from others that reach them: the launcher makes it anew for
// each run, and its processes find it in their environment, in this variable. Without one there is
// no telling.
inline constexpr const char* token_variable = "MESHWRIGHT_TOKEN";
std::string new_token();
// How long the other processes wait for the first one while it lives.
inline constexpr std::chrono::hours patience_for_first{7 * 24};

// In this variable run_by_mpirun() tells its processes where results go: a path of its own stdout.
// What passes through mpirun is cut off where a process dies, as mpirun reads nothing while it
// waits for the others, and then kills them; and mpirun does not say that a disk is full.
inline constexpr const char* lines_variable = "MESHWRIGHT_LINES";
// In this variable it names a file that a process of it makes once it has met the others, or has
// printed an error.
inline constexpr const char* joined_variable = "MESHWRIGHT_JOINED";
// Whether these are one machine. Names say nothing of it, as containers of many machines have the
// same one, and those of one machine several; they decide only where a boot id is not known.
bool same_machine(const HostId& one, const HostId& other);

class JoinedProcesses final : public Processes {
 public:
  // Greets the others: all are of one version, their hosts are known, their clocks measured. Throws
  // Error if they are not alike. `own`: where this process runs.
  explicit JoinedProcesses(std::unique_ptr<Carrier> carrier,
                           Milliseconds timeout = std::chrono::seconds(300),
                           HostId own = own_host());
  ~JoinedProcesses() override;
  JoinedProcesses(const JoinedProcesses&) = delete;
  JoinedProcesses& operator=(const JoinedProcesses&) = delete;

  int count() const override { return count_; }
  int index() const override { return index_; }
  int on_this_host() const override;
  int before_on_this_host() const override;
  std::string name_of(int process) const override;
  Carrier& carrier() override { return *carrier_; }
  double clock_offset() const override { return clock_offset_; }
  void set_timeout(Milliseconds timeout) override { timeout_ = timeout; }
  Milliseconds timeout() const override { return timeout_; }

  std::vector<std::string> gather(const std::string& what, const std::string& bytes) override;
  std::vector<std::string> all_gather(const std::string& what, const std::string& bytes) override;
  std::string broadcast(const std::string& what, const std::string& bytes) override;
  [[noreturn]] void refuse(std::vector<Problem> problems, bool stopped = false) override;

  // The last word: this process ends with `own` (null: well) and this exit code. On the first one,
  // and on one that has lost it, `print` gets what is to be said, an error of its own or of another
  // process, and returns the exit code. All processes end with the first one's code, when that has
  // printed; it is returned. The carrier ends.
  int leave(std::exception_ptr own, int code,
            const std::function<int(std::exception_ptr)>& print) noexcept;

  void send(int to, const Word& word) override;
  Word receive(int from, const std::string& what, Milliseconds timeout) override;
  void check_there(int process) override;
  std::string expect(int from, const std::string& what, Milliseconds timeout) override;

 private:
  Word receive_whole(int from, const std::string& what, Milliseconds timeout);
  void send_refusal(bool stopped, const std::vector<Problem>& problems);
  // Calls it; whatever is thrown by it ends all processes.
  template <class Call>
  auto agreed(Call&& call);
  void greet(const HostId& own);
  void measure_clock();
  int leave_first(std::exception_ptr own, int code,
                  const std::function<int(std::exception_ptr)>& print);
  int leave_other(const std::exception_ptr& own,
                  const std::function<int(std::exception_ptr)>& print);

  std::unique_ptr<Carrier> carrier_;
  const int count_, index_;
  Milliseconds timeout_;
  std::vector<HostId> hosts_;           // by process; all unknown until they have greeted
  std::vector<std::deque<Word>> kept_;  // by process: came, and not yet asked for
  std::vector<bool> left_;              // on the first process: who has said its last word
  bool over_ = false;                   // there are no more words
  bool ended_ = false;
  double clock_offset_ = 0;
};

// Starts `processes` copies of the program with these words by mpirun, waits, and returns what
// they ended with: their exit code, 1 where a signal ended one of them. SIGINT, SIGTERM, SIGHUP and
// SIGUSR1 go to the copies, which end after the step under way; mpirun itself would give them a
// fixed time, and take all of it. Throws Error (environment) if mpirun cannot be started, and Error
// (run) if a signal that nobody wished ends mpirun itself: then no copy may have said why.
int run_by_mpirun(int processes, const std::vector<std::string>& words);

}  // namespace mw
