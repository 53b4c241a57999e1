// The processes of a run, over a carrier (meshwright/carrier.h): who they are, one clock for all,
// and words that all of them exchange. Words are what keeps processes together: each runs the same
// script and comes to the same words in the same order; one that comes to another word, leaves
// early or says nothing is named by an error on every process.
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/carrier.h"
#include "meshwright/error.h"

namespace mw {

// Thrown by a word where another process has failed or left, or the processes do not agree: what
// it says is the first process' verdict. Every process throws it, and there are no more words.
class ProcessFailed : public Error {
 public:
  ProcessFailed(bool stopped, std::vector<Problem> problems)
      : Error(std::move(problems)), stopped_(stopped) {}
  bool stopped() const { return stopped_; }  // somebody asked it to

 private:
  bool stopped_;
};

// Where a process runs: the host's name, which is for people, and the boot id of the machine's
// kernel, empty where it cannot be read.
struct HostId {
  std::string name, boot;
};
HostId own_host();
// Whether these are one machine. Names say nothing of it, as containers of many machines have the
// same one, and those of one machine several; they decide only where a boot id is not known.
bool same_machine(const HostId& one, const HostId& other);

// All calls are made by one thread of a process at a time.
class Processes {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Greets the others: all are of one version, their hosts are known, their clocks measured. Throws
  // Error if they are not alike. `own`: where this process runs.
  explicit Processes(std::unique_ptr<Carrier> carrier,
                     Milliseconds timeout = std::chrono::seconds(300), HostId own = own_host());
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int count() const { return count_; }
  int index() const { return index_; }
  bool first() const { return index_ == 0; }  // which prints, records and observes
  int on_this_host() const;                   // processes on this one's machine, itself among them
  int before_on_this_host() const;            // those of them with a lower index
  std::string name_of(int process) const;     // "process 3 on node7"
  Carrier& carrier() { return *carrier_; }

  // What is to be added to this process' seconds_now() for those of the first one's clock; exactly
  // 0 where both may well have the same clock.
  double clock_offset() const { return clock_offset_; }

  // How long a word waits for a process: an experiment's timeout.
  void set_timeout(Milliseconds timeout) { timeout_ = timeout; }
  Milliseconds timeout() const { return timeout_; }

  // Words. `what` says which ("the result of train"): all processes must say the same. They throw
  // ProcessFailed on every process, and wait for none that is known to be gone.
  // Every process' bytes, by process: on the first one only, which the others do not wait for, or
  // on all of them.
  std::vector<std::string> gather(const std::string& what, const std::string& bytes);
  std::vector<std::string> all_gather(const std::string& what, const std::string& bytes);
  // The first process' bytes.
  std::string broadcast(const std::string& what, const std::string& bytes);
  void barrier(const std::string& what) { all_gather(what, ""); }
  // On the first process: ends the others with these problems too, and throws ProcessFailed.
  [[noreturn]] void refuse(std::vector<Problem> problems, bool stopped = false);

  // The last word: this process ends with `own` (null: well) and this exit code. On the first one,
  // and on one that has lost it, `print` gets what is to be said, an error of its own or of another
  // process, and returns the exit code. All processes end with the first one's code, when that has
  // printed; it is returned. The carrier ends.
  int leave(std::exception_ptr own, int code,
            const std::function<int(std::exception_ptr)>& print) noexcept;

  // For the runtime of ranks (run/runtime.h), which has an order of its own.
  struct Word {
    enum class Sort : std::uint8_t {
      word,
      ranks_over,  // the process' ranks have ended: how
      refused,     // the process has failed; from the first one: all are to end
      left,        // it has come to its end
      parted,      // from the first one, the very last: it has printed
    };
    Sort sort = Sort::word;
    std::string what, bytes;
  };
  void send(int to, const Word& word);
  // The next word of a process. Throws WaitedInVain after the timeout, Error (run, "process.lost")
  // if the process is gone.
  Word receive(int from, const std::string& what, Milliseconds timeout);
  // Throws as receive() if that process is gone; takes no word from it, and does not wait.
  void check_there(int process);
  // The next one, which must be `what`. Throws also ProcessFailed if it is not, and Aborted if that
  // process' ranks have ended; then the word stays for receive().
  std::string expect(int from, const std::string& what, Milliseconds timeout);

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

}  // namespace mw
