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

#include "search/orders.h"
#include "search/space.h"

namespace mw {

// What a stage has of the model's ends (embedding, loss), and of each layer.
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

// A microbatch of an inner side under a policy, where one stage has the whole model.
struct WorkTerms {
  PerLayer forward, backward;  // seconds, with the inner side's transfers and waits for copies
  PerLayer held, waiting;      // bytes from forward to backward or dgrad; from dgrad to wgrad
  PerLayer host;               // bytes in host memory from forward to backward
  // Bytes that come and go beside these: in the backward of a layer, and where the loss is.
  double in_layer = 0, in_loss = 0;
  LayerTimes nominal;  // that schedules are told
  // The share of backward's seconds that make gradients of weights.
  double weights() const {
    const WorkTimes& layer = nominal.layer;
    return layer.wgrad / std::max(layer.dgrad + layer.wgrad, 1e-300);
  }
};

// A step of an inner side and a data side, apart from what its microbatches take and hold without a
// data side. Transfers are in seconds, with the copies from host memory that they follow.
struct DataTerms {
  PerLayer lasting, host;  // bytes of parameters, gradients, optimizer state; those in host memory
  double on_first = 0.5, on_last = 0.5;  // shares of the ends' by stages; tied: all of both
  PerLayer held, pending;                // bytes from forward to backward; between microbatches
  double in_works = 0, in_end = 0;       // bytes that come and go: beside works; at the step's end
  PerLayer moved_forward, moved_backward;  // parameters and gradients, in each microbatch
  PerLayer own_forward, own_backward;      // the rank's own work for these
  PerLayer reduce, own_last;  // gradients in the last microbatch, or whenever a stage turns to
  bool by_chunk = false;      // another chunk
  PerLayer after;             // the step's end, with its transfers
  PerLayer gather_next;       // updated parameters, beside the next step's first forward
  PerLayer updates;           // by the host beside the last backward, or else beside the forward
  bool updates_beside_backward = false;
};

// What a rank sends to the next stage.
struct SentTerms {
  double bytes = 0;    // of a sequence
  bool whole = false;  // each rank of the model's axes has all of it
  int ranks = 1;       // of the model's axes
};

// Each is made once. Null: the strategies or the model refuse it. Not thread-safe. Throws Stopped.
class SearchTerms {
 public:
  // Seconds are those of a cluster.
  SearchTerms(const SearchRequest& request, const SearchSpace& space, const Cluster& cluster);

  const WorkTerms* work(int inner, int policy, std::int64_t microbatch);
  // `data`: an index of the space's, or -1 for none (of one way).
  const DataTerms* data(int inner, int data, DataWays split);
  const OrderTerms* order(int stages_side, int ways, std::int64_t microbatches, int policy,
                          const WorkTerms& work);
  const SentTerms* sent(int inner);

  std::int64_t plans() const { return plans_; }
  // Why the first of all plans was refused that were; null: none was.
  const Problem* refusal() const { return refusal_ ? &*refusal_ : nullptr; }
  // Seconds of a core that making terms has taken so far.
  double spent() const { return spent_; }

 private:
  struct Asked {
    int inner = 0, data = -1, ways = 1, groups = 1, policy = 0;
    std::int64_t microbatch = 1, layers = 0;
    friend auto operator<=>(const Asked&, const Asked&) = default;
  };
  // Null: refused. `plan` keeps those of the inner side that was asked for last.
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
  const ClusterMachine machine_;          // the links to the host as with all ranks
  std::array<std::int64_t, 2> layers_{};  // of the plans; equal where no model has fewer
  std::map<std::int64_t, std::shared_ptr<const Model>> models_;
  std::map<Json, StrategyChoice> choices_;
  std::map<Asked, std::shared_ptr<const Plan>> kept_;
  int kept_of_ = -1;
  std::map<std::string, int> first_alike_;
  std::map<int, std::optional<int>> alike_;
  std::map<std::tuple<int, int, std::int64_t>, std::optional<WorkTerms>> work_;
  std::map<std::tuple<int, int, int, int>, std::optional<DataTerms>> data_;
  std::map<int, std::optional<DataTerms>> alone_;  // of plans of an inner side alone
  std::map<int, std::optional<SentTerms>> sent_;
  SearchOrders orders_;
  std::int64_t plans_ = 0;
  std::optional<Problem> refusal_;
  double spent_ = 0;
};

// The terms of each part of the cluster on which a search's ranks lie, as if all devices were so
// (ClusterParts). Bytes, and orders of works, are those of the first.
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

// What the plan's step costs, apart from the work of its microbatches.
DataTerms data_terms(const Plan& plan, const ClusterMachine& machine);

// The choices of a plan's entries, each made once.
std::vector<StrategyChoice> choices_of(const SearchRequest& request, const Json& entries,
                                       std::map<Json, StrategyChoice>& made);

}  // namespace mw
