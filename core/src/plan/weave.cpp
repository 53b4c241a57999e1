// Interleaves the works that a schedule joins: the runs of a group become one run of a braid, whose
// instructions stand in the order that a weave chooses, as far as dataflow between lanes allows.
#include "meshwright/weave.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "plan/build.h"

namespace mw {
namespace {

// The lanes of one braid, and which instructions of one must wait for those of another.
class LaneCode {
 public:
  LaneCode(const Program& program, std::vector<const Segment*> lanes, std::vector<int> same)
      : program_(program), lanes_(std::move(lanes)), same_(std::move(same)) {
    for (const Bucket& bucket : program.buckets) {
      // All lanes share one gather of a bucket's parameters (OneGather).
      const int whole = bucket.flat.parameters;
      if (whole < 0 || !program.slots[whole].transient) continue;
      shared_.insert({whole, bucket.flat.on_device});
    }
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) find_needs(lane);
  }

  const std::vector<const Segment*>& lanes() const { return lanes_; }
  std::size_t size(std::size_t lane) const { return lanes_[lane]->code.size(); }
  const Instruction& at(std::size_t lane, std::size_t index) const {
    return lanes_[lane]->code[index];
  }
  // How many instructions of the earlier lane `of` must stand before instruction `index` of `lane`.
  std::size_t needed(std::size_t lane, std::size_t index, std::size_t of) const {
    return needs_[lane][index * lanes_.size() + of];
  }

 private:
  // By Access: the last instruction of a lane that accesses a storage so, counted from 1; 0: none.
  struct Last {
    std::size_t by[3] = {0, 0, 0};
  };

  // Lanes that run one after the other are right, as the passes have left them. So storages that
  // two lanes share are used in that order, except that both may add to a sum in any order.
  void find_needs(std::size_t lane) {
    std::vector<std::size_t>& needs = needs_.emplace_back(size(lane) * lanes_.size(), 0);
    std::map<int, Last>& own = last_.emplace_back();
    for (std::size_t n = 0; n < size(lane); ++n) {
      for_each_use(at(lane, n), [&](int slot, Access use) {
        const int root = program_.root(slot);
        if (shared_.count(root) > 0) return;
        const bool lasts = program_.slots[root].persistent;
        const Access access = seen(at(lane, n), use, program_.slots[slot].persistent);
        for (std::size_t other = 0; other < lane; ++other) {
          if (!lasts && same_[other] != same_[lane]) continue;
          const auto found = last_[other].find(root);
          if (found == last_[other].end()) continue;
          std::size_t& need = needs[n * lanes_.size() + other];
          for (const Access theirs : {Access::read, Access::add, Access::write}) {
            if (access == theirs && access != Access::write) continue;
            need = std::max(need, found->second.by[static_cast<std::size_t>(theirs)]);
          }
        }
        own[root].by[static_cast<std::size_t>(access)] = n + 1;
      });
    }
  }

  // The access as other lanes have to see it. A wait for a transfer that an earlier wait may have
  // awaited counts as a read: other lanes find the data with or without it.
  static Access seen(const Instruction& i, Access access, bool lasts) {
    if (access == Access::write && i.again) return Access::read;
    return access == Access::release || (access == Access::add && !lasts) ? Access::write : access;
  }

  const Program& program_;
  const std::vector<const Segment*> lanes_;
  const std::vector<int> same_;  // by lane: the first lane of the same microbatch
  std::set<int> shared_;         // slots that no lane waits for
  std::vector<std::vector<std::size_t>> needs_;
  std::vector<std::map<int, Last>> last_;  // by lane, then by root slot: the last accesses
};

// Parameters that several lanes gather are gathered once. A gather has three steps: the copy
// from the host, the start and the wait. Each step is kept in the lane that comes to it first,
// because a pass may have put other instructions between the steps. The last lane that uses the
// parameters releases them.
class OneGather {
 public:
  explicit OneGather(const Program& program) : program_(program) {}

  // Whether the braid needs the instruction, which would be its next one. Takes slots that other
  // lanes still use out of the instruction's `release`.
  bool keeps(Instruction& i) {
    bool kept = true;
    if (i.serves == Serves::parameters && !i.again) {
      const int parameters = program_.buckets[i.bucket].flat.parameters;
      const bool brings = i.code == Code::copy;
      if (program_.slots[parameters].transient) {
        Gathered& now = gathered_[parameters];
        const bool waits = i.awaits_transfer();
        if (!waits) now.lanes.insert(i.lane);
        kept = !std::exchange(waits ? now.awaited : brings ? now.brought : now.started, true);
      }
    }
    erase_if(i.release, [&](int slot) {
      const auto found = gathered_.find(slot);
      if (found == gathered_.end()) return false;
      found->second.lanes.erase(i.lane);
      if (!found->second.lanes.empty()) return true;
      gathered_.erase(found);
      return false;
    });
    return kept;
  }

 private:
  struct Gathered {
    std::set<int> lanes;  // lanes that use the parameters or are about to
    bool brought = false, started = false, awaited = false;
  };
  const Program& program_;
  std::map<int, Gathered> gathered_;  // what is gathered, by flat slot of whole parameters
};

class Merge {
 public:
  Merge(const Program& program, const LaneCode& lanes)
      : program_(program),
        lanes_(lanes),
        gathers_(program),
        next_(lanes.lanes().size(), 0),
        asked_(next_) {}

  // Appends the lane's next instruction, unless another lane's need has brought it in already.
  void ask(std::size_t lane) {
    if (next_[lane] < ++asked_[lane]) take(lane);
  }
  std::vector<Instruction> code() { return std::move(code_); }

 private:
  void take(std::size_t lane) {
    const std::size_t index = next_[lane];
    for (std::size_t other = 0; other < lane; ++other) {
      const std::size_t needed = lanes_.needed(lane, index, other);
      while (next_[other] < needed) take(other);
    }
    ++next_[lane];
    Instruction i = lanes_.at(lane, index);
    i.lane = static_cast<int>(lane);
    const bool brings = i.code == Code::copy && i.serves == Serves::parameters;
    if (gathers_.keeps(i)) code_.push_back(std::move(i));
    // A shard from host memory goes on to other ranks at once: the gather's start follows the copy.
    if (brings && next_[lane] < lanes_.size(lane)) take(lane);
  }

  const Program& program_;
  const LaneCode& lanes_;
  OneGather gathers_;
  std::vector<std::size_t> next_, asked_;
  std::vector<Instruction> code_;
};

class Weaver {
 public:
  Weaver(Program& program, const WeaveBy& by) : program_(program), by_(by) {}

  void run() {
    std::vector<SegmentRun> timeline;
    for (std::size_t r = 0; r < program_.timeline.size();) {
      std::size_t end = r;
      while (program_.timeline[end].joined && end + 1 < program_.timeline.size()) ++end;
      ++end;
      timeline.push_back(end - r > 1 ? braid(r, end) : program_.timeline[r]);
      timeline.back().joined = false;
      r = end;
    }
    program_.timeline = std::move(timeline);
  }

 private:
  SegmentRun braid(std::size_t first, std::size_t end) {
    throw_if_stopped();
    std::vector<int> segments, same, microbatches;
    for (std::size_t r = first; r < end; ++r) {
      const SegmentRun& run = program_.timeline[r];
      segments.push_back(run.segment);
      const auto known = std::find(microbatches.begin(), microbatches.end(), run.microbatch);
      same.push_back(static_cast<int>(known - microbatches.begin()));
      microbatches.push_back(run.microbatch);
    }
    const auto [known, fresh] = braids_.try_emplace({segments, same}, -1);
    if (fresh) known->second = make(segments, same);
    SegmentRun run{known->second, microbatches[0], {}};
    run.others.assign(microbatches.begin() + 1, microbatches.end());
    return run;
  }

  int make(const std::vector<int>& segments, const std::vector<int>& same) {
    Segment made;
    made.kind = SegmentKind::braid;
    std::vector<const Segment*> lanes;
    for (const int segment : segments) {
      const Segment& of = program_.segments[segment];
      lanes.push_back(&of);
      made.lanes.push_back({of.kind, of.vstage, of.name});
      made.name += (made.name.empty() ? "" : "+") + of.name;
    }
    made.vstage = lanes[0]->vstage;
    made.weave = by_.weave == nullptr ? "one after the other" : by_.weave->name();
    const std::string name = made.name;
    for (int n = 2; program_.segment(made.name) >= 0; ++n)
      made.name = fmt::format("{}.{}", name, n);
    const LaneCode code(program_, lanes, same);
    Merge merge(program_, code);
    for (const int lane : order(lanes, made.name)) merge.ask(static_cast<std::size_t>(lane));
    made.code = merge.code();
    program_.segments.push_back(std::move(made));
    return static_cast<int>(program_.segments.size()) - 1;
  }

  // The lanes in the weave's order. Throws Error (plan) unless each is there as often as it has
  // instructions.
  std::vector<int> order(const std::vector<const Segment*>& lanes, const std::string& braid) {
    std::vector<int> list;
    if (by_.weave == nullptr) {
      for (std::size_t lane = 0; lane < lanes.size(); ++lane)
        list.insert(list.end(), lanes[lane]->code.size(), static_cast<int>(lane));
      return list;
    }
    WeaveRequest request{program_, lanes, {}};
    if (by_.seconds && !seconds_) seconds_ = by_.seconds(program_);
    request.seconds = seconds_;
    list = call_plugin({by_.strategy, by_.place}, "interleaved works",
                       [&] { return by_.weave->order(request); });
    std::vector<std::size_t> counts(lanes.size(), 0);
    for (const int lane : list) {
      if (lane < 0 || lane >= static_cast<int>(lanes.size()))
        refuse(fmt::format("names lane {}; there are 0 to {}", lane, lanes.size() - 1), braid);
      ++counts[static_cast<std::size_t>(lane)];
    }
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      const std::size_t all = lanes[lane]->code.size();
      if (counts[lane] == all) continue;
      refuse(fmt::format("has {} instructions of lane {}, {}, which has {}", counts[lane], lane,
                         lanes[lane]->name, all),
             braid);
    }
    return list;
  }

  [[noreturn]] void refuse(const std::string& what, const std::string& braid) const {
    throw Error(
        Stage::plan, "weave.order", key_in(by_.place, "weave"),
        fmt::format("the order that the weave {} gives for {} {}", by_.weave->name(), braid, what),
        "give each lane as often as it has instructions; a weave can only merge");
  }

  Program& program_;
  const WeaveBy& by_;
  // from WeaveBy::seconds, when first asked for
  std::function<double(const Instruction&)> seconds_;
  std::map<std::pair<std::vector<int>, std::vector<int>>, int> braids_;
};

}  // namespace

void weave(Program& program, const WeaveBy& by) {
  Weaver(program, by).run();
}

void unweave(Program& program) {
  std::vector<SegmentRun> timeline;
  for (const SegmentRun& run : program.timeline) {
    const std::vector<Lane>& lanes = program.segments[run.segment].lanes;
    if (lanes.empty()) timeline.push_back(run);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      timeline.push_back(
          {program.segment(lanes[lane].segment), microbatch_of(run, static_cast<int>(lane)), {}});
    }
  }
  program.timeline = std::move(timeline);
}

}  // namespace mw
