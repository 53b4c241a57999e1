// The terms of the closed form that candidates of a search are priced by: made of plans of few
// layers, priced by the same machine, so that each plan of a search is a sum of a few numbers.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "search/orders.h"
#include "search/probe.h"

namespace mw {

// The terms of an inner side, the sequences of a microbatch and what is computed again.
struct WorkTerms {
  PerLayer forward, backward;  // seconds of a microbatch, transfers of the inner side among them
  // Seconds beside these, waiting for copies to and from host memory; ends: in each run of a
  // segment.
  PerLayer forward_copies, backward_copies;
  double fetched = 0;  // seconds that copies of a layer take in backward, awaited or not
  double dgrad_copies = 0, wgrad_copies = 0;  // shares of backward's where that is in parts
  PerLayer weights;                           // seconds of backward that make gradients of weights
  PerLayer hidden;                            // seconds of transfers that run beside those
  // Seconds of a layer before its first transfer on each link.
  ByLink forward_free{}, backward_free{};
  // Bytes that come and go: in a forward beyond what it leaves, in a backward beyond what it finds;
  // where the loss is there.
  double in_forward = 0, in_backward = 0, in_loss = 0, in_loss_back = 0;
  PerLayer held,
      waiting;  // bytes of a microbatch between forward and backward; between dgrad and wgrad
  double before_loss =
      0;  // bytes of the ends between forward and backward, with what the loss reads
  PerLayer host, host_waiting;  // the same in host memory
};

// The terms of an inner side and a data side of so many ways.
struct DataTerms {
  PerLayer lasting;                      // bytes of parameters, gradients and optimizer state
  PerLayer host;                         // the same in host memory
  double on_first = 0.5, on_last = 0.5;  // shares of the ends' by stages; tied: all of both
  // Bytes that the data side has come and go, as those of works.
  double in_forward = 0, in_backward = 0, in_end = 0;
  double held_layer = 0;                    // bytes of a layer's parameters, held through a step
  PerLink gather_next;                      // updated parameters, beside a step's first forward
  PerLink gather_forward, gather_backward;  // parameters, in each microbatch
  PerLayer copy_forward, copy_backward;     // seconds of copies from host memory before that
  PerLink scatter;                          // gradients, in each microbatch
  PerLayer own_forward, own_backward;       // seconds of the rank's own work for these
  double held_ends = 0;                     // bytes of the ends' parameters, held through a step
  PerLayer pending;                         // bytes of whole gradients, until they are reduced
  bool by_chunk = false;                    // they are reduced when a stage turns to another chunk
  PerLayer arriving;                        // bytes of their sums, a shard until it is added
  PerLink reduce;                           // beside the last backward, or that of each turn
  PerLayer own_last;                        // seconds of the rank's own work in it
  PerLayer after;                           // seconds of the step's end, with its transfers
  PerLayer beside;                          // as StepProbe has it
  bool beside_backward = false;
  ByLink slows{};  // compute loses so much of each second beside them
};

// Each is made once. Null: the strategies or the model refuse it.
class SearchTerms {
 public:
  // Seconds are those of a cluster.
  SearchTerms(const SearchRequest& request, const SearchSpace& space, const Cluster& cluster);

  // `policy`: of recompute, times that of offload.
  const WorkTerms* work(int inner, std::int64_t microbatch, int policy);
  // `data`: an index of the space's, or -1 for none (of one way).
  const DataTerms* data(int inner, int data, DataWays split);
  // `inner`: whose works the schedule is told of, where they are not known.
  const OrderTerms* order(int stages_side, int ways, std::int64_t microbatches, int inner,
                          int policy);
  const SentProbe* sent(int inner);

  const SearchProbes& probes() const { return probes_; }
  // Seconds of a core that making terms has taken so far.
  double spent() const { return spent_; }

 private:
  class Clock;
  PerLayer per_layer(double fewer, double more) const;
  std::optional<DataTerms> made(int inner, int data, DataWays split);

  const SearchRequest& request_;
  const SearchSpace& space_;
  SearchProbes probes_;
  SearchOrders orders_;
  std::map<std::tuple<int, std::int64_t, int>, std::optional<WorkTerms>> work_;
  std::map<std::tuple<int, int, int, int>, std::optional<DataTerms>> data_;
  std::map<int, const SentProbe*> sent_;
  double spent_ = 0;
  bool counts_ = false;  // a clock runs
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
    for (const auto& one : all_) sum += one->probes().plans();
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

}  // namespace mw
