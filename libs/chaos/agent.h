// Makes faults happen inside a run: an agent that stands between the ranks and their communicators,
// and is told of each step. A run has one only if `meshwright chaos` has started it. Its conductor
// (python/src/meshwright_chaos) gives the agent orders by files in a folder.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "meshwright/communicator.h"
#include "meshwright/data.h"
#include "meshwright/engine/run.h"
#include "meshwright/world.h"

namespace mw::chaos {

// Looks for orders in the folder (order.json) every few milliseconds, in a thread of its own.
// Writes there which order a rank has carried out (taken.json) and from which files the run takes
// its tokens (files.json). Rank 0 writes a line into the folder's pipe ("steps") when it begins
// ("start") and after each step: the step's number and its loss in hexadecimal. A process has at
// most one agent.
class Agent final : public RunObserver {
 public:
  explicit Agent(std::filesystem::path folder);
  ~Agent() override;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Tells the agent the data of the next run, which must outlive the run.
  void takes_part_in(const TokenSource* data) { data_ = data; }

  void begin(RankRun& rank) override;
  void step(RankRun& rank, StepEnd& end) override;
  std::string name() const override { return "chaos"; }

  // What the agent decides about a call that a rank is about to make.
  struct Meeting {
    bool lost = false;   // the call is not made
    double seconds = 0;  // time after which the wait for a lost call gives up
  };
  // Carries out the rank's order, if there is one. Called by the rank's thread, which may sleep
  // here. `input`: the call's input, which may be changed; undefined: none. Throws
  // std::runtime_error if the rank is to fail.
  Meeting meets(int rank, const std::string& axis, Collective op, const at::Tensor& input);

 private:
  struct Order {
    std::int64_t id = 0;  // from 1, counted by the conductor
    std::string fault;    // "error", "delay", "slow", "lost", "nan" or "flip-gradient"
    int rank = 0;
    double seconds = 0;      // duration of the faults delay, slow and lost
    std::uint64_t draw = 0;  // random number that chooses the element or bit
  };
  std::optional<Order> order_in_folder() const;
  std::optional<Order> take(int rank, const std::string& axis, Collective op,
                            const at::Tensor& input);
  void look();
  void tell(const std::string& line) const;

  const std::filesystem::path folder_;
  const TokenSource* data_ = nullptr;
  int pipe_ = -1;
  std::atomic<int> rank_ = -1;       // the rank that order_ is for; -1: no order
  std::atomic<int> slow_rank_ = -1;  // the rank that is slow; -1: none
  std::atomic<double> slow_until_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Order> order_;
  std::int64_t last_ = 0;             // the last order that was taken
  std::map<int, std::int64_t> next_;  // by rank of this process: its next step
  bool over_ = false;
  std::jthread looks_;  // the last member: its thread uses all others
};

}  // namespace mw::chaos
