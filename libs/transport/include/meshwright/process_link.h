// How the processes of a run reach each other. The engine of a LinkedCarrier compares, lays out and
// sums what ranks exchange, and fails it, in one way for all carriers. A Link only carries the
// bytes: plugins/mpi by MPI and shared memory, transport.h by messages.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/carrier.h"
#include "meshwright/error.h"

namespace mw {
namespace transport {

// A bell at which a thread sleeps until another thread rings it. Where the bell lies in shared
// memory, threads of other processes can ring it too.
class Doorbell {
 public:
  std::uint32_t seen() const { return rung_.load(std::memory_order_seq_cst); }
  void ring();
  // Announces a sleep: from now on ring() wakes. Look once more for work, then sleep() or cancel().
  void prepare() { asleep_.store(1, std::memory_order_seq_cst); }
  void cancel() { asleep_.store(0, std::memory_order_relaxed); }
  // Returns when the bell has rung since `seen`, when `most` has passed, or early for no reason.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds most);

 private:
  std::atomic<std::uint32_t> rung_{0}, asleep_{0};
};

// A run of bytes sent to or received from another process. Both sides cut a stream alike.
struct Piece {
  std::byte* at = nullptr;
  std::int64_t bytes = 0;
  // Further buffers that get a copy of what arrives: those of other members in this process.
  std::vector<std::byte*> more;
};
struct Stream {
  std::vector<Piece> pieces;
  std::size_t done = 0;     // pieces that are sent or received in full
  std::int64_t offset = 0;  // bytes of the next piece that are done
  std::size_t allowed = 0;  // pieces that may be sent or received by now (flow control)

  bool through() const { return done == pieces.size(); }
};
// What a stream holds: numbers as they are (plain), or inputs of sums (parts), for the process that
// adds them up.
enum StreamKind : std::uint32_t { plain, parts };

// What one collective moves between this process and others.
struct Traffic {
  struct Peer {  // another process with members of the group
    int process = 0;
    std::vector<int> members;  // indices of its members in the group
    bool arrived = false;      // its members have come; nothing is sent before
    std::uint32_t handle = 0;  // the peer's number for this traffic
    Stream out[2], in[2];      // indexed by StreamKind
  };
  std::uint32_t handle = 0;  // this process' number for this traffic
  std::vector<Peer> peers;

  Peer* peer_of(int process);
};

// The way to other processes. Made and used by the engine's thread; other threads may use only the
// bell, watch() and what never changes.
class Link {
 public:
  virtual ~Link() = default;
  virtual int processes() const = 0;
  virtual int process() const = 0;
  // A name for messages: "process 2 (pid 4711 on node3)".
  virtual std::string name_of(int process) const = 0;
  // Whether two processes share memory; every process has the same answer.
  virtual bool together(int a, int b) const = 0;
  // Whether the engine must poll receive(). If not, a process that sends something rings the bell.
  virtual bool is_polled() const = 0;
  // Whether messages also go while no run is connected. Then the last message of a process is its
  // goodbye, and a process that leaves without a goodbye is dead.
  virtual bool outlasts_runs() const = 0;
  virtual Doorbell& bell() = 0;
  // `died` is called, by any thread, for each process that is seen to end. Null ends the watch.
  virtual void watch(const std::function<void(int process)>& died) = 0;

  // Takes a message for another process; it may go out only in pump().
  virtual void send(int to, std::string bytes) = 0;
  // The engine's handlers for what arrives from other processes.
  struct Receiver {
    std::function<void(int from, std::string_view bytes)> message;
    // Finds a traffic by this process' handle. Null: over; drop its bytes.
    std::function<Traffic*(std::uint32_t handle)> traffic;
    std::function<void(Traffic&, Traffic::Peer&, StreamKind)> came;  // a piece has arrived whole
    std::function<void(Traffic&, const Problem&)> spoiled;
    std::function<void(int process, const std::string& why)> lost;
  };
  // Puts bytes that have come into the pieces of a stream. `copy` copies `count` of them from
  // `offset` on.
  using Copy = std::function<void(std::int64_t offset, std::byte* to, std::int64_t count)>;
  static void take(Traffic& traffic, int from, StreamKind kind, std::int64_t bytes,
                   const Copy& copy, const Receiver& receiver);
  // receive(), receive_last() and pump() say whether anything moved.
  virtual bool receive(const Receiver& receiver) = 0;
  // what a lost process has left behind
  virtual bool receive_last(int from, const Receiver& receiver) = 0;
  virtual bool pump(std::span<Traffic* const> all, const Receiver& receiver) = 0;
  virtual bool all_sent() const = 0;
  virtual void forget(int process) = 0;  // drops what was to be sent to a process that is gone
  virtual bool in_flight(const Traffic& traffic) const = 0;  // its memory must be kept
  virtual void finalize() = 0;  // called if all processes ended well; may wait for all of them
};

class Engine;

}  // namespace transport

// A Carrier whose collectives an engine carries out over a Link. Ranks are on CPUs.
class LinkedCarrier : public Carrier {
 public:
  int processes() const final;
  int process() const final;
  std::unique_ptr<CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                              const Platform& platform,
                                              std::chrono::milliseconds timeout) override;
  void post(int to, std::string bytes) override;
  std::optional<std::string> take(int from, std::chrono::milliseconds timeout) final;
  void end(bool well) noexcept override;

 protected:
  // `name`: the communicator's name, for messages. `join` makes the link; it is called by the
  // engine's thread and may throw Error (environment).
  LinkedCarrier(std::string name, const std::function<std::unique_ptr<transport::Link>()>& join);
  ~LinkedCarrier() override;
  transport::Link& link() const;

 private:
  const std::string name_;
  std::unique_ptr<transport::Engine> engine_;
};

}  // namespace mw
