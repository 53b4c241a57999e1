// The ranks of one run, whatever carries them: which of them are threads of this process, how they
// start and end, and how what they know comes together without a common address space. With threads
// alone (no Processes) nothing is copied or serialised.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/engine/processes.h"
#include "meshwright/engine/run.h"
#include "meshwright/world.h"

namespace mw {

// What stands between ranks and what connects them: called for each run with its source, in each
// process, it returns the source that the ranks get. For what disturbs communication on purpose.
using BetweenRanks =
    std::function<std::unique_ptr<CommunicatorSource>(std::unique_ptr<CommunicatorSource>)>;

namespace comm {
struct RanksEnd;
// From now on; null, as it is at first: nothing. Not while a run lasts.
void stand_between_ranks(BetweenRanks between);
}  // namespace comm

// How many ranks a process carries, of which ones: process p those from p * n / processes on.
// Throws Error (plan, "launch.ranks"), with both numbers and the nearest choices, unless they share
// `ranks` evenly. `mix`: the plan, for the message.
std::vector<std::vector<int>> ranks_of_processes(int ranks, int processes, const std::string& mix);

// Bytes of every rank, in order of rank.
using BytesOfRanks = std::vector<std::string>;

class RankRuntime {
 public:
  // `processes`: null, or a plan of one rank, which each process runs by itself: this process
  // carries all ranks. Throws as ranks_of_processes.
  RankRuntime(int ranks, Processes* processes, const std::string& mix = "");
  ~RankRuntime();

  int ranks() const { return ranks_; }
  const std::vector<int>& here() const { return here_; }  // ascending
  bool alone() const { return processes_ == nullptr; }    // all ranks are here
  // Whether this process carries rank 0: it prints, records and observes.
  bool first() const { return here_.front() == 0; }
  Processes* processes() { return processes_; }  // null if alone
  // Threads of each rank's ops: the cores of this machine over all ranks on it, unless `asked`.
  int threads(int asked) const;
  // Seconds of the clock that all ranks share, from those of this process' (engine/host.h).
  double shared_clock(double seconds) const;

  // Runs `body` on every rank that is here, each in a thread of its own, and returns when the run
  // is over in all processes. If a rank fails, the ranks of all processes are stopped, and the
  // first cause is thrown in all of them, RankFailed (world.h); Stopped if a rank threw that;
  // ProcessFailed if a process was not there. `agreed`: what the run computes (a hash): processes
  // that differ in it are refused.
  using Body = std::function<void(RankContext&)>;
  void run(const Body& body, const RankOptions& options, const Platform& platform = *cpu_platform(),
           const std::string& agreed = "");

  // While run() lasts, called by every rank alike, in its own thread, in the same order on each.
  // They end with Aborted if a rank fails.
  // On rank 0 every rank's bytes; empty on others, which do not wait.
  BytesOfRanks gather(int rank, std::string bytes);
  BytesOfRanks all_gather(int rank, std::string bytes);
  // Rank 0's bytes, on every rank.
  std::string broadcast(int rank, const std::string& bytes);
  void barrier(int rank);
  // The same by process, not by rank: called by the first of the ranks that are here, alone.
  // Every process' bytes, on the first one; empty on others, which do not wait.
  std::vector<std::string> gather_processes(std::string bytes);
  // The first process' bytes, on all.
  std::string broadcast_processes(const std::string& bytes);

 private:
  class Meeting;
  void agree(const std::string& agreed);
  void settle(comm::RanksEnd end);
  comm::RanksEnd await_end(int process, std::chrono::milliseconds timeout, bool once);
  std::vector<RankPlace> places_of(int process, const comm::RanksEnd* end) const;
  std::vector<std::pair<int, Error>> gone_since();
  comm::RanksEnd told_by(comm::RanksEnd end, int process, const Error& error) const;
  BytesOfRanks collect(std::vector<std::string> own);
  std::size_t place_of(int rank) const;

  const int ranks_;
  Processes* processes_;
  std::vector<std::vector<int>> ranks_of_;  // by process
  std::vector<int> here_;
  std::chrono::milliseconds timeout_ = RankOptions{}.timeout;  // of the run
  std::unique_ptr<Meeting> meeting_;
};

// The accelerators of this machine, of which `here` ranks take one each in turn, from the one that
// follows `before` ranks of other processes on: how many there are, and the bytes of memory of the
// one with least of those that are taken. Throws Error (environment) as a run does, where there are
// none.
struct Accelerators {
  int count = 0;
  std::int64_t bytes = 0;
};
Accelerators accelerators_of(const Platform& platform, int before, int here);

// Throws Error (plan) if the plan has more ranks than threads can be in this process, or the
// processes, unless null, cannot share them evenly (ranks_of_processes).
void check_thread_ranks(const Plan& plan, const Processes* processes = nullptr);

// What carries a run of the plan: the setup's processes.
RankRuntime runtime_of(const RunSetup& setup, const Plan& plan);

// What a rank does, in its own thread. The ledger books the rank's allocations and communication.
using RankBody = std::function<void(RankRun& rank, Ledger& ledger)>;

// Runs `body` on every rank of `plan` (the setup's own, or another one of the same model) that is
// here, its parameters filled, in the plan's precision. Throws as RankRuntime::run, in all
// processes alike. `stop`: set if steps are to end; may be null. `limited`: the setup's memory
// limit holds.
void with_ranks(RankRuntime& runtime, const RunSetup& setup, const Plan& plan,
                const std::atomic<bool>* stop, const RankBody& body, bool limited = false);
void with_ranks(const RunSetup& setup, const Plan& plan, const std::atomic<bool>* stop,
                const RankBody& body);

// Fills a rank's parameters by RunSetup::fill, or from the seed.
void fill_parameters(RankRun& rank, const RunSetup& setup);

}  // namespace mw
