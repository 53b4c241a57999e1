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

// Identifies the host of a process: its name, for people, and the boot id of its kernel, empty
// where that cannot be read. Also the run's token; only the first process sees those of other
// processes.
struct HostId {
  std::string name, boot, token = {};
};
HostId own_host();
// The environment variable of a run's token, by which its processes are told from others that reach
// them. The launcher makes a new token for each run. Runs without a token cannot be told apart.
inline constexpr const char* token_variable = "MESHWRIGHT_TOKEN";
std::string new_token();
// How long the other processes wait for the first one to end while it lives.
inline constexpr std::chrono::hours patience_for_first{7 * 24};

// The environment variable in which run_by_mpirun() gives its processes a path of its own stdout,
// for results. Output through mpirun is cut off where a process dies, as mpirun reads nothing while
// it waits for the others and then kills them; nor does mpirun report a full disk.
inline constexpr const char* lines_variable = "MESHWRIGHT_LINES";
// The environment variable in which run_by_mpirun() names a file that one of its processes creates
// once it has met the others, or has printed an error.
inline constexpr const char* joined_variable = "MESHWRIGHT_JOINED";
// Whether two hosts are one machine, by their boot ids. Names decide only without these, as
// containers on different machines may share a name, and those on one machine may differ.
bool same_machine(const HostId& one, const HostId& other);

class JoinedProcesses final : public Processes {
 public:
  // Exchanges greetings: compares versions and tokens, learns hosts, measures clocks. Throws Error
  // if versions or tokens differ. `own`: the host of this process.
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

  // Ends the exchange with the other processes, and the carrier. `own`: the exception by which this
  // process ends; null: it ends well, with `code`. In the first process, and in one that has lost
  // it, `print` prints the error, its own or another process', and returns the exit code. All
  // return the first one's code, after it has printed.
  int leave(std::exception_ptr own, int code,
            const std::function<int(std::exception_ptr)>& print) noexcept;

  void send(int to, const Word& word) override;
  Word receive(int from, const std::string& what, Milliseconds timeout) override;
  void check_there(int process) override;
  std::string expect(int from, const std::string& what, Milliseconds timeout) override;

 private:
  Word receive_whole(int from, const std::string& what, Milliseconds timeout);
  void send_refusal(bool stopped, const std::vector<Problem>& problems);
  // Calls a function. Whatever it throws ends all processes.
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
  std::vector<HostId> hosts_;           // by process; unset until greetings are exchanged
  std::vector<std::deque<Word>> kept_;  // by process: words that came and are not read yet
  std::vector<bool> left_;              // by process, on the first: it has sent its last word
  bool over_ = false;                   // no more words are exchanged
  bool ended_ = false;
  double clock_offset_ = 0;
};

// Starts `processes` copies of the program with these arguments by mpirun, waits for them, and
// returns their exit code; 1 where a signal ended one of them. Passes SIGINT, SIGTERM, SIGHUP and
// SIGUSR1 on to the copies, which end after the current step; mpirun itself would give them a fixed
// time, and always take all of it. Throws Error (environment) if mpirun cannot be started, and
// Error (run) if a signal ends mpirun that was not sent to this process: then perhaps no copy has
// said why.
int run_by_mpirun(int processes, const std::vector<std::string>& words);

}  // namespace mw
