// Where processes find each other by the launcher's environment, and messages between them through
// a c10d::TCPStore: for carriers that have no control plane of their own, such as NCCL's.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace c10d {
class Store;
}

namespace mw {

// Where the processes of a run meet, and which of them this is.
struct Rendezvous {
  std::string by;  // the launcher: "torchrun", "mpirun", "srun"
  int processes = 1, process = 0;
  int local = 0;     // the process' number among those of its machine
  std::string host;  // machine of process 0, or of the launcher's own store
  std::uint16_t port = 0;
  bool hosted = false;        // the launcher runs the store; otherwise process 0 opens it
  std::string attempt = "0";  // number of the attempt, where a launcher restarts processes
};

// The meeting place that the environment says: MASTER_ADDR and MASTER_PORT where they are set (as
// torchrun does); else, under srun, the first machine of the step, and under mpirun on one machine,
// that machine, with a port that follows from the job. Throws Error (environment): "launch.address"
// where no address follows, "launch.alone" where no launcher has started this process as one of
// several.
Rendezvous rendezvous();
// Reads variables by `variable`, for tests.
Rendezvous rendezvous(const std::function<const char*(const char*)>& variable);

// This process' connection to the others of its run. Messages are as Carrier's (carrier.h).
class StoreLink {
 public:
  using Milliseconds = std::chrono::milliseconds;
  // Connects to the store and waits up to `timeout` for it to be there. `patience`: a process that
  // gives no sign of life for so long is lost. Throws Error (environment, "launch.join").
  explicit StoreLink(Rendezvous at, Milliseconds timeout = std::chrono::seconds(300),
                     Milliseconds patience = std::chrono::seconds(15));
  ~StoreLink();
  StoreLink(const StoreLink&) = delete;
  StoreLink& operator=(const StoreLink&) = delete;

  const Rendezvous& at() const { return at_; }
  void post(int to, std::string bytes);
  std::optional<std::string> take(int from, Milliseconds timeout);
  // Tells the others that this process ends. Process 0, whose store this is, waits until they have
  // ended too, for a few seconds at most where things went badly.
  void end(bool well) noexcept;

  // Whether a process has given no sign of life for too long, or has ended. Any thread may ask.
  bool lost(int process) const;
  // Opens another connection to the store, with keys under a prefix, for a thread or a library that
  // may block on it.
  c10::intrusive_ptr<c10d::Store> store(const std::string& prefix) const;

 private:
  const Rendezvous at_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mw
