// The terms of the closed form that candidates of a search are priced by: measured on plans of few
// layers, priced by the same machine, so that each plan of a search is a sum of a few numbers.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "predict/search_space.h"

namespace mw {

// What a stage has of its ends (embedding, loss) and of each layer.
struct PerLayer {
  double ends = 0, layer = 0;
  double at(double layers) const { return ends + layer * layers; }
};

// Of an inner side, sequences of a microbatch and what is computed again.
struct WorkTerms {
  PerLayer forward, backward;  // seconds of a microbatch, transfers of the inner side among them
  PerLayer held;               // bytes of a microbatch under way; its ends: of the last stage
};

// Of an inner side and a data side of so many ways.
struct DataTerms {
  PerLayer lasting;                          // bytes of parameters, gradients and optimizer state
  PerLayer working;                          // ... of what the data side needs beside them
  PerLayer gather_forward, gather_backward;  // seconds of transfers in each microbatch
  PerLayer reduce;                           // ... beside the last microbatch's backward
  PerLayer after;                            // seconds of the step's end, with its transfers
  double slows = 0;                          // compute loses so much of each second beside them
};

// What an order of works adds to the time of one stage, and how many microbatches it holds.
struct ScheduleTerms {
  double bubble = 0;           // in times of a microbatch's forward and backward
  double first = 1, last = 1;  // microbatches under way at most: of any stage, of the last one
};

class SearchTerms {
 public:
  SearchTerms(const SearchRequest& request, const SearchSpace& space);

  // Each is measured once. Null: the strategies or the model refuse it. `policy`: of recompute,
  // times that of offload. `data`: an index of the space's, or -1 for none (of one way).
  const WorkTerms* work(int inner, std::int64_t microbatch, int policy);
  const DataTerms* data(int inner, int data, int ways);
  const ScheduleTerms* schedule(int stages_side, int ways, std::int64_t microbatches);
  // Bytes that a rank sends to the next stage of a sequence; and whether all ranks of the model's
  // axes have all of it.
  struct Sent {
    double bytes = 0;
    bool whole = false;
    int ranks = 1;  // of the model's axes
  };
  const Sent* sent(int inner, int stages_side);

  int policies() const;
  const RecomputeChoice& recompute_of(int policy) const;
  const OffloadChoice& offload_of(int policy) const;
  std::int64_t probes() const { return probes_; }
  // That measuring has taken so far.
  double spent() const { return spent_; }

 private:
  // A bucket's transfer of a plan of few layers.
  struct Carried {
    Collective op = Collective::all_reduce;
    double bytes = 0;
    std::vector<int> ranks;
    bool backward_gather = false, hidden = false;
  };
  struct Measured {
    double forward = 0, backward = 0;  // of the first microbatch
    double update = 0;                 // own work of the step's end
    double lasting = 0, working = 0;   // bytes
    std::vector<Carried> forward_moves, backward_moves, last_moves, end_moves;
  };
  struct Asked {
    int inner = 0, data = -1, ways = 1, policy = 0;
    std::int64_t microbatch = 1;
    friend auto operator<=>(const Asked&, const Asked&) = default;
  };
  using Pair = std::array<std::optional<Measured>, 2>;  // of the fewer layers and of the more

  // Of what it measures anew, the seconds that it takes.
  class Clock;
  const Pair& measured(const Asked& asked);
  std::optional<Measured> measure(const Asked& asked, std::int64_t layers);
  std::shared_ptr<const Plan> plan_of(const PlanRequest& request);
  PerLayer split(double fewer, double more) const;
  double seconds(const std::vector<Carried>& moves, int probe_ways, int ways, int inner,
                 double& slows) const;
  std::shared_ptr<const Model> model_with(std::int64_t layers);
  void choose_layers();

  const SearchRequest& request_;
  const SearchSpace& space_;
  std::vector<std::int64_t> layers_;  // of probes: two numbers, or one
  std::map<std::int64_t, std::shared_ptr<const Model>> models_;
  std::map<Json, StrategyChoice> choices_;
  std::map<Asked, Pair> measured_;
  std::map<std::tuple<int, std::int64_t, int>, std::optional<WorkTerms>> work_;
  std::map<std::tuple<int, int, int>, std::optional<DataTerms>> data_;
  std::map<std::tuple<int, int, std::int64_t>, std::optional<ScheduleTerms>> schedules_;
  std::map<std::pair<int, int>, std::optional<Sent>> sent_;
  std::int64_t probes_ = 0;
  double spent_ = 0;
  bool counts_ = false;  // a clock runs
};

// The choices of a plan's entries, each made once.
std::vector<StrategyChoice> choices_of(const SearchRequest& request, const Json& entries,
                                       std::map<Json, StrategyChoice>& made);

}  // namespace mw
