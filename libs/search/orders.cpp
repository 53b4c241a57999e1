// Times orders of works for a search, and plays each for what its stages hold, with the posts,
// receives and waits for sends that plan/timeline.cpp lays between works.
#include "search/orders.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "meshwright/engine/interrupt.h"
#include "meshwright/replay.h"

namespace mw {
namespace {

// Beyond two rounds of the stages an order repeats itself: what fills and empties stays.
std::int64_t fewer(int ways, std::int64_t microbatches) {
  return microbatches > 2 * ways ? 2 * ways + microbatches % ways : microbatches;
}

// That nothing in it points outside; `check` says more and takes longer than all else here.
bool in_bounds(const Schedule& schedule, const ScheduleRequest& order) {
  const int vstages = schedule.vstages();
  if (schedule.microbatches != order.microbatches || vstages != order.stages * order.chunks ||
      schedule.order.size() != static_cast<std::size_t>(order.stages))
    return false;
  return std::all_of(schedule.order.begin(), schedule.order.end(), [&](const auto& actions) {
    return std::all_of(actions.begin(), actions.end(), [&](const Action& action) {
      return action.vstage >= 0 && action.vstage < vstages && action.microbatch >= 0 &&
             action.microbatch < order.microbatches;
    });
  });
}

using Counts = std::array<int, 4>;  // works, by Work

// The works on the longest way through the order, where they take so long; none if it waits for
// ever.
std::optional<Counts> longest_way(const Schedule& schedule, const std::array<double, 4>& seconds) {
  struct Reached {
    double time = 0;
    Counts works{};
  };
  const int m = schedule.microbatches, vstages = schedule.vstages();
  std::vector<Reached> stages(schedule.order.size());
  std::vector<Reached> results(2 * static_cast<std::size_t>(vstages) * static_cast<std::size_t>(m));
  const auto steps = replay(schedule, [&](int stage, std::size_t, const Action& action) {
    Reached& now = stages[static_cast<std::size_t>(stage)];
    const Need need = needs_of(action, vstages).other;
    if (need.vstage >= 0) {
      const Reached& there = results[slot_of(need.vstage, action.microbatch, need.result, m)];
      if (there.time > now.time) now = there;
    }
    const auto work = static_cast<std::size_t>(action.work);
    now.time += seconds[work];
    ++now.works[work];
    const std::size_t slot = filled_by(action, m);
    if (slot != no_slot) results[slot] = now;
  });
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (steps[s] < schedule.order[s].size()) return std::nullopt;
  }
  return std::max_element(stages.begin(), stages.end(),
                          [](const Reached& a, const Reached& b) { return a.time < b.time; })
      ->works;
}

Counts works_of(const std::vector<Action>& actions) {
  Counts works{};
  for (const Action& action : actions) ++works[static_cast<std::size_t>(action.work)];
  return works;
}

// Adds what is held unless something there is more in both, and drops what is less.
void add(std::vector<OrderTerms::Held>& most, const OrderTerms::Held& held) {
  const auto covers = [](const OrderTerms::Held& a, const OrderTerms::Held& b) {
    return a.kept >= b.kept && a.waiting >= b.waiting;
  };
  if (std::any_of(most.begin(), most.end(), [&](const auto& one) { return covers(one, held); }))
    return;
  std::erase_if(most, [&](const auto& one) { return covers(held, one); });
  most.push_back(held);
}

// `counts`: what each virtual stage counts for, of `whole`.
std::vector<OrderTerms::Held> held(const std::vector<Action>& actions,
                                   const std::vector<int>& counts, double whole) {
  std::vector<OrderTerms::Held> most;
  int kept = 0, waiting = 0;
  for (const Action& action : actions) {
    const int count = counts[static_cast<std::size_t>(action.vstage)];
    if (action.work == Work::forward) kept += count;
    if (action.work == Work::backward || action.work == Work::dgrad) kept -= count;
    if (action.work == Work::dgrad) waiting += count;
    if (action.work == Work::wgrad) waiting -= count;
    add(most, {kept / whole, waiting / whole});
  }
  return most;
}

// How often gradients of weights are those of another chunk than before, the first among them.
int turns_of(const std::vector<Action>& actions) {
  int turns = 0, before = -1;
  for (const Action& action : actions) {
    if (action.work != Work::backward && action.work != Work::wgrad) continue;
    if (action.vstage != before) ++turns;
    before = action.vstage;
  }
  return turns;
}

// What works of each virtual stage take.
std::vector<WorkTimes> times_of(const LayerTimes& times, std::int64_t layers, int vstages) {
  std::vector<WorkTimes> all;
  for (int v = 0; v < vstages; ++v) {
    const double own = layers_of(layers, vstages, v);
    const double last = v + 1 == vstages ? 1 : 0;
    const auto sum = [&](double WorkTimes::*work) {
      return own * (times.layer.*work) + last * (times.ends.*work);
    };
    all.push_back({sum(&WorkTimes::forward), sum(&WorkTimes::dgrad), sum(&WorkTimes::wgrad), 0});
  }
  return all;
}

}  // namespace

SearchOrders::Key SearchOrders::key(int stages_side, int ways, std::int64_t microbatches,
                                    int policy) const {
  return {stages_side, ways, fewer(ways, microbatches), parted_.contains(stages_side) ? policy : 0};
}

bool SearchOrders::knows(int stages_side, int ways, std::int64_t microbatches, int policy) const {
  return found_.contains(key(stages_side, ways, microbatches, policy));
}

const OrderTerms* SearchOrders::find(int stages_side, int ways, std::int64_t microbatches,
                                     int policy, const std::function<LayerTimes()>& times) {
  const auto known = found_.find(key(stages_side, ways, microbatches, policy));
  if (known != found_.end()) return known->second ? &*known->second : nullptr;
  throw_if_stopped();
  const auto terms = made(stages_side, ways, static_cast<int>(fewer(ways, microbatches)), times());
  if (terms && terms->parted > 0) parted_.insert(stages_side);
  const auto& kept = found_[key(stages_side, ways, microbatches, policy)] = terms;
  return kept ? &*kept : nullptr;
}

std::optional<OrderTerms> SearchOrders::made(int stages_side, int ways, int microbatches,
                                             const LayerTimes& times) {
  const StagesSide& side = space_.stages.at(stages_side);
  OrderTerms terms;
  terms.microbatches = microbatches;
  const std::int64_t layers = request_.base.plan->graph->layers;
  const double mean = static_cast<double>(layers) / ways;
  if (side.schedule.empty()) {  // the strategy has an order of its own: priced as 1F1B
    terms.ways = {{ways - 1.0, ways - 1.0, 0, 0}};
    terms.most = {{std::min(microbatches, ways) * layers_of(layers, ways, 0) / mean, 0}};
    terms.last = {{layers_of(layers, ways, ways - 1) / mean, 0}};
    terms.first = {static_cast<double>(std::min(microbatches, ways)), 0};
    Schedule plain;
    plain.microbatches = std::min(microbatches, ways + 1);
    for (int s = 0; s < ways; ++s) {
      plain.stage_of.push_back(s);
      std::vector<Action>& actions = plain.order.emplace_back();
      const int ahead = std::min(plain.microbatches, ways - s) - 1;
      for (int m = 0; m < plain.microbatches + ahead; ++m) {
        if (m < plain.microbatches) actions.push_back({s, Work::forward, m});
        if (m >= ahead) actions.push_back({s, Work::backward, m - ahead});
      }
    }
    terms.moments = moments_of(plain, layers);
    terms.assumed = true;
    return terms;
  }
  ScheduleRequest order;
  order.stages = ways;
  order.chunks = side.chunks;
  order.microbatches = microbatches;
  order.times = times_of(times, request_.base.plan->graph->layers, order.stages * order.chunks);
  try {
    const Schedule schedule = request_.schedule(side.schedule, order);
    if (!in_bounds(schedule, order)) return std::nullopt;
    if (!right_.contains(stages_side)) {
      Problems problems;
      check(schedule, order, problems);
      if (!problems.empty()) return std::nullopt;
      right_.insert(stages_side);
    }
    const double share = 1.0 / side.chunks;
    const Counts own = works_of(schedule.order.front());
    const auto count = [](const Counts& works, Work work) {
      return static_cast<double>(works[static_cast<std::size_t>(work)]);
    };
    const double whole = count(own, Work::backward), apart = count(own, Work::dgrad);
    terms.parted = apart / std::max(1.0, whole + apart);
    terms.assumed = terms.parted > 0;  // a plan's own times may lead to another
    // Where forward and dgrad wait for transfers and wgrad does not, another way may be longest.
    const double f = times.layer.forward, i = times.layer.dgrad, w = times.layer.wgrad;
    // By how much is not known where an order is timed, as that is done once for all mixes: 1.6, of
    // forward and dgrad with as much again of transfers as three fifths of their work, is a guess.
    for (const double waits : {1.0, 1.6}) {
      const auto way = longest_way(schedule, {waits * f, waits * i + w, waits * i, w});
      if (!way) return std::nullopt;
      const auto more = [&](Work work) { return share * (count(*way, work) - count(own, work)); };
      const OrderTerms::Way found = {more(Work::forward), more(Work::backward), more(Work::dgrad),
                                     more(Work::wgrad)};
      if (terms.ways.empty() || !(terms.ways.back() == found)) terms.ways.push_back(found);
      if (terms.parted == 0) break;
    }
    const int vstages = schedule.vstages(), last = schedule.stage_of.back();
    std::vector<int> of_layers, each(static_cast<std::size_t>(vstages), 1);
    for (int v = 0; v < vstages; ++v) of_layers.push_back(layers_of(layers, vstages, v));
    for (const auto& actions : schedule.order) {
      terms.turns = std::max<double>(terms.turns, turns_of(actions));
      for (const OrderTerms::Held& one : held(actions, of_layers, mean)) add(terms.most, one);
      for (const OrderTerms::Held& one : held(actions, each, side.chunks))
        terms.holds_all = terms.holds_all || one.kept > microbatches - 0.5 * share;
    }
    const auto& of_last = schedule.order.at(static_cast<std::size_t>(last));
    terms.last = held(of_last, of_layers, mean);
    const auto of_chunk = [&](std::size_t v, OrderTerms::Held& found) {
      std::vector<int> counts(static_cast<std::size_t>(vstages), 0);
      counts[v] = 1;
      const auto stage = static_cast<std::size_t>(schedule.stage_of[v]);
      for (const OrderTerms::Held& one : held(schedule.order.at(stage), counts, 1)) {
        found.kept = std::max(found.kept, one.kept);
        found.waiting = std::max(found.waiting, one.waiting);
      }
    };
    of_chunk(0, terms.first);
    terms.moments = moments_of(schedule, layers);
    terms.folded = ways > 1 && last == schedule.stage_of.front();
    return terms;
  } catch (const Stopped&) {
    throw;
  } catch (const Error&) {  // this many microbatches or chunks are none of its
    return std::nullopt;
  }
}

namespace {

bool covers(const Moment& a, const Moment& b) {
  for (std::size_t k = 0; k < counted_kinds; ++k) {
    if (a.counts[k] < b.counts[k]) return false;
  }
  return true;
}

// Those that are highest, apart for each kind of work.
class Highest {
 public:
  void add(const Moment& moment) {
    std::vector<Moment>& list = lists_[moment.work];
    for (std::size_t k = 0; k < list.size(); ++k) {
      if (!covers(list[k], moment)) continue;
      std::swap(list[k], list.front());  // what comes next is often alike
      return;
    }
    std::erase_if(list, [&](const Moment& one) { return covers(moment, one); });
    list.push_back(moment);
  }
  std::vector<Moment> all() const {
    std::vector<Moment> found;
    for (const auto& list : lists_) found.insert(found.end(), list.begin(), list.end());
    return found;
  }

 private:
  std::array<std::vector<Moment>, work_kinds> lists_;
};

bool is_gradient(const Action& a) {
  return a.work == Work::backward || a.work == Work::dgrad;
}
bool adds_weights(const Action& a) {
  return a.work == Work::backward || a.work == Work::wgrad;
}

class Play {
 public:
  Play(const Schedule& schedule, std::int64_t layers)
      : schedule_(schedule),
        vstages_(schedule.vstages()),
        clocks_(schedule.order.size(), Clock(schedule.order.size(), 0)),
        stages_(schedule.order.size()),
        last_(4 * static_cast<std::size_t>(schedule.vstages())) {
    for (int v = 0; v < vstages_; ++v) {
      layers_.push_back(static_cast<float>(layers_of(layers, vstages_, v)));
      Moment& all = stages_[stage(v)].now;
      all[Counted::layers] += layers_.back();
      if (v == 0) all[Counted::first_end] = 1;
      if (v + 1 == vstages_) all[Counted::last_end] = 1;
    }
    for (Stage& one : stages_) {
      if (one.now[Counted::first_end] + one.now[Counted::last_end] < 2) continue;
      one.now[Counted::first_end] = one.now[Counted::last_end] = 0;
      one.now[Counted::both_ends] = 1;
    }
    place_.resize(2 * static_cast<std::size_t>(vstages_) *
                  static_cast<std::size_t>(schedule.microbatches));
    snapshots_.resize(place_.size());
    for (std::size_t s = 0; s < schedule.order.size(); ++s) {
      for (std::size_t k = 0; k < schedule.order[s].size(); ++k) {
        const std::size_t slot = filled_by(schedule.order[s][k], schedule.microbatches);
        if (slot != no_slot) place_[slot] = static_cast<int>(k);
      }
      note_last_runs(s);
    }
  }

  Moments run() {
    for (const Stage& one : stages_) {
      highest_.add(one.now);  // the step's end
      Moment held = one.now;
      held[Counted::kept] = held[Counted::layers];
      held[Counted::kept_first] = held[Counted::first_end] + held[Counted::both_ends];
      held[Counted::kept_last] = held[Counted::last_end] + held[Counted::both_ends];
      sure_.add(held);
    }
    replay(schedule_,
           [&](int s, std::size_t k, const Action& a) { step(static_cast<std::size_t>(s), k, a); });
    for (const Stage& one : stages_) highest_.add(one.now);
    Moments found;
    found.by_chunk = highest_.all();
    // What is less than another is so without a part of its counts too.
    Highest usual;
    for (const Moment& one : found.by_chunk) usual.add(without_chunks(one));
    found.usual = usual.all();
    found.sure = sure_.all();
    return found;
  }

 private:
  using Clock = std::vector<int>;  // actions that each stage has done, as far as one knows

  struct Unsent {
    std::size_t stage = 0;
    int place = 0;  // of the action there that receives it
  };
  struct Stage {
    Moment now;
    std::vector<Unsent> unsent;
    std::vector<char> turns;  // of each action: gradients of weights are another chunk's next
    int pending = -1, reducing = -1;  // virtual stages whose whole gradients are there
  };

  std::size_t stage(int v) const { return static_cast<std::size_t>(schedule_.stage_of[v]); }

  void note_last_runs(std::size_t s) {
    const auto& order = schedule_.order[s];
    stages_[s].turns.assign(order.size(), 0);
    int next = -1;
    for (std::size_t k = order.size(); k-- > 0;) {
      if (!adds_weights(order[k])) continue;
      stages_[s].turns[k] = order[k].vstage != next ? 1 : 0;
      next = order[k].vstage;
    }
  }

  // The virtual stage that it receives from, or sends to; -1: none.
  int from(const Action& a) const { return needs_of(a, vstages_).other.vstage; }
  int to(const Action& a) const {
    if (a.work == Work::wgrad) return -1;
    if (is_gradient(a)) return a.vstage - 1;
    return a.vstage + 1 < vstages_ ? a.vstage + 1 : -1;
  }

  void post(std::size_t s, const Action& a) {
    const int other = from(a);
    if (other >= 0 && stage(other) != s) stages_[s].now[Counted::sent] += 1;
  }

  void hold(Moment& now, const Action& a, float times) const {
    now[Counted::kept] += times * layers_[a.vstage];
    if (a.vstage == 0) now[Counted::kept_first] += times;
    if (a.vstage + 1 == vstages_) now[Counted::kept_last] += times;
  }
  void wait(Moment& now, const Action& a, float times) const {
    now[Counted::waiting] += times * layers_[a.vstage];
    if (a.vstage + 1 == vstages_) now[Counted::waiting_last] += times;
  }
  void gradients(Moment& now, int v, float times) const {
    now[Counted::pending] += times * layers_[v];
    if (v == 0) now[Counted::pending_first] += times;
    if (v + 1 == vstages_) now[Counted::pending_last] += times;
  }

  void arrive(Moment& now, int v, float times) const {
    now[Counted::arriving] += times * layers_[v];
    if (v == 0) now[Counted::arriving_first] += times;
    if (v + 1 == vstages_) now[Counted::arriving_last] += times;
  }

  void step(std::size_t s, std::size_t k, const Action& a) {
    Stage& own = stages_[s];
    Moment& now = own.now;
    const auto& order = schedule_.order[s];
    std::erase_if(own.unsent, [&](const Unsent& one) {
      const bool begun = clocks_[s][one.stage] >= std::max(1, one.place);
      if (begun) now[Counted::sent] -= 1;
      return begun;
    });
    if (k == 0) post(s, a);
    if (k + 1 < order.size()) post(s, order[k + 1]);
    const bool fresh = adds_weights(a) && own.pending != a.vstage && own.reducing != a.vstage;
    if (adds_weights(a)) own.pending = a.vstage;
    const int other = from(a), next = to(a);
    const float comes = other >= 0 ? 1 : 0, goes = next >= 0 ? 1 : 0;
    if (a.work == Work::forward) {
      hold(now, a, 1);
      now[Counted::sent] += goes - comes;
      note(now, a, 0, 0);
    } else {
      const float all = layers_[a.vstage];
      note(now, a, a.work == Work::dgrad ? all - 1 : fresh ? all : 0, own.turns[k] != 0 ? all : 0);
      if (fresh) gradients(now, a.vstage, 1);
      if (a.work == Work::wgrad) {
        wait(now, a, -1);
      } else {
        hold(now, a, -1);
        if (a.work == Work::dgrad) wait(now, a, 1);
        now[Counted::sent] += goes - comes;
      }
    }
    if (own.turns[k] != 0) {  // what was under way is awaited, and this chunk's goes
      arrive(now, a.vstage, 1);
      if (own.reducing >= 0) {
        arrive(now, own.reducing, -1);
        if (own.reducing != a.vstage) gradients(now, own.reducing, -1);
      }
      own.reducing = a.vstage;
      own.pending = -1;
    }
    tell(s, k, a, other, next);
  }

  void note(const Moment& now, const Action& a, float turning, float reducing) {
    Moment moment = now;
    moment.work = kind_of(a.work, a.vstage + 1 == vstages_);
    moment[Counted::turning] = turning;
    moment[Counted::reducing] = reducing;
    // Most are as the last one was.
    Moment& before =
        last_[static_cast<std::size_t>(a.vstage) * 4 + static_cast<std::size_t>(a.work)];
    if (before.work == moment.work && covers(before, moment)) return;
    before = moment;
    highest_.add(moment);
  }

  static Moment without_chunks(const Moment& moment) {
    Moment usual = moment;
    for (const Counted what :
         {Counted::pending, Counted::pending_first, Counted::pending_last, Counted::arriving,
          Counted::arriving_first, Counted::arriving_last, Counted::reducing})
      usual[what] = 0;
    if (moment.work == kind_of(Work::backward, false) ||
        moment.work == kind_of(Work::backward, true) ||
        moment.work == kind_of(Work::wgrad, false) || moment.work == kind_of(Work::wgrad, true))
      usual[Counted::turning] = 0;
    return usual;
  }

  // Who has done what is known from what they sent.
  void tell(std::size_t s, std::size_t k, const Action& a, int other, int next) {
    const int m = schedule_.microbatches;
    const Result result = is_gradient(a) ? Result::gradient : Result::output;
    if (other >= 0 && stage(other) != s) {
      Clock& there = snapshots_[slot_of(other, a.microbatch, result, m)];
      for (std::size_t t = 0; t < there.size(); ++t)
        clocks_[s][t] = std::max(clocks_[s][t], there[t]);
      Clock().swap(there);
    }
    clocks_[s][s] = static_cast<int>(k) + 1;
    if (next < 0 || stage(next) == s) return;
    stages_[s].unsent.push_back({stage(next), place_[slot_of(next, a.microbatch, result, m)]});
    snapshots_[slot_of(a.vstage, a.microbatch, result, m)] = clocks_[s];
  }

  const Schedule& schedule_;
  const int vstages_;
  std::vector<float> layers_;  // of each virtual stage
  std::vector<Clock> clocks_;
  std::vector<Stage> stages_;
  std::vector<int> place_;        // of the action that fills each slot, in its stage's order
  std::vector<Clock> snapshots_;  // of each slot's maker, until it is received
  std::vector<Moment> last_;      // of each virtual stage and work
  Highest highest_, sure_;
};

}  // namespace

Moments moments_of(const Schedule& schedule, std::int64_t layers) {
  return Play(schedule, layers).run();
}

Moments moments_of_one(std::int64_t layers, std::int64_t microbatches) {
  Schedule schedule;
  schedule.microbatches = static_cast<int>(std::min<std::int64_t>(microbatches, 2));
  schedule.stage_of = {0};
  schedule.order.resize(1);
  for (int m = 0; m < schedule.microbatches; ++m) {
    schedule.order[0].push_back({0, Work::forward, m});
    schedule.order[0].push_back({0, Work::backward, m});
  }
  return moments_of(schedule, layers);
}

}  // namespace mw
