// The processes of a run, as the kernel sees them: who they are, one clock for all, and words that
// all of them exchange. Each process runs the same script and comes to the same words in the same
// order; one that comes to another word, leaves early or says nothing is named by an error on every
// process. libs/launch makes them over a carrier (meshwright/carrier.h).
#pragma once

#include <chrono>
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

// All calls are made by one thread of a process at a time.
class Processes {
 public:
  using Milliseconds = std::chrono::milliseconds;
  virtual ~Processes() = default;

  virtual int count() const = 0;
  virtual int index() const = 0;
  bool first() const { return index() == 0; }          // which prints, records and observes
  virtual int on_this_host() const = 0;                // on this machine, this one among them
  virtual int before_on_this_host() const = 0;         // those of them with a lower index
  virtual std::string name_of(int process) const = 0;  // "process 3 on node7"
  virtual Carrier& carrier() = 0;

  // What is to be added to this process' seconds_now() for those of the first one's clock; exactly
  // 0 where both may well have the same clock.
  virtual double clock_offset() const = 0;

  // How long a word waits for a process: an experiment's timeout.
  virtual void set_timeout(Milliseconds timeout) = 0;
  virtual Milliseconds timeout() const = 0;

  // Words. `what` says which ("the result of train"): all processes must say the same. They throw
  // ProcessFailed on every process, and wait for none that is known to be gone.
  // Every process' bytes, by process: on the first one only, which the others do not wait for, or
  // on all of them.
  virtual std::vector<std::string> gather(const std::string& what, const std::string& bytes) = 0;
  virtual std::vector<std::string> all_gather(const std::string& what,
                                              const std::string& bytes) = 0;
  // The first process' bytes.
  virtual std::string broadcast(const std::string& what, const std::string& bytes) = 0;
  void barrier(const std::string& what) { all_gather(what, ""); }
  // On the first process: ends the others with these problems too, and throws ProcessFailed.
  [[noreturn]] virtual void refuse(std::vector<Problem> problems, bool stopped = false) = 0;

  // What the runtime of ranks (core/src/run/runtime.cpp) hears, which has an order of its own.
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
  virtual void send(int to, const Word& word) = 0;
  // The next word of a process. Throws WaitedInVain after the timeout, Error (run, "process.lost")
  // if the process is gone.
  virtual Word receive(int from, const std::string& what, Milliseconds timeout) = 0;
  // Throws as receive() if that process is gone; takes no word from it, and does not wait.
  virtual void check_there(int process) = 0;
  // The next one, which must be `what`. Throws also ProcessFailed if it is not, and Aborted if that
  // process' ranks have ended; then the word stays for receive().
  virtual std::string expect(int from, const std::string& what, Milliseconds timeout) = 0;
};

}  // namespace mw
