// Where communicators come from. A source connects the ranks of one run, whatever carries the
// bytes: threads of this process (built in), MPI or NCCL (plugins). The rest of Meshwright sees
// only this.
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

// Thrown on a rank that was stopped because of another rank. What it says names that first cause; a
// runner that collects errors reports the cause itself before any of these.
class Aborted : public Error {
 public:
  explicit Aborted(std::string message, std::string hint = "")
      : Error(Stage::run, "run.aborted", "", std::move(message), std::move(hint)) {}
};

// Thrown by a collective's wait where some rank did not come in time. It is the cause of a failed
// run only if nothing else is: the rank that was waited for may have failed, and not said so yet.
class WaitedInVain : public Error {
 public:
  using Error::Error;
};

// Where a rank was with its collectives when a run failed.
struct RankPlace {
  struct Call {
    std::string axis, op, label, phase;  // axis empty: none
    // "all-reduce on dp for 'embedding' (gradients)"; "none".
    std::string text() const;
  };
  enum class State : std::uint8_t { computes, waits, failed, ended, gone };
  int rank = -1;
  State state = State::gone;  // gone: its process has not said
  std::int64_t done = 0;      // collectives that came to their end on this rank
  Call last, waits;           // the last of these, and that which it waits for, or failed in
  double seconds = 0;         // since when: it waits, or has done the last
  std::string inside;  // the plugin's call that it is in, "profiler (observers[1])"; empty: none
};
const char* name_of(RankPlace::State state);  // "computes", ...

// What run_ranks throws if a rank failed: its error, with the rank in front, and where each rank
// was at the time (none where no rank had begun).
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
  // Global ranks. Of a pair: the rank that sends, and the rank that receives.
  std::vector<int> ranks;
  // The program's stream (Program::streams) on which the transfers go; empty: none. Transfers on
  // two streams need no order, so each stream has a communicator of its own. On devices, a rank's
  // transfers on one stream go in the order in which it calls them, whatever their groups.
  std::string stream = {};
  // Whether it carries only what the first rank sends to the second. Both begin these transfers in
  // one order, so that a source may match them by it. A source that matches transfers by their tags
  // may treat a pair as any other group.
  bool pair = false;

  // "tp", "tp on stream side": as messages name it.
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

  // The backend through which rank connection.ranks[index] talks to the other ranks. Each member
  // calls it with the same connection; the same arguments give the same backend again. It may block
  // until all members have called it, as NCCL does: ranks call it for several connections in an
  // order in which they all agree (engine/connections.h). Called by the rank's own thread.
  virtual c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) = 0;

  // Rank `rank` cannot go on: every wait under way and every later call, on any rank and group,
  // throws Aborted with this reason. The first call wins. Any thread may call.
  virtual void abort(int rank, const std::string& reason) = 0;

  // Rank `rank` makes no further calls: whoever waits for it, now or later, may fail at once, and
  // need not wait for the timeout. Called by the rank's own thread.
  virtual void ended(int /*rank*/) {}
};

// A communicator of rank connection.ranks[index] over `source`. `ledger` may be null: nothing is
// counted.
std::unique_ptr<Communicator> make_communicator(CommunicatorSource& source,
                                                const Connection& connection, int index,
                                                Ledger* ledger);

// What is done where a rank's thread does not come back after another one has failed, which nothing
// can make it do: mostly, to end the process. Called by the thread that has started the ranks, with
// why they failed; if it returns, or is null, as it is at first, that thread waits on. Returns the
// handler before.
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
  // A collective that some rank has not joined after this long is an error that names it.
  std::chrono::milliseconds timeout{300'000};
  // Threads of one rank's ATen ops. 0: the cores of this machine over the ranks, at least one.
  int threads = 0;
};

// Runs `body` once for each rank, each in a thread of its own, and returns when all have ended. If
// ranks fail, the others are stopped and the first cause is thrown here, RankFailed. A collective
// that waited in vain is the cause only if no other error comes: the rank that it waited for may
// have failed later than the wait. A script's error on a rank is one of the run. Ranks are joined
// whatever happens. The ATen thread count of the caller is left as it was.
void run_ranks(int ranks, const std::function<void(RankContext&)>& body,
               const RankOptions& options = {});

}  // namespace mw
