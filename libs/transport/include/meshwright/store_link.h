// Where carriers meet whose processes do so at a c10d::TCPStore, by the launcher's environment, and
// messages between the processes over it. NCCL, which has no control plane of its
// own, is one.
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

// Where the processes of a run meet.
struct Rendezvous {
  std::string by;  // "torchrun", "mpirun", "srun"
  int processes = 1, process = 0;
  int local = 0;     // the process' number among those of its machine
  std::string host;  // of process 0, or of the launcher's own store
  std::uint16_t port = 0;
  bool hosted = false;        // the launcher has a store there; else process 0 opens one
  std::string attempt = "0";  // of a launcher that starts processes again
};

// Where this environment says: MASTER_ADDR and MASTER_PORT where they are set (as torchrun does);
// else,
// under srun, the first machine of the step, and under mpirun on one machine, that, with a port
// that follows from the job. Throws Error (environment, "launch.address") where no address follows;
// (launch.alone) where no launcher has started this process as one of several.
Rendezvous rendezvous();
// The same by another environment, for tests.
Rendezvous rendezvous(const std::function<const char*(const char*)>& variable);

// This process among those of a run. Messages as Carrier (carrier.h) has them.
class StoreLink {
 public:
  using Milliseconds = std::chrono::milliseconds;
  // Joins the others, waiting for as long as `timeout` for the store to be there. `patience`: a
  // process that gives no sign of life for so long is lost. Throws Error (environment,
  // "launch.join").
  explicit StoreLink(Rendezvous at, Milliseconds timeout = std::chrono::seconds(300),
                     Milliseconds patience = std::chrono::seconds(15));
  ~StoreLink();
  StoreLink(const StoreLink&) = delete;
  StoreLink& operator=(const StoreLink&) = delete;

  const Rendezvous& at() const { return at_; }
  void post(int to, std::string bytes);
  std::optional<std::string> take(int from, Milliseconds timeout);
  // Process 0 stays, for a few seconds at most where things went badly, as long as others have
  // messages to fetch: the store goes with it.
  void end(bool well) noexcept;

  // Whether a process has given no sign of life for too long, or has ended. From any thread.
  bool lost(int process) const;
  // A connection of its own, under a prefix: for a thread or a library that may block on it.
  c10::intrusive_ptr<c10d::Store> store(const std::string& prefix) const;

 private:
  const Rendezvous at_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mw
