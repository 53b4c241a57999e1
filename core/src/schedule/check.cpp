// Checks a schedule before anything runs: each work once and on its stage, in an order that
// cannot deadlock, within the memory limit.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "meshwright/engine/text.h"
#include "meshwright/replay.h"

namespace mw {
namespace {

constexpr int most_of_a_kind = 3;

struct Place {
  int stage = -1, step = -1;
};

// The key of an action in the list of the stages' lists, or with step -1 of a stage's list.
std::string key_of(int stage, std::int64_t step) {
  return step < 0 ? fmt::format("[{}]", stage + 1) : fmt::format("[{}][{}]", stage + 1, step + 1);
}

// Adds the first problems of a kind and counts the rest.
class Faults {
 public:
  Faults(Problems& problems, const char* code, std::string hint)
      : problems_(problems), code_(code), hint_(std::move(hint)) {}
  ~Faults() {
    if (count_ > most_of_a_kind)
      problems_.add(Stage::plan, code_, "",
                    fmt::format("... and {} more like the last", count_ - most_of_a_kind));
  }
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;
  template <typename Message>
  void add(int stage, std::int64_t step, Message&& message) {
    if (++count_ <= most_of_a_kind)
      problems_.add(Stage::plan, code_, key_of(stage, step), message(), hint_);
  }
  bool any() const { return count_ > 0; }

 private:
  Problems& problems_;
  const char* code_;
  std::string hint_;
  int count_ = 0;
};

class Checker {
 public:
  Checker(const Schedule& schedule, const ScheduleRequest& request, Problems& problems)
      : schedule_(schedule), request_(request), problems_(problems) {}

  // Runs the checks up to the first that fails: each relies on those before it.
  void run() {
    if (sizes() && complete() && ordered() && independent() && !waits_for_ever()) memory();
  }

 private:
  std::string at(int stage, std::size_t step) const {
    return fmt::format("stage {}, step {}, {}", stage, step,
                       to_string(schedule_.order[static_cast<std::size_t>(stage)][step]));
  }
  std::string at(const Place& place) const {
    return at(place.stage, static_cast<std::size_t>(place.step));
  }

  bool sizes() {
    const std::string hint = "a schedule has a row for each stage and works for each microbatch";
    bool good = true;
    const auto add = [&](const char* code, std::string message) {
      problems_.add(Stage::plan, code, "", std::move(message), hint);
      good = false;
    };
    if (schedule_.stages() != request_.stages) {
      add("schedule.stages",
          fmt::format("schedule {} is for {}, but there {}", quote(schedule_.name),
                      plural(schedule_.stages(), "stage"),
                      request_.stages == 1 ? "is 1" : fmt::format("are {}", request_.stages)));
    }
    if (schedule_.microbatches != request_.microbatches) {
      add("schedule.microbatches",
          fmt::format("schedule {} is for {}, but a step has {}", quote(schedule_.name),
                      schedule_.microbatches == 1
                          ? "1 microbatch"
                          : fmt::format("{} microbatches", schedule_.microbatches),
                      request_.microbatches));
    }
    if (schedule_.microbatches < 1) add("schedule.microbatches", "a schedule without microbatches");
    for (int v = 0; v < schedule_.vstages(); ++v) {
      const int stage = schedule_.stage_of[static_cast<std::size_t>(v)];
      if (stage < 0 || stage >= schedule_.stages()) {
        add("schedule.stages", fmt::format("virtual stage {} is on stage {}; stages are 0 to {}", v,
                                           stage, schedule_.stages() - 1));
      }
    }
    return good && holds_works();
  }

  // Refuses a schedule with far too few works: a single work of a late microbatch asks for a table
  // of places that would take all memory.
  bool holds_works() {
    constexpr std::int64_t places_at_least = 1 << 20;
    std::int64_t works = 0;
    for (const auto& actions : schedule_.order) works += std::ssize(actions);
    const std::int64_t places = std::int64_t{schedule_.vstages()} * schedule_.microbatches;
    if (2 * works >= places || places <= places_at_least) return true;
    problems_.add(Stage::plan, "schedule.missing", "",
                  fmt::format("schedule {} has {}, and {} go through {}", quote(schedule_.name),
                              plural(works, "work"), plural(schedule_.microbatches, "microbatch"),
                              plural(schedule_.vstages(), "virtual stage")),
                  "each microbatch goes through each virtual stage once: F, then B, or I and W");
    return false;
  }

  Place& place(int vstage, int microbatch, Work work) {
    const auto cell = slot_of(vstage, microbatch, Result::output, schedule_.microbatches) / 2;
    return places_[4 * cell + static_cast<std::size_t>(work)];
  }

  // Whether each work stands once, and on its stage.
  bool complete() {
    const int m = schedule_.microbatches, vstages = schedule_.vstages();
    places_.assign(4 * static_cast<std::size_t>(vstages) * static_cast<std::size_t>(m), {});
    Faults range(
        problems_, "schedule.range",
        fmt::format("virtual stages are 0 to {}, microbatches 0 to {}", vstages - 1, m - 1));
    Faults where(problems_, "schedule.home",
                 "all works of a virtual stage are done by one stage: move it there");
    Faults doubled(problems_, "schedule.doubled",
                   "remove one of them; B is the whole backward, I and W are its parts");
    Faults missing(problems_, "schedule.missing",
                   "each microbatch goes through each virtual stage once: F, then B, or I and W");
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      const auto& actions = schedule_.order[static_cast<std::size_t>(stage)];
      for (std::size_t step = 0; step < actions.size(); ++step)
        one(stage, step, actions[step], range, where, doubled);
    }
    for (int v = 0; v < vstages; ++v)
      for (int k = 0; k < m; ++k) absent(v, k, missing);
    return !range.any() && !where.any() && !doubled.any() && !missing.any();
  }

  void one(int stage, std::size_t step, const Action& action, Faults& range, Faults& where,
           Faults& doubled) {
    const int vstages = schedule_.vstages();
    if (action.vstage < 0 || action.vstage >= vstages || action.microbatch < 0 ||
        action.microbatch >= schedule_.microbatches) {
      range.add(stage, static_cast<std::int64_t>(step), [&] {
        return fmt::format("{}: there is no such virtual stage or microbatch", at(stage, step));
      });
      return;
    }
    const int home = schedule_.stage_of[static_cast<std::size_t>(action.vstage)];
    if (home != stage) {
      where.add(stage, static_cast<std::int64_t>(step), [&] {
        return fmt::format("{}: virtual stage {} is on stage {}", at(stage, step), action.vstage,
                           home);
      });
    }
    // B does what I and W do together.
    std::vector<Work> same = {action.work};
    if (action.work == Work::backward) same = {Work::backward, Work::dgrad, Work::wgrad};
    if (action.work == Work::dgrad || action.work == Work::wgrad) same.push_back(Work::backward);
    for (const Work work : same) {
      const Place& other = place(action.vstage, action.microbatch, work);
      if (other.stage < 0) continue;
      doubled.add(stage, static_cast<std::int64_t>(step), [&] {
        return fmt::format("{}: done already by {}", at(stage, step), at(other));
      });
      break;
    }
    Place& mine = place(action.vstage, action.microbatch, action.work);
    if (mine.stage < 0) mine = {stage, static_cast<int>(step)};
  }

  void absent(int vstage, int microbatch, Faults& missing) {
    const int stage = schedule_.stage_of[static_cast<std::size_t>(vstage)];
    const auto has = [&](Work work) { return place(vstage, microbatch, work).stage >= 0; };
    const auto lacks = [&](Work work, const std::string& besides) {
      missing.add(stage, -1, [&] {
        return fmt::format("stage {} never does {}{}", stage,
                           to_string(Action{vstage, work, microbatch}), besides);
      });
    };
    if (!has(Work::forward)) lacks(Work::forward, "");
    if (has(Work::backward)) return;
    const Place dgrad = place(vstage, microbatch, Work::dgrad);
    const Place wgrad = place(vstage, microbatch, Work::wgrad);
    if (dgrad.stage < 0 && wgrad.stage < 0) lacks(Work::backward, ", nor its I and W");
    if (dgrad.stage < 0 && wgrad.stage >= 0)
      lacks(Work::dgrad, fmt::format(", which {} needs", at(wgrad)));
    if (dgrad.stage >= 0 && wgrad.stage < 0)
      lacks(Work::wgrad, fmt::format(", though it does {}", at(dgrad)));
  }

  Place maker(const Need& need, int microbatch) {
    if (need.result == Result::output) return place(need.vstage, microbatch, Work::forward);
    const Place whole = place(need.vstage, microbatch, Work::backward);
    return whole.stage >= 0 ? whole : place(need.vstage, microbatch, Work::dgrad);
  }

  // Whether on each stage an action comes after what it needs.
  bool ordered() {
    Faults order(problems_, "schedule.order", "move it behind what it needs");
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      const auto& actions = schedule_.order[static_cast<std::size_t>(stage)];
      for (std::size_t step = 0; step < actions.size(); ++step) {
        const Needs needs = needs_of(actions[step], schedule_.vstages());
        for (const Need& need : {needs.own, needs.other}) {
          if (need.vstage < 0) continue;
          const Place other = maker(need, actions[step].microbatch);
          if (other.stage != stage || other.step < static_cast<int>(step)) continue;
          order.add(stage, static_cast<std::int64_t>(step), [&] {
            return fmt::format("{}: comes before {}, which it needs", at(stage, step), at(other));
          });
        }
      }
    }
    return !order.any();
  }

  // Whether the works of each group need nothing of each other. What they need by way of other
  // stages is a cycle, which waits_for_ever() finds.
  bool independent() {
    Faults groups(
        problems_, "schedule.group",
        "actions of one group must not depend on each other: write them one after the other");
    if (schedule_.joined.size() > schedule_.order.size()) {
      groups.add(static_cast<int>(schedule_.order.size()), -1, [&] {
        return fmt::format("groups of {} are given for {}",
                           plural(static_cast<std::int64_t>(schedule_.joined.size()), "stage"),
                           plural(schedule_.stages(), "stage"));
      });
      return false;
    }
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      const auto& actions = schedule_.order[static_cast<std::size_t>(stage)];
      for (std::size_t first = 0, end = 0; first < actions.size(); first = end) {
        end = schedule_.group_end(stage, first);
        for (std::size_t k = first + 1; k < end; ++k) one_of_group(stage, first, k, groups);
      }
    }
    return !groups.any();
  }

  void one_of_group(int stage, std::size_t first, std::size_t step, Faults& groups) {
    const Action& action = schedule_.order[static_cast<std::size_t>(stage)][step];
    const Needs needs = needs_of(action, schedule_.vstages());
    for (const Need& need : {needs.own, needs.other}) {
      if (need.vstage < 0) continue;
      const Place other = maker(need, action.microbatch);
      if (other.stage != stage || other.step < static_cast<int>(first)) continue;
      groups.add(stage, static_cast<std::int64_t>(step), [&] {
        return fmt::format("{}, in the group {}: needs {} of that group", at(stage, step),
                           group_text(schedule_, stage, first),
                           to_string(schedule_.order[static_cast<std::size_t>(stage)]
                                                    [static_cast<std::size_t>(other.step)]));
      });
    }
  }

  // The first action of the stage's group that waits for another stage: reached[stage] or one
  // behind it in its group.
  Place waiting(int stage, std::size_t step, const std::vector<std::size_t>& reached) {
    const auto& actions = schedule_.order[static_cast<std::size_t>(stage)];
    for (std::size_t k = step; k < schedule_.group_end(stage, step); ++k) {
      const Need need = needs_of(actions[k], schedule_.vstages()).other;
      if (need.vstage < 0) continue;
      const Place other = maker(need, actions[k].microbatch);
      if (static_cast<std::size_t>(other.step) >= reached[static_cast<std::size_t>(other.stage)])
        return {stage, static_cast<int>(k)};
    }
    return {stage, static_cast<int>(step)};
  }

  // Whether stages wait for each other: follows who waits for whom until a stage comes up again.
  bool waits_for_ever() {
    const auto reached = replay(schedule_, [](int, std::size_t, const Action&) {});
    int stage = 0;
    const auto stuck = [&](int s) {
      const auto i = static_cast<std::size_t>(s);
      return reached[i] < schedule_.order[i].size();
    };
    while (stage < schedule_.stages() && !stuck(stage)) ++stage;
    if (stage == schedule_.stages()) return false;

    std::vector<std::pair<Place, Place>> chain;  // what waits, and what it waits for
    std::vector<int> seen(static_cast<std::size_t>(schedule_.stages()), -1);
    bool grouped = false;
    while (seen[static_cast<std::size_t>(stage)] < 0) {
      seen[static_cast<std::size_t>(stage)] = static_cast<int>(chain.size());
      const std::size_t step = reached[static_cast<std::size_t>(stage)];
      const Place waits = waiting(stage, step, reached);
      const Action& action =
          schedule_.order[static_cast<std::size_t>(stage)][static_cast<std::size_t>(waits.step)];
      const Place other = maker(needs_of(action, schedule_.vstages()).other, action.microbatch);
      grouped = grouped || schedule_.joins(stage, step);
      chain.emplace_back(waits, other);
      stage = other.stage;
    }
    const auto first = static_cast<std::size_t>(seen[static_cast<std::size_t>(stage)]);
    std::string cycle;
    for (std::size_t i = first; i < chain.size(); ++i) {
      const auto& [waits, other] = chain[i];
      cycle += fmt::format("{}{} waits for {}", cycle.empty() ? "" : "; ", at(waits), at(other));
    }
    problems_.add(
        Stage::plan, "schedule.deadlock", key_of(chain[first].first.stage, -1),
        fmt::format("deadlock: {} wait for each other in a cycle: {}",
                    plural(static_cast<std::int64_t>(chain.size() - first), "stage"), cycle),
        grouped ? "on one of these stages do what is waited for earlier, or take a group apart: a "
                  "group begins when all of its works can"
                : "on one of these stages do what is waited for earlier");
    return true;
  }

  void memory() {
    if (request_.memory_limit <= 0) return;
    Faults limit(problems_, "schedule.memory",
                 "do B or W of an earlier microbatch before this F, or raise the memory limit");
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      bool told = false;
      for_each_level(schedule_, stage, bytes_by(request_), [&](std::size_t step, double bytes) {
        if (told || !above(bytes, request_.memory_limit)) return;
        told = true;
        const std::string group = schedule_.joins(stage, step)
                                      ? ", in the group " + group_text(schedule_, stage, step)
                                      : "";
        limit.add(stage, static_cast<std::int64_t>(step), [&] {
          return fmt::format("{}{}: takes the activations to {}, above the limit of {}",
                             at(stage, step), group, format_number(bytes),
                             format_number(request_.memory_limit));
        });
      });
    }
  }

  const Schedule& schedule_;
  const ScheduleRequest& request_;
  Problems& problems_;
  std::vector<Place> places_;  // by virtual stage, microbatch and work: where the work stands
};

}  // namespace

void check(const Schedule& schedule, const ScheduleRequest& request, Problems& problems) {
  Checker(schedule, request, problems).run();
}

}  // namespace mw
