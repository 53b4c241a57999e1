// The seconds and bytes of which the cost of a search's candidate is made up. They are read off
// plans of a few layers, whose footprints the search's machine prices as it prices a whole plan.
// One plan serves every size of microbatch, every schedule, and all ways to split a layer that
// place parameters alike.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "predict/variants.h"
#include "search/orders.h"
#include "search/space.h"

namespace mw {

// A cost of the model's ends (embedding, loss) and of each layer.
struct PerLayer {
  double ends = 0, layer = 0;
  double at(double layers) const { return ends + layer * layers; }
  PerLayer operator*(double factor) const { return {ends * factor, layer * factor}; }
  PerLayer operator+(const PerLayer& more) const { return {ends + more.ends, layer + more.layer}; }
  PerLayer& operator+=(const PerLayer& more) { return *this = *this + more; }
  // The difference, with neither part below 0.
  PerLayer less(const PerLayer& other) const {
    return {std::max(0.0, ends - other.ends), std::max(0.0, layer - other.layer)};
  }
};

// The cost of one microbatch for an inner side and a policy, where one stage has the whole model.
struct WorkTerms {
  PerLayer forward, backward;  // seconds, with the inner side's transfers and waits for copies
  PerLayer held, waiting;      // bytes held from forward to backward or dgrad; from dgrad to wgrad
  PerLayer host;               // bytes in host memory from forward to backward
  // Bytes that come and go besides: in the backward of a layer, and around the loss.
  double in_layer = 0, in_loss = 0;
  LayerTimes nominal;  // times that schedules are told
  // The share of backward's seconds that weight gradients take.
  double weights() const {
    const WorkTimes& layer = nominal.layer;
    return layer.wgrad / std::max(layer.dgrad + layer.wgrad, 1e-300);
  }
};

// The cost of a step of an inner side with a data side, beyond what its microbatches cost without a
// data side. Transfers are in seconds, with the copies from host memory that they follow.
struct DataTerms {
  PerLayer lasting, host;  // bytes of parameters, gradients, optimizer state; those in host memory
  // Shares of the ends' bytes that the first and the last stage have; tied parameters count in
  // both.
  double on_first = 0.5, on_last = 0.5;
  // Bytes held from forward to backward; bytes held between microbatches.
  PerLayer held, pending;
  double in_works = 0, in_end = 0;  // bytes that come and go beside works, and at the step's end
  // Seconds of transfers of parameters and gradients in each microbatch.
  PerLayer moved_forward, moved_backward;
  PerLayer own_forward, own_backward;  // seconds of the rank's own work for these transfers
  // Seconds of gradients' transfers in the last microbatch or at each turn (by_chunk), and of the
  // rank's own work for them.
  PerLayer reduce, own_last;
  bool by_chunk = false;  // gradients are reduced whenever a stage turns to another chunk
  PerLayer after;         // seconds of the step's end, with its transfers
  // Seconds to gather updated parameters beside the next step's first forward.
  PerLayer gather_next;
  // Seconds of the host's updates beside the last backward, or else beside the forward.
  PerLayer updates;
  bool updates_beside_backward = false;
};

// What a rank sends to the next stage.
struct SentTerms {
  double bytes = 0;    // bytes for each sequence
  bool whole = false;  // each rank of the model's axes has all that is sent
  int ranks = 1;       // ranks of the model's axes
};

// Makes the terms of candidates, each once. The functions return null where the strategies or the
// model refuse. Not thread-safe. Throws Stopped.
class SearchTerms {
 public:
  // The terms' seconds are those on `cluster`.
  SearchTerms(const SearchRequest& request, const SearchSpace& space, const Cluster& cluster);

  const WorkTerms* work(int inner, int policy, std::int64_t microbatch);
  // `data`: an index of the space's data sides, or -1 for none (of one way).
  const DataTerms* data(int inner, int data, DataWays split);
  const OrderTerms* order(int stages_side, int ways, std::int64_t microbatches, int policy,
                          const WorkTerms& work);
  const SentTerms* sent(int inner);

  std::int64_t plans() const { return plans_; }
  // Why the first refused plan was refused; null: none was.
  const Problem* refusal() const { return refusal_ ? &*refusal_ : nullptr; }
  // Core seconds that making terms has taken so far.
  double spent() const { return spent_; }

 private:
  struct Asked {
    int inner = 0, data = -1, ways = 1, groups = 1, policy = 0;
    std::int64_t microbatch = 1, layers = 0;
    friend auto operator<=>(const Asked&, const Asked&) = default;
  };
  // The plan, null where it is refused. plan() keeps the plans of the inner side that was asked for
  // last.
  std::shared_ptr<const Plan> plan(const Asked& asked);
  std::shared_ptr<const Plan> made(const Asked& asked);
  std::shared_ptr<const Plan> made(const PlanRequest& request, const Json& entries);
  Asked plain(int inner) const;
  std::shared_ptr<const Model> model_with(std::int64_t layers);
  void choose_layers();
  int alike(int inner);
  std::optional<WorkTerms> made_work(Asked asked, std::int64_t microbatch);
  std::optional<DataTerms> made_data(int inner, int data, DataWays split);
  std::optional<SentTerms> made_sent(int inner);
  template <class Key, class Terms, class Make>
  const Terms* once(std::map<Key, std::optional<Terms>>& known, const Key& key, const Make& make);

  const SearchRequest& request_;
  const SearchSpace& space_;
  const ClusterMachine machine_;  // with the host links that a device has when all ranks share them
  // Layers of the two plans of few layers; equal where no model has fewer.
  std::array<std::int64_t, 2> layers_{};
  std::map<std::int64_t, std::shared_ptr<const Model>> models_;
  std::map<Json, StrategyChoice> choices_;
  std::map<Asked, std::shared_ptr<const Plan>> kept_;
  int kept_of_ = -1;
  std::map<std::string, int> first_alike_;
  std::map<int, std::optional<int>> alike_;
  std::map<std::tuple<int, int, std::int64_t>, std::optional<WorkTerms>> work_;
  std::map<std::tuple<int, int, int, int>, std::optional<DataTerms>> data_;
  std::map<int, std::optional<DataTerms>> alone_;  // data terms of plans of an inner side alone
  std::map<int, std::optional<SentTerms>> sent_;
  SearchOrders orders_;
  std::int64_t plans_ = 0;
  std::optional<Problem> refusal_;
  double spent_ = 0;
};

// The terms for each part of the cluster (ClusterParts) on which a search's ranks lie, as if all
// devices were like that part. Bytes, and orders of works, are those of the first part.
class PartTerms {
 public:
  PartTerms(const SearchRequest& request, const SearchSpace& space) {
    const ClusterParts& parts = request.machine->parts();
    for (const int part : parts.among(0, request.ranks)) {
      all_.push_back(std::make_unique<SearchTerms>(
          request, space, parts.all()[static_cast<std::size_t>(part)].cluster));
    }
  }
  std::size_t size() const { return all_.size(); }
  SearchTerms& of(std::size_t part) const { return *all_[part]; }
  SearchTerms& first() const { return *all_.front(); }
  std::int64_t plans() const {
    std::int64_t sum = 0;
    for (const auto& one : all_) sum += one->plans();
    return sum;
  }
  double spent() const {
    double sum = 0;
    for (const auto& one : all_) sum += one->spent();
    return sum;
  }

 private:
  std::vector<std::unique_ptr<SearchTerms>> all_;
};

// The terms of the plan's step, apart from the work of its microbatches.
DataTerms data_terms(const Plan& plan, const ClusterMachine& machine);

// The request's plan with the strategies of these entries, on the search's machine; null, with
// problems, where it is refused. Each entry's strategy is made once and kept in `choices`.
std::shared_ptr<const Plan> plan_of(const SearchRequest& search, PlanRequest request,
                                    const Json& entries, std::map<Json, StrategyChoice>& choices,
                                    Problems& problems, const PlanMaker& make = make_plan);

}  // namespace mw
