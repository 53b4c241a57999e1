// What makes faults happen inside a run: it stands between the ranks and what connects them, and
// hears of each step. A run has it only if `meshwright chaos` has started it, whose conductor
// (python/src/meshwright_chaos) tells it what to do by files of a folder.
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

// Looks for orders in the folder (order.json) every few milliseconds, in a thread of its own, and
// notes there which one a rank has taken (taken.json) and from which files the run takes its tokens
// (files.json). Rank 0 writes a line into the folder's pipe ("steps") when it begins ("start") and
// after each step: its number and its loss, a hexadecimal one. One agent in a process.
class Agent final : public RunObserver {
 public:
  explicit Agent(std::filesystem::path folder);
  ~Agent() override;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Tells the agent of the next run's data, which outlive the run.
  void takes_part_in(const TokenSource* data) { data_ = data; }

  void begin(RankRun& rank) override;
  void step(RankRun& rank, StepEnd& end) override;
  std::string name() const override { return "chaos"; }

  // What becomes of a call that a rank is about to make.
  struct Meeting {
    bool lost = false;   // it is not to be made
    double seconds = 0;  // after which a lost call's wait gives up
  };
  // Called by the rank's thread, which may sleep here. `input`: what the rank puts in, which may be
  // changed; undefined: nothing. Throws std::runtime_error if the rank is to fail.
  Meeting meets(int rank, const std::string& axis, Collective op, const at::Tensor& input);

 private:
  struct Order {
    std::int64_t id = 0;  // from 1, counted by the conductor
    std::string fault;    // the name of its kind
    int rank = 0;
    double seconds = 0;      // how long it lasts: delay, slow, lost
    std::uint64_t draw = 0;  // decides which element and which bit
  };
  std::optional<Order> order_in_folder() const;
  std::optional<Order> take(int rank, const std::string& axis, Collective op,
                            const at::Tensor& input);
  void look();
  void tell(const std::string& line) const;

  const std::filesystem::path folder_;
  const TokenSource* data_ = nullptr;
  int pipe_ = -1;
  std::atomic<int> rank_ = -1;       // the rank that order_ is for; -1: there is none
  std::atomic<int> slow_rank_ = -1;  // the rank that is slow; -1: none
  std::atomic<double> slow_until_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Order> order_;
  std::int64_t last_ = 0;             // the last order that was taken
  std::map<int, std::int64_t> next_;  // of each rank that is here, the number of its next step
  bool over_ = false;
  std::jthread looks_;  // last: it uses all of these
};

}  // namespace mw::chaos
