// Groups a cluster's devices into parts: devices of one kind that are equally fast.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/engine/rank_view.h"
#include "predict/cluster.h"

namespace mw {

// The cluster with all devices and links slower by these factors.
Cluster slowed(Cluster cluster, const SlowBy& by);

class ClusterParts {
 public:
  struct Part {
    Cluster cluster;  // the cluster as if all of its nodes were like this part
    std::string key;  // key under which the part's device is described: "cluster.device"
    SlowBy by;        // how much slower than described the part is
    int kind = 0;     // number of the part's kind in Cluster::kinds, counted from 1; 0: no kind
    std::int64_t devices = 0;
  };

  // Kinds that differ in nothing but a name are one part.
  explicit ClusterParts(const Cluster& cluster);

  const std::vector<Part>& all() const { return all_; }
  bool uneven() const { return all_.size() > 1; }
  // The number of a device's part; devices are counted through the nodes.
  int of(int device) const;
  const Part& part_of(int device) const { return all_[static_cast<std::size_t>(of(device))]; }
  // The sum of `each(part)` over the devices from 0 to before `end`.
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
  // The parts on which a stage's ranks lie, ascending; a rank has the device of its own number.
  std::vector<int> of_stage(const Program& program, int stage) const;

  // Splits each class of a program's ranks (rank_classes) by the parts on which the ranks lie; `at`
  // of each piece is one of its ranks. The cost grows with the number of ranks.
  std::vector<std::vector<RankClass>> split(const Program& program,
                                            const std::vector<RankClass>& classes) const;

 private:
  struct Run {
    std::int64_t first = 0, end = 0;  // range of devices
    int part = 0;
  };
  void add(std::int64_t first, std::int64_t end, const Cluster& described, int kind,
           const SlowBy& by);

  std::vector<Part> all_;
  std::vector<Run> runs_;  // ranges that cover all devices, ascending and without gaps
};

}  // namespace mw
