// Runs the ranks of one run, in one process or several: starts the ranks that are threads of this
// process, ends all ranks together, and exchanges bytes between ranks of different processes. In a
// run of one process (no Processes) nothing is copied or serialised.
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

// Wraps the communicator source of a run: each process calls it with the source of each run, and
// its ranks get the source that it returns. For tools that disturb communication on purpose.
using BetweenRanks =
    std::function<std::unique_ptr<CommunicatorSource>(std::unique_ptr<CommunicatorSource>)>;

namespace comm {
struct RanksEnd;
// Sets the wrapper for all later runs; null, as at first, means none. Must not be called during a
// run.
void stand_between_ranks(BetweenRanks between);
}  // namespace comm

// The ranks of each process: process p has ranks / processes ranks, from p * ranks / processes on.
// Throws Error (plan, "launch.ranks"), with both numbers and the nearest choices, unless the
// processes share the ranks evenly. `mix`: the plan's name, for the message.
std::vector<std::vector<int>> ranks_of_processes(int ranks, int processes, const std::string& mix);

// A string of bytes from every rank, in the order of ranks.
using BytesOfRanks = std::vector<std::string>;

class RankRuntime {
 public:
  // `processes` null, or a plan of one rank (which each process runs by itself): this process has
  // all ranks. Throws as ranks_of_processes.
  RankRuntime(int ranks, Processes* processes, const std::string& mix = "");
  ~RankRuntime();

  int ranks() const { return ranks_; }
  const std::vector<int>& here() const { return here_; }  // the ranks of this process, ascending
  bool alone() const { return processes_ == nullptr; }    // whether all ranks are in this process
  // Whether this process has rank 0, and so prints, records and observes.
  bool first() const { return here_.front() == 0; }
  Processes* processes() { return processes_; }  // null if alone
  // Threads for each rank's ops: `asked`, or, if that is 0, the cores of this machine divided by
  // the ranks on it.
  int threads(int asked) const;
  // Converts seconds_now() of this process (engine/host.h) to the clock that all ranks share.
  double shared_clock(double seconds) const;

  // Runs `body` on every rank of this process, each in a thread of its own, and returns when the
  // run is over in all processes. If a rank fails, the ranks of all processes are stopped, and the
  // first cause is thrown in all processes, as RankFailed (world.h); as Stopped if a rank threw
  // Stopped; as ProcessFailed if a process was gone. `agreed`: a hash of what the run computes;
  // processes with different hashes are refused.
  using Body = std::function<void(RankContext&)>;
  void run(const Body& body, const RankOptions& options, const Platform& platform = *cpu_platform(),
           const std::string& agreed = "");

  // Collectives of bytes, which every rank calls during run(), in its own thread and in the same
  // order. They throw Aborted if a rank fails.
  //
  // Returns every rank's bytes on rank 0; empty on other ranks, which do not wait.
  BytesOfRanks gather(int rank, std::string bytes);
  BytesOfRanks all_gather(int rank, std::string bytes);
  // Returns rank 0's bytes, on every rank.
  std::string broadcast(int rank, const std::string& bytes);
  void barrier(int rank);
  // Collectives between processes; only the first rank of each process calls them.
  // Returns every process' bytes on the first process; empty on others, which do not wait.
  std::vector<std::string> gather_processes(std::string bytes);
  // Returns the first process' bytes, on all processes.
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
  std::vector<std::vector<int>> ranks_of_;                     // the ranks of each process
  std::vector<int> here_;                                      // the ranks of this process
  std::chrono::milliseconds timeout_ = RankOptions{}.timeout;  // the timeout of the run
  std::unique_ptr<Meeting> meeting_;
};

// The number of this machine's accelerators, and the least bytes of memory of those that this
// process' ranks use. `here` ranks take one accelerator each in turn, after the `before` ranks of
// other processes on this machine. Throws Error (environment), as a run does, if there are none.
struct Accelerators {
  int count = 0;
  std::int64_t bytes = 0;
};
Accelerators accelerators_of(const Platform& platform, int before, int here);

// Throws Error (plan) if a process would have more than most_thread_ranks ranks of the plan, or if
// `processes` (null: only this one) cannot share the ranks evenly (ranks_of_processes).
void check_thread_ranks(const Plan& plan, const Processes* processes = nullptr);

// The runtime for a run of the plan in the processes of the setup.
RankRuntime runtime_of(const RunSetup& setup, const Plan& plan);

// The work of one rank, in its own thread. The ledger books the rank's allocations and
// communication.
using RankBody = std::function<void(RankRun& rank, Ledger& ledger)>;

// Runs `body` on every rank of this process, with initial parameters in the plan's precision.
// `plan`: the setup's own, or another one of the same model. Throws as RankRuntime::run, in all
// processes. `stop`: set to end the steps; may be null. `limited`: whether the setup's memory limit
// holds.
void with_ranks(RankRuntime& runtime, const RunSetup& setup, const Plan& plan,
                const std::atomic<bool>* stop, const RankBody& body, bool limited = false);
void with_ranks(const RunSetup& setup, const Plan& plan, const std::atomic<bool>* stop,
                const RankBody& body);

// Fills a rank's parameters by RunSetup::fill, or from the seed.
void fill_parameters(RankRun& rank, const RunSetup& setup);

}  // namespace mw
