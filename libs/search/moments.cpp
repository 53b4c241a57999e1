// Plays an order of works for what each stage holds, with the posts, receives and waits for sends
// that plan/timeline.cpp lays between its works.
#include "search/moments.h"

#include <algorithm>
#include <cstddef>

#include "meshwright/replay.h"

namespace mw {
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
