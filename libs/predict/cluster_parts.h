// The parts of a cluster: devices that are of one kind, and as fast as described or equally slow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/engine/rank_view.h"
#include "predict/cluster.h"

namespace mw {

// The cluster with all devices and links so much slower.
Cluster slowed(Cluster cluster, const SlowBy& by);

class ClusterParts {
 public:
  struct Part {
    Cluster cluster;  // as if all of its nodes were as this part is
    std::string key;  // where its device is described: "cluster.device"
    SlowBy by;        // how much slower than that it is
    int kind = 0;     // the place of its kind in Cluster::kinds, counted from 1; 0: none of them
    std::int64_t devices = 0;
  };

  // Kinds that differ in nothing but a name are one part.
  explicit ClusterParts(const Cluster& cluster);

  const std::vector<Part>& all() const { return all_; }
  bool uneven() const { return all_.size() > 1; }
  // The number of a device's part; devices are counted through the nodes.
  int of(int device) const;
  const Part& part_of(int device) const { return all_[static_cast<std::size_t>(of(device))]; }
  // The sum of `each(part)` over the first devices, as many as `end` says.
  template <class Each>
  double sum(int end, const Each& each) const {
    double all = 0;
    for (const Run& run : runs_) {
      const std::int64_t here = std::min<std::int64_t>(run.end, end) - run.first;
      if (here > 0)
        all += static_cast<double>(here) * each(all_[static_cast<std::size_t>(run.part)]);
    }
    return all;
  }
  // The parts on which ranks from `first` to before `end` lie, ascending.
  std::vector<int> among(int first, int end) const;
  // The same of a stage's ranks, each of which has the device of its number.
  std::vector<int> of_stage(const Program& program, int stage) const;

  // Splits each class of a program's ranks (rank_classes) by the parts on which they lie, with one
  // rank of each piece. It looks at every rank.
  std::vector<std::vector<RankClass>> split(const Program& program,
                                            const std::vector<RankClass>& classes) const;

 private:
  struct Run {
    std::int64_t first = 0, end = 0;  // devices
    int part = 0;
  };
  void add(std::int64_t first, std::int64_t end, const Cluster& described, int kind,
           const SlowBy& by);

  std::vector<Part> all_;
  std::vector<Run> runs_;  // ascending, without gaps
};

}  // namespace mw
