// How the processes of a run reach each other. What their ranks exchange is compared, laid out,
// summed and failed by the engine of a LinkedCarrier, for all in one way; a Link takes the bytes
// across: plugins/mpi by MPI and by shared memory, transport.h by messages.
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
  // About to sleep: from now on ring() wakes. Look once more for work, then sleep() or cancel().
  void prepare() { asleep_.store(1, std::memory_order_seq_cst); }
  void cancel() { asleep_.store(0, std::memory_order_relaxed); }
  // Returns when rung since `seen`, or after the time, or for no reason.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds most);

 private:
  std::atomic<std::uint32_t> rung_{0}, asleep_{0};
};

// Bytes that go to or come from another process, piece by piece. Both sides cut them alike.
struct Piece {
  std::byte* at = nullptr;
  std::int64_t bytes = 0;
  // Further buffers that get a copy of what arrives: those of other members in this process.
  std::vector<std::byte*> more;
};
struct Stream {
  std::vector<Piece> pieces;
  std::size_t done = 0;     // pieces that have gone or come
  std::int64_t offset = 0;  // of the piece after these
  std::size_t allowed = 0;  // pieces that may go or come by now

  bool through() const { return done == pieces.size(); }
};
// What a stream holds: numbers as they are, or parts of sums, for the process that sums them up.
enum StreamKind : std::uint32_t { plain, parts };

// What one collective moves between this process and others.
struct Traffic {
  struct Peer {  // another process with members
    int process = 0;
    std::vector<int> members;  // by index in the group
    bool arrived = false;      // nothing goes to it before
    std::uint32_t handle = 0;  // by which it knows the traffic
    Stream out[2], in[2];      // by StreamKind
  };
  std::uint32_t handle = 0;  // by which this process knows it
  std::vector<Peer> peers;

  Peer* peer_of(int process);
};

// Made and used by the engine's thread alone; only the bell, watch() and what is constant also by
// others.
class Link {
 public:
  virtual ~Link() = default;
  virtual int processes() const = 0;
  virtual int process() const = 0;
  // "process 2 (pid 4711 on node3)".
  virtual std::string name_of(int process) const = 0;
  // Whether two processes share memory; every process has the same answer.
  virtual bool together(int a, int b) const = 0;
  // Whether receive() must be called again and again; else whoever has something rings the bell.
  virtual bool is_polled() const = 0;
  // Whether messages go also while no run is connected. Then the last one of a process is its
  // goodbye, and whoever leaves without is dead.
  virtual bool outlasts_runs() const = 0;
  virtual Doorbell& bell() = 0;
  // `died` is told, by any thread, of each process that ends without a word. Null: no more.
  virtual void watch(const std::function<void(int process)>& died) = 0;

  // A message for another process; it may wait for pump().
  virtual void send(int to, std::string bytes) = 0;
  // What the engine does with what comes.
  struct Receiver {
    std::function<void(int from, std::string_view bytes)> message;
    std::function<Traffic*(std::uint32_t handle)> traffic;  // null: it has failed, drop what comes
    std::function<void(Traffic&, Traffic::Peer&, StreamKind)> came;  // a whole piece
    std::function<void(Traffic&, const Problem&)> spoiled;
    std::function<void(int process, const std::string& why)> lost;
  };
  // Bytes of a stream have come. `copy` takes so many of them from an offset on.
  using Copy = std::function<void(std::int64_t offset, std::byte* to, std::int64_t count)>;
  static void take(Traffic& traffic, int from, StreamKind kind, std::int64_t bytes,
                   const Copy& copy, const Receiver& receiver);
  // Each true if anything moved.
  virtual bool receive(const Receiver& receiver) = 0;
  virtual bool receive_last(int from, const Receiver& receiver) = 0;  // of one that is lost
  virtual bool pump(std::span<Traffic* const> all, const Receiver& receiver) = 0;
  virtual bool all_sent() const = 0;
  virtual void forget(int process) = 0;  // it is gone: what was to be sent to it is dropped
  virtual bool in_flight(const Traffic& traffic) const = 0;  // its memory must stay
  virtual void finalize() = 0;  // all went well everywhere; may wait for all processes
};

class Engine;

}  // namespace transport

// The carrier over a link. Ranks are on CPUs.
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
  // `name`: of the communicator, for messages. `join` is called by the engine's thread, and throws
  // Error (environment).
  LinkedCarrier(std::string name, const std::function<std::unique_ptr<transport::Link>()>& join);
  ~LinkedCarrier() override;
  transport::Link& link() const;

 private:
  const std::string name_;
  std::unique_ptr<transport::Engine> engine_;
};

}  // namespace mw
