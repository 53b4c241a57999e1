// What verify holds a mix against: the steps of one rank, which the first process runs for all. The
// others keep none of its tensors: each comes to all ranks when they are at it.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "check/verify_follow.h"
#include "meshwright/engine/ranks.h"
#include "script/experiment.h"

namespace mw {

class Reference {
 public:
  // Runs `one`, a plan of one rank; called by every process of the experiment alike. `mix`: whose
  // ranks will ask; null: no activations are kept. Throws StoppedAll in all processes if one of
  // them was asked to stop, Error (run) if the rank fails.
  Reference(const Experiment& experiment, const Plan& one, const Plan* mix, std::int64_t steps,
            const std::atomic<bool>* stop);

  // Known in every process: of each step up to the end; where it is not finite any more.
  double loss(std::int64_t step) const { return facts_.losses.at(static_cast<std::size_t>(step)); }
  double norm(std::int64_t step) const { return facts_.norms.at(static_cast<std::size_t>(step)); }
  const NotFinite& end() const { return facts_.end; }
  double gradient_norm(const std::string& parameter) const;  // of the first step

  // A tensor of the step's, whole, by key_of(); null where the ranks that are here need none.
  const at::Tensor* activation(const std::string& key) const;

  // How a rank of the mix gets one rank's parameters. All ranks of a run take the same ones in the
  // same order.
  class Taker {
   public:
    Taker(const Reference& reference, RankRuntime& runtime, int rank)
        : reference_(reference), runtime_(runtime), rank_(rank) {}
    bool shared() const { return !runtime_.alone(); }  // ranks are in several processes
    // A parameter's gradient of the first step, or its numbers after the last update that is
    // finite. Throws Aborted if another rank fails.
    at::Tensor take(bool gradient, const std::string& parameter);

   private:
    const Reference& reference_;
    RankRuntime& runtime_;
    const int rank_;
    std::size_t under_way_ = 0;  // bytes, since all ranks met
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

  Facts facts_;
  std::map<std::string, at::Tensor> gradients_, parameters_;  // in the first process alone
  std::map<std::string, at::Tensor> activations_;
};

// "forward layers.0.attention.q 0 1": one tensor of a step, however it is distributed. A gradient
// is named by the output that it belongs to, for several may share a slot.
std::string key_of(const Program& program, const Instruction& i, int slot, int microbatch);

}  // namespace mw
