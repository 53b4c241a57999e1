// Searches plans with which every rank stays within a limit of memory: the cheapest set of ops to
// recompute, the largest microbatches.
#include "predict/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "meshwright/engine/limits.h"
#include "meshwright/engine/memory.h"
#include "meshwright/engine/rank_view.h"

namespace mw {
namespace {

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

// An op of every layer: "attention.q" of "layers.3.attention.q".
std::string part_of(const Op& op) {
  const std::size_t first = op.name.find('.'), second = op.name.find('.', first + 1);
  return second == std::string::npos ? op.name : op.name.substr(second + 1);
}

class RecomputeFit {
 public:
  explicit RecomputeFit(const PlanRequest& request)
      : request_(request), limit_(request.recompute.fit) {}

  std::shared_ptr<const Plan> run(Problems& problems) {
    plan_ = made({}, problems);
    if (plan_ == nullptr || highest_peak(*plan_) <= limit_) return plan_;
    graph_ = plan_->graph;
    const std::vector<std::string> order = by_cost();
    // The fewest that suffice, of an order in which each next costs more for what it saves.
    std::size_t too_few = 0, enough = order.size() + 1;
    std::int64_t least = highest_peak(*plan_);
    for (std::size_t n = order.size(); n > too_few && enough > too_few + 1;
         n = (too_few + enough) / 2) {
      std::map<std::string, int> from;  // the layer from which on a part is made again
      for (std::size_t i = 0; i < n; ++i) from[order[i]] = 0;
      if (fits(from, least)) {
        enough = n;
        from_ = from;
      } else if (n == order.size()) {
        problems.add(
            Stage::plan, "recompute.fit", "recompute",
            fmt::format(
                "recompute: with all of it a rank still holds {} at most, above the {} asked for",
                bytes_text(least), bytes_text(limit_)),
            "a smaller microbatch, more ways of a form that shards, or a higher limit");
        return nullptr;
      } else {
        too_few = n;
      }
    }
    for (auto part = order.rbegin(); part != order.rend(); ++part) {
      if (from_.count(*part) > 0) let_off(*part);
    }
    Problems none;
    return made(set_of(from_), none, note());
  }

 private:
  std::string note() const {
    std::string parts;
    for (const auto& [part, from] : from_) {
      parts += fmt::format("{}{}", parts.empty() ? "" : ", ", part);
      if (from > 0)
        parts += fmt::format(" in {} of {} layers", graph_->layers - from, graph_->layers);
    }
    return fmt::format("recompute, to fit {}: {}", bytes_text(limit_), parts);
  }

  std::shared_ptr<const Plan> made(const RecomputeSet& set, Problems& problems,
                                   const std::string& note = "") const {
    PlanRequest request = request_;
    request.recompute.kind = RecomputePolicy::Kind::fixed;
    request.recompute.set = set;
    request.recompute.set.gathers = request_.recompute.gathers;
    request.recompute.note = note;
    auto plan = make_plan(request, problems);
    work_ += plan != nullptr ? plan->work : 0;
    return plan;
  }

  RecomputeSet set_of(const std::map<std::string, int>& from) const {
    RecomputeSet set;
    set.keep_moves = request_.recompute.keep_collectives;
    for (const Op& op : graph_->ops()) {
      const auto found = in_layers(op, *graph_) ? from.find(part_of(op)) : from.end();
      set.ops.push_back(found != from.end() && op.layer >= found->second);
    }
    return set;
  }

  bool fits(const std::map<std::string, int>& from, std::int64_t& least) const {
    Problems problems;
    const auto plan = made(set_of(from), problems);
    if (plan == nullptr) return false;
    const std::int64_t needs = highest_peak(*plan);
    least = std::min(least, needs);
    return needs <= limit_;
  }

  // The parts, those that cost least for a byte they save first.
  std::vector<std::string> by_cost() const {
    struct Saving {
      double seconds = 0, bytes = 0;
    };
    std::map<std::string, Saving> parts;
    for (const Program& program : plan_->programs) {
      const RankView rank(program, program.first());
      std::set<int> kept;  // slots that some backward reads
      for (const Segment& segment : program.segments) {
        if (segment.kind == SegmentKind::forward) continue;
        for (const Instruction& i : segment.code) {
          if (i.op < 0) continue;
          for (const auto* slots : {&i.inputs, &i.outputs, &i.saved}) {
            for (int slot : *slots) {
              if (slot >= 0) kept.insert(program.root(slot));
            }
          }
        }
      }
      for (const Segment& segment : program.segments) {
        if (segment.kind != SegmentKind::forward) continue;
        for (const Instruction& i : segment.code) {
          if (i.op < 0) continue;
          const Op& op = graph_->ops()[i.op];
          if (!in_layers(op, *graph_)) continue;
          Saving& part = parts[part_of(op)];
          for (int step = 0; step < i.ring_steps; ++step) {
            const Cost& cost = rank.cost(i.op, Piece::forward, step);
            // A device does some tens of operations while it moves a byte (plan/work.cpp).
            part.seconds += std::max(cost.executed, 20 * cost.bytes);
          }
          for (const auto* slots : {&i.outputs, &i.saved}) {
            for (int slot : *slots) {
              if (kept.count(program.root(slot)) > 0)
                part.bytes += static_cast<double>(rank.bytes(slot));
            }
          }
        }
      }
    }
    std::vector<std::string> order;
    for (const auto& [name, part] : parts) order.push_back(name);
    const auto price = [&](const std::string& name) {
      const Saving& part = parts.at(name);
      return part.seconds / std::max(part.bytes, 1.0);
    };
    std::stable_sort(order.begin(), order.end(), [&](const std::string& a, const std::string& b) {
      // What keeps nothing itself is only made again for others: with the products that need it.
      const bool idle_a = parts.at(a).bytes == 0, idle_b = parts.at(b).bytes == 0;
      return idle_a != idle_b ? idle_b : price(a) < price(b);
    });
    return order;
  }

  // Keeps a part in the first layers, as many as the limit allows.
  void let_off(const std::string& part) {
    if (work_ > most_improvement) return;
    int again = from_.at(part), kept = graph_->layers;
    std::int64_t least = 0;
    auto tried = from_;
    tried.erase(part);
    if (fits(tried, least)) {
      from_ = tried;
      return;
    }
    while (kept - again > 1 && work_ <= most_improvement) {
      const int middle = (again + kept) / 2;
      tried[part] = middle;
      (fits(tried, least) ? again : kept) = middle;
    }
    from_[part] = again;
  }

  const PlanRequest& request_;
  const std::int64_t limit_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const Graph> graph_;
  std::map<std::string, int> from_;
  mutable double work_ = 0;  // of the plans made so far
};

constexpr std::int64_t most_parts = 1 << 20;

// As many as microbatches of `size` make, the larger ones first.
std::vector<std::int64_t> even_parts(std::int64_t own, std::int64_t size) {
  const std::int64_t count = (own + size - 1) / size;
  std::vector<std::int64_t> parts;
  for (std::int64_t m = 0; m < count; ++m) parts.push_back(own / count + (m < own % count ? 1 : 0));
  return parts;
}

}  // namespace

std::shared_ptr<const Plan> fit_recompute(const PlanRequest& request, Problems& problems) {
  return RecomputeFit(request).run(problems);
}

std::vector<std::int64_t> even_sizes(std::int64_t own, std::int64_t fewest) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t count = fewest; count <= own;) {
    sizes.push_back((own + count - 1) / count);
    if (sizes.back() == 1) break;
    count = (own + sizes.back() - 2) / (sizes.back() - 1);  // the fewest that make them smaller
  }
  return sizes;
}

std::shared_ptr<const Plan> fit_microbatch(const PlanRequest& request, std::int64_t limit,
                                           Problems& problems) {
  PlanRequest tried = request;
  tried.microbatch = 1;
  tried.sizes.clear();
  Problems of_one;
  auto last = make_plan(tried, of_one);
  if (last == nullptr) {  // it may be that so many microbatches are too many
    tried.microbatch = 0;
    Problems none;
    last = make_plan(tried, none);
  }
  if (last == nullptr) {
    problems.add(of_one);
    return nullptr;
  }
  const std::int64_t own = request.batch / last->batch_ways;
  tried.microbatch = 0;
  std::shared_ptr<const Plan> found;
  std::int64_t least = 0, least_size = 0, left_out = 0;
  double work = 0;
  // One after the other: a pipeline may hold more with smaller microbatches, as more are under way.
  for (std::int64_t size : even_sizes(own, 1)) {
    if (work > most_search || own / size > most_parts) {
      left_out = size;
      break;
    }
    tried.sizes = even_parts(own, size);
    Problems none;  // what another limit refuses (a schedule's, recompute's) does not fit either
    const auto plan = make_plan(tried, none);
    work += plan == nullptr ? last->work : plan->work;
    if (plan == nullptr) continue;
    const std::int64_t held = highest_peak(*plan);
    if (held <= limit) {
      found = plan;
      break;
    }
    if (least == 0 || held < least) {
      least = held;
      least_size = size;
    }
  }
  if (found == nullptr && left_out > 0) {
    problems.add(Stage::plan, "microbatch.fit", "microbatch",
                 fmt::format("microbatch.fit: no microbatch of more than {} sequences keeps a rank "
                             "within {}, and to try all smaller ones of {} takes too long",
                             left_out, bytes_text(limit), own),
                 "name the microbatch, or make the batch smaller");
    return nullptr;
  }
  if (found == nullptr) {
    problems.add(Stage::plan, "microbatch.fit", "microbatch",
                 fmt::format("microbatch.fit: a rank holds {} at least, with microbatches of {}; "
                             "that is above the {} asked for",
                             bytes_text(least), least_size, bytes_text(limit)),
                 "more recompute, more ways of a form that shards, or a higher limit");
    return nullptr;
  }
  PlanRequest chosen = found->request;
  chosen.notes.push_back(
      fmt::format("microbatches of {}, the largest with which a rank fits {}: {} "
                  "predicted",
                  found->microbatch, bytes_text(limit), bytes_text(highest_peak(*found))));
  return make_plan(chosen, problems);
}

}  // namespace mw
