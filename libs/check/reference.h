// The reference that verify compares a plan with: the steps of one rank, which the first process
// runs. Other processes get its parameters and gradients one by one, when their ranks compare them.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "check/verify_follow.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/run.h"

namespace mw {

class Reference {
 public:
  // Runs `one`, a plan of one rank, or of one for each replica (one_rank_replicas). All processes
  // must call it. `mix`: the plan whose ranks will ask for activations; null: no activations are
  // kept. Throws StoppedAll in all processes if one was asked to stop, Error (run) if a rank fails.
  Reference(const RunSetup& experiment, const Plan& one, const Plan* mix, std::int64_t steps,
            const std::atomic<bool>* stop);

  // Known in every process: loss and gradient norm of each step up to end(), the first place that
  // is not finite.
  double loss(std::int64_t step) const { return facts_.losses.at(static_cast<std::size_t>(step)); }
  double norm(std::int64_t step) const { return facts_.norms.at(static_cast<std::size_t>(step)); }
  const NotFinite& end() const { return facts_.end; }
  double gradient_norm(const std::string& parameter) const;  // in the first step

  // A whole activation, or its gradient, by key_of(); null if no rank of this process computes it.
  const at::Tensor* activation(const std::string& key) const;

  // Gives a rank of the compared plan the reference's parameters and gradients. All ranks of a run
  // must take the same ones in the same order.
  class Taker {
   public:
    Taker(const Reference& reference, RankRuntime& runtime, int rank)
        : reference_(reference), runtime_(runtime), rank_(rank) {}
    bool shared() const { return !runtime_.alone(); }  // ranks are in several processes
    // A parameter's gradient in the first step, or the parameter after the last update that counts
    // (end()). Throws Aborted if another rank fails.
    at::Tensor take(bool gradient, const std::string& parameter);

   private:
    const Reference& reference_;
    RankRuntime& runtime_;
    const int rank_;
    std::size_t under_way_ = 0;  // bytes taken since the last barrier
  };

 private:
  class Keeper;
  struct Facts {
    std::vector<double> losses, norms;
    std::map<std::string, double> gradient_norms;
    NotFinite end;
    template <class Pack>
    friend void members(Pack& pack, Facts& facts) {
      pack(facts.losses, facts.norms, facts.gradient_norms, facts.end.step, facts.end.before_update,
           facts.end.what);
    }
  };
  void share_activations(Processes& processes, const std::set<std::string>& ops);

  std::mutex mutex_;  // guards what follows while ranks run
  Facts facts_;
  std::map<std::string, at::Tensor> gradients_, parameters_;  // empty but in the first process
  std::map<std::string, at::Tensor> activations_;
};

// "forward 0 1 layers.0.attention.q": names a tensor of a step by its piece, output, microbatch and
// op, however it is distributed. A gradient is named by its output, as several may share a slot.
std::string key_of(const Program& program, const Instruction& i, int slot, int microbatch);

}  // namespace mw
