// Sources of communicators, and the functions that run ranks as threads. A source connects the
// ranks of one run by threads of this process (built in), MPI or NCCL (plugins); the rest of
// Meshwright uses only this interface.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/error.h"
#include "meshwright/ledger.h"

namespace c10d {
class Backend;
}

namespace mw {

// Thrown on a rank that was stopped because another rank failed. Its message names that first
// cause. A run reports the cause itself rather than an Aborted.
class Aborted : public Error {
 public:
  explicit Aborted(std::string message, std::string hint = "")
      : Error(Stage::run, "run.aborted", "", std::move(message), std::move(hint)) {}
};

// Thrown by a collective's wait if some rank does not come in time. A run reports it only if there
// is no other error, because the missing rank may have failed without having reported it yet.
class WaitedInVain : public Error {
 public:
  using Error::Error;
};

// What a rank was doing when a run failed: its last collective, and the one for which it waits.
struct RankPlace {
  struct Call {
    std::string axis, op, label, phase;  // `axis` empty: no call
    // The call as text: "all-reduce on dp for 'embedding' (gradients)", or "none".
    std::string text() const;
  };
  enum class State : std::uint8_t { computes, waits, failed, ended, gone };
  int rank = -1;
  State state = State::gone;  // gone: the rank's process did not answer
  std::int64_t done = 0;      // number of collectives that ended on this rank
  Call last, waits;           // the last that ended, and the one in which it waits or failed
  double seconds = 0;         // how long it waits, or how long ago the last collective ended
  std::string inside;  // the plugin's call that it is in, "profiler (observers[1])"; empty: none
};
const char* name_of(RankPlace::State state);  // "computes", ...

// Thrown by run_ranks if a rank failed: the rank's error, with the rank in front, and the places of
// all ranks at that time (empty if no rank had begun).
class RankFailed : public Error {
 public:
  RankFailed(int rank, std::vector<Problem> problems, std::vector<RankPlace> places = {})
      : Error(std::move(problems)), rank_(rank), places_(std::move(places)) {}
  int rank() const { return rank_; }
  const std::vector<RankPlace>& places() const { return places_; }

 private:
  int rank_;
  std::vector<RankPlace> places_;
};

// The ranks that a communicator connects, and which of their transfers it carries.
struct Connection {
  std::string axis;
  // Global ranks. For a pair: the rank that sends, and the rank that receives.
  std::vector<int> ranks;
  // The name of the program's stream (Program::streams) for the transfers; empty: none. Transfers
  // on two streams need no order, so each stream has a communicator of its own. On devices, a
  // rank's transfers on one stream run in the order in which it calls them, whatever their groups.
  std::string stream = {};
  // Whether the connection carries only what the first rank sends to the second. Both ranks begin
  // these transfers in the same order, so that a source may match them by their order. A source
  // that matches transfers by tags may treat a pair as any other group.
  bool pair = false;

  // The name for messages: "tp", "tp on stream side".
  std::string name() const;
  auto operator<=>(const Connection&) const = default;
};

class CommunicatorSource {
 public:
  CommunicatorSource() = default;
  virtual ~CommunicatorSource() = default;
  CommunicatorSource(const CommunicatorSource&) = delete;
  CommunicatorSource& operator=(const CommunicatorSource&) = delete;

  virtual const char* name() const = 0;  // "threads", "mpi", "nccl"
  virtual int ranks() const = 0;

  // Returns the backend of rank connection.ranks[index] for collectives with the other ranks of the
  // connection. Each member calls this with the same connection; the same arguments return the same
  // backend. The call may block until all members have made it, as with NCCL. Ranks call it for
  // several connections in an order on which they agree (engine/connections.h). Called by the
  // rank's own thread.
  virtual c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) = 0;

  // Says that rank `rank` has failed: every wait under way and every later call, on any rank and in
  // any group, throws Aborted with this reason. Only the first call counts. Any thread may call.
  virtual void abort(int rank, const std::string& reason) = 0;

  // Says that rank `rank` makes no further calls: a rank that waits for it, now or later, may fail
  // at once instead of at the timeout. Called by the rank's own thread.
  virtual void ended(int /*rank*/) {}
};

// Makes the communicator of rank connection.ranks[index] over `source`. `ledger` may be null:
// nothing is counted.
std::unique_ptr<Communicator> make_communicator(CommunicatorSource& source,
                                                const Connection& connection, int index,
                                                Ledger* ledger);

// A handler for a rank's thread that does not return after another rank has failed. Nothing can
// stop such a thread, so most handlers end the process. The thread that started the ranks calls it,
// with the reason of the failure. If the handler returns, or is null (as at first), that thread
// waits on. on_hang() sets the handler and returns the one before.
using OnHang = std::function<void(const RankFailed&)>;
namespace comm {
OnHang on_hang(OnHang handler);
}

struct RankContext {
  int rank = 0;
  int ranks = 1;
  CommunicatorSource* source = nullptr;
};

struct RankOptions {
  // How long a collective waits for a rank before it throws an error that names the rank.
  std::chrono::milliseconds timeout{300'000};
  // Threads of one rank's ATen ops. 0: the cores of this machine divided by the ranks, at least
  // one.
  int threads = 0;
};

// Runs `body` once for each rank, each in a thread of its own, and returns when all threads have
// ended. If a rank fails, the others are stopped, and the first cause is thrown as RankFailed. A
// WaitedInVain is the cause only if there is no other error, because the rank for which it waited
// may have failed later. Errors of scripts (Stage::script) become errors of the run. All threads
// are joined in any case. The ATen thread count of the caller does not change.
void run_ranks(int ranks, const std::function<void(RankContext&)>& body,
               const RankOptions& options = {});

}  // namespace mw
