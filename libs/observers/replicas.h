// Compares tensors that several ranks must hold alike, by sums of their bits. Lists the tensors
// that a rank keeps from step to step, with the ranks that keep the same, and checks just these.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "meshwright/engine/host.h"
#include "meshwright/engine/run.h"

namespace mw {

// The statistics of one rank's check.
struct CheckReport {
  std::int64_t steps = 0;     // number of steps of the run
  std::int64_t compared = 0;  // number of steps in which something was compared
  std::int64_t tensors = 0;   // number of tensors checked, over all steps
  std::int64_t replicas = 0;  // number of these that were compared with copies on other ranks
  double seconds = 0;         // time that the check took on the rank
  std::int64_t every = 0;     // interval of a ReplicaCheck, in steps; 0: a check of every step
  // Parameters whose gradient was zero on all ranks in every step. A ReplicaCheck finds none.
  std::vector<std::string> unused;
};

// Adds the seconds from its construction to its destruction.
class CheckStopwatch {
 public:
  explicit CheckStopwatch(double& seconds) : seconds_(seconds) {}
  ~CheckStopwatch() { seconds_ += seconds_now() - began_; }
  CheckStopwatch(const CheckStopwatch&) = delete;
  CheckStopwatch& operator=(const CheckStopwatch&) = delete;

 private:
  double& seconds_;
  const double began_ = seconds_now();
};

// A weighted sum of the tensor's bits: the same for the same bits, and for other bits the same only
// once in 2^63 or so.
std::int64_t sum_of_bits(const at::Tensor& tensor);
// A hash of the tensor's bits by XXH3, which reads each byte once and allocates nothing. Not the
// number of sum_of_bits(), but for a tensor that does not lie in host memory.
std::int64_t hash_of_bits(const at::Tensor& tensor);

// One rank's bits of a tensor that several ranks must hold alike.
struct BitsSeen {
  std::string what;  // "the output of layers.0.attention.q"
  std::int64_t bits = 0;
  int microbatch = -1;
};

// A collective call of the ranks of the set, whose lists must name the same tensors. Throws Error
// (run, "check.replicas") on all of these ranks at the first tensor whose bits differ, with the
// axis, the ranks and the step.
void compare_bits(RankRun& rank, const RankSet& set, const std::vector<BitsSeen>& list,
                  std::int64_t step);

// A flat tensor of a bucket that a rank keeps from step to step.
struct KeptTensor {
  const Bucket& bucket;
  std::string what;  // "the parameters", "the masters", "state 0 of the optimizer"
  int slot = -1;
  const at::Tensor& tensor;
  // The ranks that keep the same bits, this one among them; no atoms: only this rank does.
  RankSet ranks;
};
// Calls the function for the flat parameters, masters and optimizer states of each bucket, in an
// order that is the same on all ranks of a set. Parameters are the whole ones where the rank keeps
// them whole, else its shard. Awaits updates that are under way (RankRun::await_updates).
void each_kept(RankRun& rank, const std::function<void(const KeptTensor&)>& call);

// Checks that replicas stay equal, and nothing else. After every `every`-th step of a run, counted
// from step 0, and after its last one, each rank hashes what it keeps from step to step, and one
// all-reduce of two numbers over all ranks tells whether any set of replicas differs. It gathers no
// shard, and does nothing in other steps. Where a set differs, its ranks compare parameter by
// parameter and throw Error (run, "check.replicas"). Collectives are booked under the phase
// "check", with the step that follows.
class ReplicaCheck : public RunObserver {
 public:
  explicit ReplicaCheck(std::int64_t every) : every_(every) {}
  void begin(RankRun& rank) override;
  void step(RankRun& rank, StepEnd& end) override;
  // Another observer may have ended the run after step() was called.
  void finish(RankRun& rank) override;
  std::string name() const override { return "check"; }
  // The report of the rank whose check took longest. Call it when no rank runs any more.
  CheckReport report() const;

 private:
  struct OfRank {
    std::int64_t ended = -1, compared = -1;  // the last step that ended; the last compared
    CheckReport report;
  };
  OfRank& of(const RankRun& rank);
  void compare(RankRun& rank, OfRank& own);

  const std::int64_t every_;
  std::mutex mutex_;
  std::map<int, OfRank> ranks_;
};

}  // namespace mw
