// The processes of a run, over a carrier (meshwright/carrier.h): who they are, one clock for all,
// and words that all of them exchange. Words are what keeps processes together: each runs the same
// script and comes to the same words in the same order; one that comes to another word, leaves
// early or says nothing is named by an error on every process.
#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/carrier.h"
#include "meshwright/error.h"

namespace mw {

// Thrown in a word where another process has failed or left: what it says is that process' own, or
// the first process' verdict. Every process throws it, and it is over: no more words.
class ProcessFailed : public Error {
 public:
  ProcessFailed(int process, bool stopped, std::vector<Problem> problems)
      : Error(std::move(problems)), process_(process), stopped_(stopped) {}
  int process() const { return process_; }   // -1: no single one
  bool stopped() const { return stopped_; }  // it gave up because somebody asked it to

 private:
  int process_;
  bool stopped_;
};

// All calls are made by one thread of a process at a time.
class Processes {
 public:
  // Greets the others: all are of one version, their hosts are known, their clocks measured. Throws
  // Error (environment) if they are not alike.
  explicit Processes(std::unique_ptr<Carrier> carrier,
                     std::chrono::milliseconds timeout = std::chrono::seconds(300));
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  int count() const { return carrier_->processes(); }
  int index() const { return carrier_->process(); }
  bool first() const { return index() == 0; }  // which prints, records and observes
  const std::string& host_of(int process) const {
    return hosts_[static_cast<std::size_t>(process)];
  }
  int on_this_host() const;  // processes, this one among them
  // "process 3 on node7"
  std::string name_of(int process) const;
  Carrier& carrier() { return *carrier_; }

  // What is to be added to this process' seconds_now() for those of the first one's clock; exactly
  // 0 where both may well have the same clock.
  double clock_offset() const { return clock_offset_; }

  // How long a word waits for a process; an experiment's timeout.
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  // Words. `what` says which ("the result of train"): all processes must say the same. They throw
  // ProcessFailed (see there) on every process.
  // Every process' bytes, by process; on the first one only (gather), which the others do not wait
  // for, or on all of them.
  std::vector<std::string> gather(const std::string& what, const std::string& bytes);
  std::vector<std::string> all_gather(const std::string& what, const std::string& bytes);
  // The first process' bytes.
  std::string broadcast(const std::string& what, const std::string& bytes);
  void barrier(const std::string& what) { all_gather(what, ""); }

  // The last word, on the way out: this process ends with this error (null: none). On the first
  // process, what is to be printed: its own error, else that of the process that failed, else null;
  // on others null, unless the first one is gone. Does not throw. Afterwards the carrier has ended.
  std::exception_ptr leave(std::exception_ptr own) noexcept;

 private:
  struct Word;
  void send(int to, const Word& word);
  Word receive(int from, const std::string& what);
  Word receive_whole(int from, const std::string& what);
  std::vector<std::string> collect(const std::string& what, const std::string& bytes);
  std::string from_first(const std::string& what);
  [[noreturn]] void fail_all(int process, bool stopped, std::vector<Problem> problems);
  void greet();
  void measure_clock();

  std::unique_ptr<Carrier> carrier_;
  std::chrono::milliseconds timeout_;
  std::vector<std::string> hosts_;
  std::vector<bool> left_;  // on the first process: who has said its last word
  bool over_ = false;       // nothing more is to be said
  double clock_offset_ = 0;
};

}  // namespace mw
