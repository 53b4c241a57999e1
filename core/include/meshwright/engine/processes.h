// The processes of a run: their number and names, a shared clock, and exchanges ("words") in which
// all of them take part. Each process runs the same script and so makes the same exchanges in the
// same order. If a process makes another exchange, leaves early or does not answer, every process
// throws an error that names it. libs/launch implements the class over a carrier
// (meshwright/carrier.h).
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "meshwright/carrier.h"
#include "meshwright/error.h"

namespace mw {

// Thrown by an exchange if another process has failed or left, or if the processes disagree. Its
// problems are those that the first process found. Every process throws it, and no exchange
// follows.
class ProcessFailed : public Error {
 public:
  ProcessFailed(bool stopped, std::vector<Problem> problems)
      : Error(std::move(problems)), stopped_(stopped) {}
  bool stopped() const { return stopped_; }  // whether the user stopped that process

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
  bool first() const { return index() == 0; }   // whether this one prints, records and observes
  virtual int on_this_host() const = 0;         // number of processes on this machine
  virtual int before_on_this_host() const = 0;  // number of those with a lower index
  virtual std::string name_of(int process) const = 0;  // "process 3 on node7"
  virtual Carrier& carrier() = 0;

  // Seconds to add to this process' seconds_now() to get the first process' clock; exactly 0 if
  // both processes may share a clock.
  virtual double clock_offset() const = 0;

  // How long an exchange waits for a process: the experiment's timeout.
  virtual void set_timeout(Milliseconds timeout) = 0;
  virtual Milliseconds timeout() const = 0;

  // The exchanges. `what` names the exchange ("the result of train"); all processes must give the
  // same name. If one fails, every process throws ProcessFailed; none waits for a process that is
  // known to be gone.
  //
  // Return every process' bytes, by process. gather() returns them on the first process only, and
  // the others do not wait; all_gather() returns them on all processes.
  virtual std::vector<std::string> gather(const std::string& what, const std::string& bytes) = 0;
  virtual std::vector<std::string> all_gather(const std::string& what,
                                              const std::string& bytes) = 0;
  // Returns the first process' bytes.
  virtual std::string broadcast(const std::string& what, const std::string& bytes) = 0;
  void barrier(const std::string& what) { all_gather(what, ""); }
  // Called on the first process: ends all processes with these problems, and throws ProcessFailed.
  [[noreturn]] virtual void refuse(std::vector<Problem> problems, bool stopped = false) = 0;

  // A message between two processes. The runtime of ranks (core/src/run/runtime.cpp) sends and
  // receives messages in an order of its own.
  struct Word {
    enum class Sort : std::uint8_t {
      word,        // bytes of an exchange
      ranks_over,  // the sender's ranks have ended; `bytes` say how
      refused,     // the sender has failed; from the first process: all processes are to end
      left,        // the sender has come to its end
      parted,      // the first process' last message: it has printed its results
    };
    Sort sort = Sort::word;
    std::string what, bytes;
  };
  virtual void send(int to, const Word& word) = 0;
  // Returns the next message of process `from`. Throws WaitedInVain after the timeout, Error (run,
  // "process.lost") if the process is gone.
  virtual Word receive(int from, const std::string& what, Milliseconds timeout) = 0;
  // Throws Error (run, "process.lost") if the process is gone. Does not wait, takes no message.
  virtual void check_there(int process) = 0;
  // Returns the bytes of the next message, which must be named `what`. Throws as receive(); also
  // ProcessFailed if the message has another name, and Aborted if that process' ranks have ended,
  // in which case the message stays for receive().
  virtual std::string expect(int from, const std::string& what, Milliseconds timeout) = 0;
};

}  // namespace mw
