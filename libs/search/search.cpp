// Searches the best mix: prices all candidates, plans the best whole, and says what limits them.
#include "search/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "search/software.h"
#include "search/whole.h"

namespace mw {
namespace {

// The closed form seldom overestimates memory by more than `doubted` (docs/search.md has means):
// candidates that are above the limit by less are planned whole, like those below it. Candidates
// that are above by less than `excluded` are planned after these, the least first, as many as
// `checked`.
constexpr double doubted = 1.1, excluded = 1.25;
// Predictions err by so much on average (docs/prediction.md): plans whose times differ by less are
// equally fast, and the simplest of them is recommended.
constexpr double tied = 1.04;
// Candidates whose times by the closed form differ by less may be tied: the closed form errs by 2 %
// more, the mean of docs/search.md.
constexpr double nearly_tied = 1.06;
// How many of the simplest mixes that may be tied with the fastest are planned whole. It is a
// choice between what a search takes (a plan some 20 ms) and what it may miss.
constexpr std::size_t simple_ones = 8;
// How many candidates on the edge of memory and time are planned whole.
constexpr std::size_t of_edge = 8;
// How many candidates are still planned whole after Ctrl-C, until one fits.
constexpr int after_stop = 8;

// How much a reader of the plan has to know: its strategies, their options, what else is set, and
// the kinds of collectives that follow (a sum over data is one, its scatter and gather are two).
std::size_t complexity(const FoundPlan& found) {
  std::size_t parts = found.predicted.communication.size();
  for (const Json& entry : found.entries) parts += entry.size();
  return parts + (found.recompute == "none" ? 0 : 1) + (found.offload == "none" ? 0 : 1);
}

// The room that a plan leaves on a device, by which plans are ranked before their time: plans that
// fill a device nearly are ranked like those that leave more.
Room ranked_room(const FoundPlan& found) {
  return std::max(found.predicted.room(), Room::nearly_full);
}

bool same_settings(const FoundPlan& a, const FoundPlan& b) {
  return a.entries == b.entries && a.microbatch == b.microbatch && a.recompute == b.recompute &&
         a.offload == b.offload;
}

class MixSearch {
 public:
  // `left_out`: what was taken from the request, as the software lacks it.
  MixSearch(const SearchRequest& request, std::vector<std::string> left_out)
      : request_(request),
        begun_(seconds_now()),
        most_(static_cast<double>(request.memory)),
        limit_(std::min(most_, static_cast<double>(request.machine->memory()))),
        host_limit_(static_cast<double>(request.machine->host().bytes)),
        space_(space_of(request, std::move(left_out))),
        terms_(request, space_),
        whole_(request, space_, [this] { report(); }) {}

  SearchOutcome run() {
    PricedCandidates priced = price_candidates(request_, space_, terms_);
    all_ = std::move(priced.all);
    out_.candidates = static_cast<std::int64_t>(all_.size());
    out_.refused = priced.refused + priced.shallow;
    out_.probes = terms_.plans();
    out_.interrupted = priced.interrupted;
    out_.pricing_seconds = priced.pricing_seconds;
    out_.probing_seconds = terms_.spent();
    if (all_.empty() && !out_.interrupted)
      refuse_all(request_, space_, priced, terms_.first().refusal());
    const double checking = cpu_seconds_now();
    try {
      std::sort(all_.begin(), all_.end(), [](const SearchCandidate& a, const SearchCandidate& b) {
        return std::pair(a.seconds, a.bytes) < std::pair(b.seconds, b.bytes);
      });
      out_.fitting = std::count_if(all_.begin(), all_.end(),
                                   [&](const SearchCandidate& c) { return filled(c) <= 1; });
      throw_if_stopped();
      check_sample();
      check_best();
      if (whole_.fitting().empty()) refuse_whole(request_, whole_, out_.candidates);
      check_simple();
      check_edge();
      check_fitted();
      finish();
      out_.why = why();
      if (out_.best.front().predicted.room() == Room::runs_out)
        refuse_running_out(request_, out_.best.front(), out_.candidates);
    } catch (const Stopped&) {
      out_.interrupted = true;
      after_stopping();
    }
    out_.checked = whole_.all();
    out_.left_out = space_.left_out;
    out_.checking_seconds = cpu_seconds_now() - checking;
    out_.seconds = seconds_now() - begun_;
    return std::move(out_);
  }

 private:
  static SearchSpace space_of(const SearchRequest& request, std::vector<std::string> left_out) {
    SearchSpace space = search_space(request);
    space.left_out.insert(space.left_out.begin(), left_out.begin(), left_out.end());
    return space;
  }

  // The share of memory that the candidate takes, of the smallest device's or of a host's: the
  // closed form does not say which stage lies on which device.
  double filled(const SearchCandidate& c) const {
    return std::max(c.bytes / limit_, host_limit_ > 0 ? c.host / host_limit_ : 0);
  }

  // Whether the candidate may fit, though it is too large by the closed form, for the largest
  // device too.
  bool may_fit(const SearchCandidate& c) const {
    return c.bytes <= excluded * most_ && (host_limit_ <= 0 || c.host <= doubted * host_limit_);
  }

  void report() {
    if (!request_.progress || seconds_now() - told_ < 1) return;
    told_ = seconds_now();
    request_.progress(fmt::format("search: {} of {} candidates planned whole, {} fit",
                                  whole_.all().size(), all_.size(), whole_.fitting().size()));
  }

  // Plans candidates at even distances in the order of the closed form, to see how far that errs.
  void check_sample() {
    const auto all = static_cast<std::int64_t>(all_.size());
    const std::int64_t some = std::min<std::int64_t>(request_.sampled, all);
    for (std::int64_t k = 0; k < some; ++k) {
      const int place = whole_.plan(all_[static_cast<std::size_t>((2 * k + 1) * all / (2 * some))]);
      if (place >= 0) out_.sample.push_back(whole_.all()[place]);
    }
  }

  // How many plans fit together with what the software holds beside the program.
  int with_room() const {
    return static_cast<int>(std::count_if(
        whole_.fitting().begin(), whole_.fitting().end(),
        [&](int place) { return whole_.all()[place].predicted.room() < Room::over; }));
  }

  void check_best() {
    int tried = 0;
    std::vector<const SearchCandidate*> may;
    for (const SearchCandidate& candidate : all_) {
      const bool enough = with_room() >= request_.best;
      if (tried >= request_.checked && (enough || tried >= 8 * request_.checked)) break;
      if (filled(candidate) > doubted) {
        if (may_fit(candidate)) may.push_back(&candidate);
        continue;
      }
      whole_.plan(candidate);
      ++tried;
    }
    std::sort(may.begin(), may.end(), [&](const SearchCandidate* a, const SearchCandidate* b) {
      return filled(*a) < filled(*b);
    });
    const auto some = std::min(may.size(), static_cast<std::size_t>(request_.checked));
    for (std::size_t k = 0; k < some; ++k) whole_.plan(*may[k]);
    out_.unconfirmed = static_cast<std::int64_t>(may.size() - some);
    if (!whole_.fitting().empty()) return;
    plan_least([&](const SearchCandidate& c) { return filled(c); });
    // Host memory may keep some of these plans out, which the message then says.
    if (host_limit_ > 0) plan_least([](const SearchCandidate& c) { return c.bytes; });
  }

  template <class Of>
  void plan_least(const Of& of) {
    std::vector<SearchCandidate> list = all_;
    const auto few = std::min(list.size(), static_cast<std::size_t>(request_.checked));
    std::partial_sort(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(few), list.end(),
                      [&](const auto& a, const auto& b) { return of(a) < of(b); });
    list.resize(few);
    for (const SearchCandidate& candidate : list) whole_.plan(candidate);
  }

  // After a stop, plans the best of the candidates that were priced so far, until one fits with
  // room. What the software holds beside the program is estimated by the plans made before.
  void after_stopping() {
    forget_stop_request();  // a second Ctrl-C ends this too
    try {
      int tried = 0;
      for (const SearchCandidate& candidate : all_) {
        if (with_room() > 0 || tried >= after_stop) break;
        if (filled(candidate) > 1 || candidate.bytes * beside() > limit_) continue;
        whole_.plan(candidate);
        ++tried;
      }
      if (with_room() == 0 && !all_.empty())
        whole_.plan(*std::min_element(all_.begin(), all_.end(), [&](const auto& a, const auto& b) {
          return filled(a) < filled(b);
        }));
    } catch (const Stopped&) {
    }
    request_stop();
    list();  // stages stay even: balancing them would be stopped
    while (!out_.best.empty() && out_.best.back().predicted.room() == Room::runs_out)
      out_.best.pop_back();
    if (!out_.best.empty()) out_.why = what_limits(out_.best.front());
  }

  // The highest factor, of the plans made so far, from the program's own bytes to those that a
  // driver would report.
  double beside() const {
    double most = 1;
    for (const int place : whole_.fitting()) {
      const Prediction& p = whole_.all()[place].predicted;
      most = std::max(most, static_cast<double>(p.most_reported().reported()) /
                                static_cast<double>(p.fullest().memory.peak));
    }
    return most;
  }

  // Plans the mixes with the fewest words of those that may be tied with the fastest.
  void check_simple() {
    std::vector<std::pair<std::size_t, const SearchCandidate*>> near;
    double fastest = 0;
    for (const int place : whole_.fitting()) {
      const double own = whole_.candidate(place).seconds;
      if (fastest == 0 || own < fastest) fastest = own;
    }
    for (const SearchCandidate& candidate : all_) {
      if (candidate.seconds > nearly_tied * fastest) break;
      if (filled(candidate) <= doubted) near.emplace_back(words(candidate), &candidate);
    }
    std::sort(near.begin(), near.end());
    using Mix = std::tuple<int, int, int, int, int>;
    std::set<Mix> taken;  // mixes that were planned, whatever their microbatch and recompute
    for (const auto& [count, one] : near) {
      if (taken.size() >= simple_ones) break;
      const Mix mix{one->inner, one->data, one->split.groups, one->stages, one->stages_side};
      if (taken.insert(mix).second) whole_.plan(*one);
    }
  }

  std::size_t words(const SearchCandidate& candidate) const {
    std::size_t count = 0;
    for (const Json& entry : space_.inner[candidate.inner].entries) count += entry.size();
    if (candidate.data >= 0) {
      count += 2 + space_.data[candidate.data].options.size();
      count += candidate.split.groups > 1 ? 1 : 0;
    }
    if (candidate.stages > 1)
      count += 3 + (space_.stages[candidate.stages_side].chunks > 1 ? 1 : 0);
    const SearchPolicy& policy = space_.policies.at(candidate.policy);
    count += policy.recompute.written != "none" ? 1 : 0;
    count += policy.offload.written != "none" ? 1 : 0;
    return count;
  }

  // Plans a few of the candidates that no other one beats in both time and memory: by a twentieth
  // of the memory, or there would be many that differ in little.
  void check_edge() {
    std::vector<SearchCandidate> edge;
    double least = doubted * limit_;
    for (const SearchCandidate& candidate : all_) {
      if (candidate.bytes > 0.95 * least || filled(candidate) > doubted) continue;
      least = candidate.bytes;
      edge.push_back(candidate);
    }
    const std::size_t each = std::max<std::size_t>(1, edge.size() / of_edge);
    for (std::size_t i = 0; i < edge.size(); i += each) whole_.plan(edge[i]);
  }

  // Plans the fastest plans that recompute once more, with what each policy recomputes to fit the
  // memory.
  void check_fitted() {
    std::vector<int> places;
    for (const int place : whole_.fitting()) {
      if (whole_.all()[place].recompute != "none") places.push_back(place);
    }
    std::stable_sort(places.begin(), places.end(), [&](int a, int b) {
      return whole_.all()[a].predicted.step_seconds < whole_.all()[b].predicted.step_seconds;
    });
    places.resize(std::min(places.size(), static_cast<std::size_t>(request_.best)));
    for (const int place : places) {
      SearchCandidate candidate = whole_.candidate(place);
      const int offload = space_.policies.at(candidate.policy).offload_place;
      for (std::size_t p = 0; p < space_.policies.size(); ++p) {
        if (!space_.policies[p].later || space_.policies[p].offload_place != offload) continue;
        candidate.policy = static_cast<std::int16_t>(p);
        whole_.plan(candidate);
      }
    }
  }

  // Lists the best plans and the edge, with balanced stages. As balancing changes times, others may
  // then be among the best, and are balanced too.
  void finish() {
    constexpr int rounds = 4;
    for (int round = 0; round < rounds; ++round) {
      list();
      bool changed = false;
      for (const int place : whole_.fitting()) {
        const auto listed = [&](const FoundPlan& one) {
          return same_settings(one, whole_.all()[place]);
        };
        if (std::any_of(out_.best.begin(), out_.best.end(), listed) ||
            std::any_of(out_.edge.begin(), out_.edge.end(), listed))
          changed = whole_.balance(place) || changed;
      }
      if (!changed) return;
    }
    list();
  }

  // All plans that fit, the fastest first, and behind them those that are over a device's memory.
  std::vector<const FoundPlan*> ranked() const {
    std::vector<const FoundPlan*> found;
    for (const int place : whole_.fitting()) found.push_back(&whole_.all()[place]);
    const auto key = [](const FoundPlan* one) {
      return std::tuple(ranked_room(*one), one->predicted.step_seconds,
                        one->predicted.fullest().memory.peak);
    };
    std::stable_sort(found.begin(), found.end(),
                     [&](const FoundPlan* a, const FoundPlan* b) { return key(a) < key(b); });
    return found;
  }

  // The index in `found` of the plan to recommend. Among the plans that are tied with the first,
  // and that no other beats in both time and memory, it leaves most room, and then has the fewest
  // parts.
  std::size_t recommended(const std::vector<const FoundPlan*>& found) {
    const double most = tied * found.front()->predicted.step_seconds;
    std::size_t chosen = 0;
    std::int64_t least = INT64_MAX;
    const auto key = [](const FoundPlan& one) {
      return std::pair(one.predicted.room(), complexity(one));
    };
    for (std::size_t i = 0; i < found.size(); ++i) {
      const FoundPlan& one = *found[i];
      if (one.predicted.step_seconds > most || ranked_room(one) != ranked_room(*found.front()))
        break;
      const std::int64_t peak = one.predicted.fullest().memory.peak;
      if (peak >= least) continue;  // a plan before this one is as fast and needs no more memory
      least = peak;
      if (i > 0 && key(one) < key(*found[chosen])) chosen = i;
    }
    passed_tight_ = std::any_of(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(chosen),
                                [&](const FoundPlan* faster) {
                                  return faster->predicted.room() > found[chosen]->predicted.room();
                                });
    return chosen;
  }

  void list() {
    out_.best.clear();
    out_.edge.clear();
    fastest_ = nullptr;
    std::vector<const FoundPlan*> found = ranked();
    if (found.empty()) return;
    std::int64_t least = INT64_MAX;
    for (const FoundPlan* one : found) {
      const std::int64_t peak = one->predicted.fullest().memory.peak;
      if (peak >= least || ranked_room(*one) != ranked_room(*found.front())) continue;
      least = peak;
      out_.edge.push_back(*one);
    }
    const auto first = found.begin() + static_cast<std::ptrdiff_t>(recommended(found));
    if (first != found.begin()) fastest_ = found.front();
    std::rotate(found.begin(), first, first + 1);
    for (const FoundPlan* one : found) {
      if (static_cast<int>(out_.best.size()) < request_.best) out_.best.push_back(*one);
    }
  }

  // Why the first plan is recommended and not the fastest.
  std::string tie() const {
    if (fastest_ == nullptr) return "";
    return fmt::format(
        "\ntied: predictions err by {:.0f} %. Among the plans that are at most so much slower than "
        "the fastest, and that no other plan beats in both time and memory, this plan {}has the "
        "fewest strategies, options and collectives; the fastest: {}",
        100 * (tied - 1),
        passed_tight_ ? "leaves a device more memory, and among those that do it " : "",
        what_loses(out_.best.front(), *fastest_, request_.memory));
  }

  // The text on faster plans that are not recommended, as they are further over a device's memory.
  std::string over() const {
    const FoundPlan* fastest = nullptr;
    int count = 0;
    const FoundPlan& best = out_.best.front();
    for (const int place : whole_.fitting()) {
      const FoundPlan& one = whole_.all()[place];
      if (ranked_room(one) <= ranked_room(best)) continue;
      if (one.predicted.step_seconds >= best.predicted.step_seconds) continue;
      ++count;
      if (fastest == nullptr || one.predicted.step_seconds < fastest->predicted.step_seconds)
        fastest = &one;
    }
    if (fastest == nullptr) return "";
    return fmt::format(
        "\nover: {} faster, but a driver would report more memory than the device has. The fastest "
        "of "
        "them, for which a driver would report {} of {}: {}",
        count == 1 ? "1 plan is" : fmt::format("{} plans are", count),
        memory_text(fastest->predicted.most_reported().reported()),
        memory_text(fastest->predicted.most_reported().device.bytes),
        what_loses(best, *fastest, request_.memory));
  }

  // Notes on a memory limit above what devices have, and on candidates that were not looked at.
  std::string notes() const {
    std::string text;
    const std::int64_t asked = request_.asked_memory, has = request_.machine->most_memory();
    if (asked > has && has > 0)
      text += fmt::format("\nmemory: {} is more than a device's {}, by which plans are judged",
                          memory_text(asked), memory_text(has));
    if (out_.unconfirmed > 0)
      text += fmt::format(
          "\n{} as fast by the closed form {} most likely too large and not planned whole: a "
          "larger "
          "checked looks at more",
          plural(out_.unconfirmed, "other candidate"), out_.unconfirmed == 1 ? "is" : "are");
    return text;
  }

  // What limits the best plan, and what its neighbours lose.
  std::string why() {
    if (out_.best.empty()) return "";
    const FoundPlan best = out_.best.front();
    std::string others;
    const auto at = std::find_if(whole_.all().begin(), whole_.all().end(),
                                 [&](const FoundPlan& one) { return same_settings(one, best); });
    const SearchCandidate own = whole_.candidate(static_cast<int>(at - whole_.all().begin()));
    for (const SearchCandidate& other : neighbours(own, all_)) {
      int place = whole_.plan(other);
      if (place < 0) continue;
      whole_.balance(place);
      place = whole_.fastest_like(own, place);
      whole_.balance(place);
      const FoundPlan& lost = whole_.all()[place];
      others += "\n" + what_loses(best, lost, request_.memory);
      if (lost.fits && lost.predicted.room() >= Room::over)
        others += fmt::format(" ({})", name_of(lost.predicted.room()));
    }
    finish();  // a neighbour may be faster than all that were checked
    return same_settings(out_.best.front(), best)
               ? what_limits(best) + tie() + over() + others + notes()
               : why();
  }

  const SearchRequest& request_;
  const double begun_;
  // Bytes that the largest device, the smallest device and the host of a node may hold; a host's 0:
  // not known.
  const double most_, limit_, host_limit_;
  const SearchSpace space_;
  PartTerms terms_;
  WholePlans whole_;
  std::vector<SearchCandidate> all_;    // all candidates, the fastest first
  const FoundPlan* fastest_ = nullptr;  // the fastest plan, where another one is recommended
  bool passed_tight_ = false;           // a faster plan than the recommended one leaves less room
  double told_ = seconds_now();
  SearchOutcome out_;
};

}  // namespace

SearchOutcome search(const SearchRequest& request) {
  SearchRequest own = request;
  std::vector<std::string> left_out = leave_out(own);
  return MixSearch(own, std::move(left_out)).run();
}

}  // namespace mw
