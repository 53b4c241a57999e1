// Searches the cheapest set of ops to recompute with which every rank stays within a limit of
// memory, for each stage of a pipeline by itself.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/text.h"
#include "predict/cluster_machine.h"
#include "predict/fit.h"

namespace mw {
namespace {

// By part of a layer: in how many of a stage's layers, the first ones, the part is recomputed.
using Parts = std::map<std::string, int>;

// The layers of each stage, in model order.
std::vector<std::vector<int>> layers_of_stages(const Plan& plan) {
  std::vector<std::set<int>> found(static_cast<std::size_t>(plan.stages()));
  const Program& program = plan.programs.front();
  for (std::size_t op = 0; op < program.vstage_of.size(); ++op) {
    const int vstage = program.vstage_of[op];
    if (vstage >= 0 && in_layers(program.graph->ops()[op], *program.graph))
      found[program.stage_of[vstage]].insert(program.graph->ops()[op].layer);
  }
  std::vector<std::vector<int>> layers;
  for (const std::set<int>& own : found) layers.emplace_back(own.begin(), own.end());
  return layers;
}

int count_of(const Parts& parts, const std::string& part) {
  const auto found = parts.find(part);
  return found == parts.end() ? 0 : found->second;
}

// Marks the ops that are recomputed, where each stage recomputes these parts of its layers.
std::vector<bool> ops_of(const std::vector<Parts>& again, const Graph& graph,
                         const std::vector<std::vector<int>>& layers) {
  // By layer: its stage, and its number in the stage.
  std::map<int, std::pair<std::size_t, int>> places;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    for (std::size_t k = 0; k < layers[s].size(); ++k)
      places[layers[s][k]] = {s, static_cast<int>(k)};
  }
  std::vector<bool> ops;
  for (const Op& op : graph.ops()) {
    const auto place = in_layers(op, graph) ? places.find(op.layer) : places.end();
    if (place == places.end()) {
      ops.push_back(false);
      continue;
    }
    const auto [stage, which] = place->second;
    ops.push_back(which < count_of(again[stage], part_of_layer(op.name)));
  }
  return ops;
}

Json to_json(const Parts& parts, int layers) {
  Json json = Json::object();
  for (const auto& [part, count] : parts) json[part] = std::min(count, layers);
  return json;
}

std::string text_of(const Parts& parts, int layers) {
  std::string text;
  for (const auto& [part, count] : parts) {
    text += (text.empty() ? "" : ", ") + part;
    if (count < layers) text += fmt::format(" in {} of {} layers", count, layers);
  }
  return text;
}

class RecomputeFit {
 public:
  RecomputeFit(const PlanRequest& request, const Machine* machine, bool by_stage)
      : request_(request), machine_(machine), limit_(request.recompute.fit), by_stage_(by_stage) {}

  std::shared_ptr<const Plan> run(Problems& problems) {
    plan_ = made({}, problems);
    if (plan_ == nullptr || highest_need(*plan_) <= limit_) return plan_;
    layers_ = layers_of_stages(*plan_);
    most_layers_ = 0;
    for (const std::vector<int>& own : layers_)
      most_layers_ = std::max(most_layers_, static_cast<int>(own.size()));
    order_ = by_cost();
    std::vector<int> all(layers_.size());
    std::iota(all.begin(), all.end(), 0);
    if (!take_fewest(all, problems)) return nullptr;
    const std::vector<Parts> fewest = again_;
    let_off({all}, most_improvement / 2);
    // Once more if some part was kept: then less may be needed for others.
    if (again_ != fewest) let_off({all}, most_improvement / 2);
    const std::vector<Parts> alike = again_;
    if (by_stage_ && layers_.size() > 1) {
      Groups each;
      for (const int stage : all) each.push_back({stage});
      let_off(each, most_improvement);
      // A schedule that follows the times of works may be another one by now, and hold more.
      if (again_ != alike) {
        const auto found = chosen(alike.front());
        if (found != nullptr && highest_need(*found) <= limit_) return found;
      }
      again_ = alike;
    }
    return chosen(alike.front());
  }

 private:
  // The plan with the present choice. `alike`: what all stages would recompute, if they did the
  // same.
  std::shared_ptr<const Plan> chosen(const Parts& alike) const {
    Json settings = {{"stages", Json::array()}};
    for (std::size_t s = 0; s < again_.size(); ++s)
      settings["stages"].push_back(to_json(again_[s], static_cast<int>(layers_[s].size())));
    if (std::any_of(again_.begin(), again_.end(), [&](const Parts& p) { return p != alike; }))
      settings["alike"] = to_json(alike, most_layers_);
    Problems none;
    return made(again_, none, note(), std::move(settings));
  }

  std::string note() const {
    const std::string text = "recompute, to fit " + memory_text(limit_) + ": ";
    if (std::all_of(again_.begin(), again_.end(), [&](const Parts& p) { return p == again_[0]; }))
      return text + text_of(again_.front(), most_layers_);
    // Parts by the text of their numbers of layers on each stage.
    std::map<std::string, std::vector<std::string>> parts;
    for (const std::string& part : order_) {
      std::string counts;
      bool any = false;
      for (std::size_t s = 0; s < again_.size(); ++s) {
        const int count = std::min(count_of(again_[s], part), static_cast<int>(layers_[s].size()));
        any = any || count > 0;
        counts += fmt::format("{}{}", counts.empty() ? "" : ", ", count);
      }
      if (any) parts[counts].push_back(part);
    }
    std::string of_parts;
    for (const auto& [counts, names] : parts)
      of_parts += fmt::format("{}{} in {}", of_parts.empty() ? "" : "; ", join(names), counts);
    return text + of_parts + fmt::format(" layers of stages 0 to {}", again_.size() - 1);
  }

  std::shared_ptr<const Plan> made(const std::vector<Parts>& again, Problems& problems,
                                   const std::string& note = "", Json settings = {}) const {
    PlanRequest request = request_;
    request.recompute.kind = RecomputePolicy::Kind::fixed;
    request.recompute.set = {};
    if (!again.empty()) request.recompute.set.ops = ops_of(again, *plan_->graph, layers_);
    request.recompute.set.keep_moves = request_.recompute.keep_collectives;
    request.recompute.set.gathers = request_.recompute.gathers;
    request.recompute.note = note;
    request.recompute.settings = std::move(settings);
    auto plan = make_plan(request, problems);
    work_ += plan != nullptr ? plan->work : 0;
    return plan;
  }

  // The bytes that the limit has to cover for a class of ranks: the program's own; or, if they are
  // more, these and what is in use beside them, less the memory that the device has beyond the
  // limit. Memory that the device has less than the largest device counts as needed.
  std::int64_t need_of(const Program& program, const RankClass& kind) const {
    const RankView rank(program, kind.at, 0, request_.scratch.get());
    MemoryForecast memory = forecast_memory(rank);
    memory.peak += request_.kept_by_libraries;
    if (machine_ == nullptr) return memory.peak;
    const StageForecast used{
        program.stage, memory, memory, machine_->beside_program(rank, memory), {}};
    const std::int64_t own = machine_->device_of(program.mesh.rank(kind.at)).bytes;
    const std::int64_t smaller = std::min(limit_, machine_->most_memory()) - own;
    return std::max(memory.peak + std::max<std::int64_t>(smaller, 0),
                    used.in_use() - (own - limit_));
  }

  // need_of() each stage's fullest rank.
  std::vector<std::int64_t> needs_of(const Plan& plan) const {
    std::vector<std::int64_t> found;
    for (const Program& program : plan.programs) {
      std::int64_t most = 0;
      const std::vector<RankClass> classes = rank_classes(program);
      std::vector<std::vector<RankClass>> by_device = {classes};
      if (machine_ != nullptr) by_device = machine_->by_device(program, classes);
      for (const std::vector<RankClass>& alike : by_device)
        for (const RankClass& kind : alike) most = std::max(most, need_of(program, kind));
      found.push_back(most);
    }
    return found;
  }

  std::int64_t highest_need(const Plan& plan) const { return std::ranges::max(needs_of(plan)); }

  // needs_of() the plan in which each stage recomputes these parts; empty if such a plan is
  // refused.
  std::vector<std::int64_t> needs(const std::vector<Parts>& again) const {
    Problems problems;
    const auto plan = made(again, problems);
    return plan == nullptr ? std::vector<std::int64_t>{} : needs_of(*plan);
  }

  bool fits(const std::vector<int>& stages, const std::vector<std::int64_t>& needed) const {
    return !needed.empty() && std::all_of(stages.begin(), stages.end(),
                                          [&](int stage) { return needed[stage] <= limit_; });
  }

  // Takes the fewest parts that suffice, in all layers alike: the first ones of an order in which
  // each next part costs more for what it saves. False, with a problem, if not even all suffice.
  bool take_fewest(const std::vector<int>& all, Problems& problems) {
    std::size_t too_few = 0, enough = order_.size() + 1;
    for (std::size_t n = order_.size(); n > too_few && enough > too_few + 1;
         n = (too_few + enough) / 2) {
      Parts parts;
      for (std::size_t i = 0; i < n; ++i) parts[order_[i]] = most_layers_;
      const std::vector<Parts> tried(layers_.size(), parts);
      const std::vector<std::int64_t> needed = needs(tried);
      const bool fit = fits(all, needed);
      if (!fit && n == order_.size()) {
        refuse(needed, problems);
        return false;
      }
      (fit ? enough : too_few) = n;
      if (fit) again_ = tried;
    }
    return true;
  }

  void refuse(const std::vector<std::int64_t>& needed, Problems& problems) const {
    const std::int64_t most = needed.empty() ? highest_need(*plan_) : std::ranges::max(needed);
    problems.add(
        Stage::plan, "recompute.fit", "recompute",
        fmt::format(
            "recompute: with all of it a rank still holds {} at most{}, above the {} asked for",
            memory_text(most),
            machine_ == nullptr ? "" : ", with what is in use beside the program",
            memory_text(limit_)),
        "a smaller microbatch, a higher degree of a form that shards, or a higher limit");
  }

  using Groups = std::vector<std::vector<int>>;  // groups of stages that choose alike

  // Keeps parts, the dearest first, in as many layers as the limit allows: in all stages of a group
  // alike.
  void let_off(const Groups& groups, double most_work) {
    for (auto part = order_.rbegin(); part != order_.rend(); ++part)
      let_off(*part, groups, most_work);
  }

  // Keeps one part. What a stage holds depends on its own layers alone, so one plan tries a number
  // of layers in each of the groups.
  void let_off(const std::string& part, const Groups& groups, double most_work) {
    struct Layers {
      int too_few = -1, enough = 0;
      bool open() const { return enough - too_few > 1; }
      int next() const { return too_few < 0 ? 0 : (too_few + enough) / 2; }
    };
    std::vector<Layers> layers;
    for (const std::vector<int>& group : groups)
      layers.push_back({-1, count_of(again_[group.front()], part)});
    while (work_ <= most_work &&
           std::any_of(layers.begin(), layers.end(), [](const Layers& l) { return l.open(); })) {
      std::vector<Parts> tried = again_;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        for (const int stage : groups[g]) {
          if (!layers[g].open()) break;
          tried[stage][part] = layers[g].next();
          if (layers[g].next() == 0) tried[stage].erase(part);
        }
      }
      const std::vector<std::int64_t> needed = needs(tried);
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (!layers[g].open()) continue;
        const bool fit = fits(groups[g], needed);
        (fit ? layers[g].enough : layers[g].too_few) = layers[g].next();
        for (const int stage : groups[g]) {
          if (fit) again_[stage] = tried[stage];
        }
      }
    }
  }

  // The parts of layers, those first that cost least to recompute for each byte that they save.
  std::vector<std::string> by_cost() const {
    struct Saving {
      double seconds = 0, bytes = 0;
    };
    std::map<std::string, Saving> parts;
    for (const Program& program : plan_->programs) {
      const RankView rank(program, program.first());
      std::set<int> kept;  // slots that some backward reads
      for (const Segment& segment : program.segments) {
        for (const Instruction& i : segment.code) {
          if (i.op < 0 || kind_of(segment, i) == SegmentKind::forward) continue;
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
          const Op& op = plan_->graph->ops()[i.op];
          if (!in_layers(op, *plan_->graph)) continue;
          Saving& part = parts[part_of_layer(op.name)];
          for (int step = 0; i.slice == 0 && step < i.parts(); ++step) {
            const Cost& cost = rank.cost(i.op, Piece::forward, step);
            // A device does some tens of operations while it moves a byte (program/forecast.cpp).
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
      // A part that keeps nothing itself is recomputed for others alone: such parts come last.
      const bool idle_a = parts.at(a).bytes == 0, idle_b = parts.at(b).bytes == 0;
      return idle_a != idle_b ? idle_b : price(a) < price(b);
    });
    return order;
  }

  const PlanRequest& request_;
  // The machine whose memory in use beside the program counts; null: none does.
  const Machine* const machine_;
  const std::int64_t limit_;
  const bool by_stage_;
  std::shared_ptr<const Plan> plan_;      // the plan that recomputes nothing
  std::vector<std::vector<int>> layers_;  // layers of each stage
  int most_layers_ = 0;                   // most layers of a stage
  std::vector<std::string> order_;        // parts of a layer, the cheapest first
  std::vector<Parts> again_;              // recomputed parts of each stage
  mutable double work_ = 0;               // work of the plans made so far
};

// The machine that the request is made for; null: this one.
const Machine* machine_of(const PlanRequest& request) {
  const auto* kernels = dynamic_cast<const FlashScratch*>(request.scratch.get());
  return kernels == nullptr ? nullptr : kernels->machine();
}

// The plan that one of the functions below returns. `beside`: the machine whose memory in use
// beside the program counts; null: that memory does not count.
std::shared_ptr<const Plan> fitted(const PlanRequest& request, const Machine* beside, bool by_stage,
                                   Problems& problems) {
  const PlanMaker fit = [&](const PlanRequest& asked, Problems& found) {
    return RecomputeFit(asked, beside, by_stage).run(found);
  };
  return request.recompute.offload ? fit_with_offload(request, fit, machine_of(request), problems)
                                   : fit(request, problems);
}

}  // namespace

std::string part_of_layer(const std::string& op) {
  const std::size_t first = op.find('.'), second = op.find('.', first + 1);
  return second == std::string::npos ? op : op.substr(second + 1);
}

std::shared_ptr<const Plan> fit_recompute(const PlanRequest& request, Problems& problems) {
  return fitted(request, nullptr, /*by_stage=*/true, problems);
}

std::shared_ptr<const Plan> fit_recompute_alike(const PlanRequest& request, Problems& problems) {
  return fitted(request, nullptr, /*by_stage=*/false, problems);
}

std::shared_ptr<const Plan> fit_recompute_on_device(const PlanRequest& request,
                                                    Problems& problems) {
  return fitted(request, machine_of(request), /*by_stage=*/true, problems);
}

std::shared_ptr<const Plan> fit_recompute_alike_on_device(const PlanRequest& request,
                                                          Problems& problems) {
  return fitted(request, machine_of(request), /*by_stage=*/false, problems);
}

bool recompute_differs(const Plan& plan) {
  const RecomputePolicy& policy = plan.request.recompute;
  return policy.kind == RecomputePolicy::Kind::fixed && policy.settings.contains("alike");
}

std::shared_ptr<const Plan> with_recompute_alike(const Plan& plan) {
  if (!recompute_differs(plan)) return nullptr;
  const auto parts = plan.request.recompute.settings["alike"].get<Parts>();
  PlanRequest request = plan.request;
  const std::vector<std::vector<int>> layers = layers_of_stages(plan);
  request.recompute.set.ops = ops_of(std::vector<Parts>(layers.size(), parts), *plan.graph, layers);
  request.recompute.settings = {};
  return plan_if_possible(request);
}

}  // namespace mw
