// What ranks hold alike: the sums of bits by which it is compared, what a rank keeps from step to
// step with the ranks that keep the same, and the check of that alone.
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

// What a rank's check came to.
struct CheckReport {
  std::int64_t steps = 0;           // of the run
  std::int64_t compared = 0;        // those among them of which something was compared
  std::int64_t tensors = 0;         // looked at, in all of these
  std::int64_t replicas = 0;        // those among them that were compared with other ranks' copies
  double seconds = 0;               // of the rank's time
  std::int64_t every = 0;           // of a check of replicas alone: ReplicaCheck's; else 0
  std::vector<std::string> unused;  // parameters whose gradient was zero, on all ranks, in every
                                    // step; of a check that looks at gradients
};

// Adds the seconds of its life.
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

// A sum of the tensor's bits, each place weighed differently: equal for equal bits, and for others
// but once in 2^63 or so.
std::int64_t sum_of_bits(const at::Tensor& tensor);
// The same by XXH3 where the tensor lies in host memory, which reads each byte once and allocates
// nothing. It is another number than sum_of_bits().
std::int64_t hash_of_bits(const at::Tensor& tensor);

// What a rank has of something that a set of ranks has alike.
struct BitsSeen {
  std::string what;  // "the output of layers.0.attention.q"
  std::int64_t bits = 0;
  int microbatch = -1;
};

// Collective among the ranks of the set, whose lists are of the same things. Throws Error (run,
// "check.replicas") on all of them at the first thing of which they have different bits, with the
// axis, the ranks and the step.
void compare_bits(RankRun& rank, const RankSet& set, const std::vector<BitsSeen>& list,
                  std::int64_t step);

// A flat tensor of a bucket that a rank keeps from step to step.
struct KeptTensor {
  const Bucket& bucket;
  std::string what;  // "the parameters", "the masters", "state 0 of the optimizer"
  int slot = -1;
  const at::Tensor& tensor;
  // This rank and those that keep the same bits; no atoms: it is the only one.
  RankSet ranks;
};
// Calls the function for parameters, masters and what the optimizer keeps, in an order that is the
// same on all ranks of a set. Parameters are the whole ones where the rank keeps them whole. What
// is under way is awaited before (RankRun::await_updates).
void each_kept(RankRun& rank, const std::function<void(const KeptTensor&)>& call);

// The check of replicas alone. After every `every`-th step of a run, counted from step 0, and after
// its last one, all ranks compare what they keep alike: each hashes what it keeps, and one
// all-reduce of two numbers over all ranks says whether any set of replicas parts. It gathers no
// shard, and does nothing in other steps. Where a set parts, its ranks compare parameter by
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
  // That of the rank whose check took longest. It is called when no rank runs any more.
  CheckReport report() const;

 private:
  struct OfRank {
    std::int64_t ended = -1, compared = -1;  // the last steps that ended, and were compared
    CheckReport report;
  };
  OfRank& of(const RankRun& rank);
  void compare(RankRun& rank, OfRank& own);

  const std::int64_t every_;
  std::mutex mutex_;
  std::map<int, OfRank> ranks_;
};

}  // namespace mw
