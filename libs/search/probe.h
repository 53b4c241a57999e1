// Plans of few layers that a search resolves and prices, and what is read from them. One plan
// serves every size of microbatch, every schedule and all ways to split a layer in which parameters
// lie alike.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "search/orders.h"
#include "search/space.h"

namespace mw {

// What a stage has of its ends (embedding, loss) and of each layer.
struct PerLayer {
  double ends = 0, layer = 0;
  double at(double layers) const { return ends + layer * layers; }
  PerLayer operator*(double factor) const { return {ends * factor, layer * factor}; }
  PerLayer operator+(const PerLayer& more) const { return {ends + more.ends, layer + more.layer}; }
  PerLayer& operator+=(const PerLayer& more) { return *this = *this + more; }
  // Neither below nothing.
  PerLayer less(const PerLayer& other) const {
    return {std::max(0.0, ends - other.ends), std::max(0.0, layer - other.layer)};
  }
};

// A number of what goes inside a node, and of what leaves it.
using ByLink = std::array<double, 2>;
using PerLink = std::array<PerLayer, 2>;

// A step, apart from the work of its microbatches.
struct StepProbe {
  double layers = 0;
  // Bytes of parameters, gradients and optimizer state on the device, and in host memory.
  PerLayer lasting, host;
  // Bytes of what comes and goes at its highest: in a forward beyond what it leaves, in a backward
  // beyond what it finds, at the step's end.
  double in_forward = 0, in_backward = 0, in_end = 0;
  // Shares of the ends' parameters by stages; tied: all of both.
  double on_first = 0.5, on_last = 0.5;
  PerLayer held;          // bytes between forward and backward, of what comes and goes
  PerLayer pending;       // bytes of whole gradients that wait between microbatches
  bool by_chunk = false;  // they wait until a stage turns to another chunk
  PerLayer arriving;      // bytes of the shards of all their sums
  // Seconds of the rank's own work for buckets: in each microbatch, in the last one's backward, and
  // at the step's end.
  PerLayer forward, backward, last, update;
  // Seconds of updates that the host makes beside what the device computes: beside the last
  // backward of a step, or else beside the first forward.
  PerLayer beside;
  bool beside_backward = false;
  // Seconds of copies from host memory that gathers wait for: in each microbatch, at the end.
  PerLayer copies_forward, copies_backward, copies_end;
  // Seconds of transfers: parameters and gradients in each microbatch, all of the last one's
  // backward, and all of the step's end.
  PerLink gather_forward, gather_backward, scatter, last_moves, end_moves;
  PerLink gather_next;  // of updated parameters, beside the next step's forward
  ByLink slows{};       // compute loses so much of each second of those before the step's end
};

// A microbatch on one stage, its transfers inside a layer among it.
struct MicrobatchProbe {
  double forward = 0, backward = 0;                // seconds
  double forward_copies = 0, backward_copies = 0;  // seconds beside these, waiting for host copies
  double fetched = 0;                              // seconds of copies in backward, awaited or not
  double weights = 0;  // seconds of backward that make gradients of weights
  double hidden = 0;   // seconds of transfers that run beside these, less what they slow
  // Seconds from a layer's first work to its first transfer; infinite: it has none there.
  ByLink forward_free{}, backward_free{};
  // Bytes that come and go, at their highest: in a forward's layers beyond what these leave, and in
  // its loss; in a backward's loss beyond what that finds, and in the first layer, which is last.
  double in_forward = 0, in_loss = 0, in_loss_back = 0, layer = 0;
  double before_loss = 0;   // bytes there before the loss
  double held = 0;          // bytes between forward and backward
  double waiting = 0;       // bytes that gradients of weights are made of
  double host = 0;          // bytes in host memory between forward and backward
  double host_waiting = 0;  // bytes there that gradients of weights are made of
  double host_dgrad = 0;    // bytes there that other gradients are made of
};

// What was measured of the fewer layers and of the more; none where one of them is refused.
template <class Measured>
using Both = std::optional<std::array<Measured, 2>>;

// What a rank sends to the next stage.
struct SentProbe {
  double bytes = 0;    // of a sequence
  bool whole = false;  // each rank of the model's axes has all of it
  int ranks = 1;       // of the model's axes
};

// Not thread-safe. Throws Stopped.
class SearchProbes {
 public:
  // Plans of few ranks are priced for the cluster.
  SearchProbes(const SearchRequest& request, const SearchSpace& space, const Cluster& cluster);

  // The step of the inner side alone, with no more of the data's ranks than it borrows. It has the
  // more layers alone: a bucket's parameters say of which layers it is. Empty: refused.
  const std::optional<StepProbe>& step(int inner);
  // With a data side, an index of the space's.
  std::optional<StepProbe> step(int inner, int data, DataWays split);
  const Both<MicrobatchProbe>& microbatch(int inner, int policy, std::int64_t sequences);
  const std::optional<SentProbe>& sent(int inner);
  // What a schedule is told of works; of this inner side where none has told before.
  const Both<WorkTimes>& times(int inner, int policy);
  // The first inner side that leaves parameters on as many ranks, cut and summed as this one does:
  // with it, the data's ranks do the same. -1: this one is refused.
  int alike(int inner);

  // Layers of the two plans; equal where the model cannot be made with fewer.
  std::array<std::int64_t, 2> layers() const { return layers_; }
  int policies() const;
  const RecomputeChoice& recompute_of(int policy) const;
  // Whether the policy fits recompute to memory, and is tried on whole plans alone, in place of
  // what the fastest plans recompute: the closed form cannot price it. Where all policies fit, each
  // is priced by what it chose for the probes.
  bool fits_later(int policy) const;
  // The policies that are tried later in place of this one: those that offload what it does.
  std::vector<int> fitted(int policy) const;
  const OffloadChoice& offload_of(int policy) const;
  std::int64_t plans() const { return plans_; }
  // Why the first of all plans was refused that were; null: none was.
  const Problem* refusal() const { return refusal_ ? &*refusal_ : nullptr; }

 private:
  struct Asked {
    int inner = 0, data = -1, ways = 1, groups = 1, policy = 0;
    std::int64_t microbatch = 1, layers = 0;
    friend auto operator<=>(const Asked&, const Asked&) = default;
  };
  // Null: refused. Those of the inner side that was asked for last are kept.
  std::shared_ptr<const Plan> plan(const Asked& asked);
  std::shared_ptr<const Plan> made(const Asked& asked);
  std::shared_ptr<const Plan> make(const PlanRequest& request);
  void refused(const std::vector<Problem>& problems);
  Asked plain(int inner) const;
  template <class Measured, class Measure>
  Both<Measured> both(Asked asked, const Measure& measure);
  StepProbe measure_step(const Plan& plan) const;
  MicrobatchProbe measure_microbatch(const Asked& asked, const Plan& plan, std::int64_t sequences);
  bool same_for_all_sizes(int policy) const;
  std::shared_ptr<const Model> model_with(std::int64_t layers);
  void choose_layers();

  const SearchRequest& request_;
  const SearchSpace& space_;
  const ClusterMachine machine_;  // the links to the host as with all ranks
  std::array<std::int64_t, 2> layers_{};
  std::map<std::int64_t, std::shared_ptr<const Model>> models_;
  std::map<Json, StrategyChoice> choices_;
  std::map<Asked, std::shared_ptr<const Plan>> kept_;
  int kept_of_ = -1;
  std::map<int, std::optional<StepProbe>> steps_;
  std::map<std::tuple<int, int, std::int64_t>, Both<MicrobatchProbe>> microbatches_;
  std::map<int, std::optional<SentProbe>> sent_;
  std::map<int, Both<WorkTimes>> times_;
  std::map<std::pair<Asked, std::int64_t>, MicrobatchProbe> memory_;  // by sequences; bytes alone
  std::map<std::string, int> first_alike_;
  std::map<int, int> alike_;
  std::int64_t plans_ = 0;
  std::optional<Problem> refusal_;
};

// The choices of a plan's entries, each made once.
std::vector<StrategyChoice> choices_of(const SearchRequest& request, const Json& entries,
                                       std::map<Json, StrategyChoice>& made);

}  // namespace mw
