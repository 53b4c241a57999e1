// Records the collectives of each rank cheaply while a run lasts, and describes them if it fails.
#include "meshwright/engine/rank_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "meshwright/engine/host.h"
#include "meshwright/engine/text.h"

namespace mw {

std::string RankPlace::Call::text() const {
  if (axis.empty()) return "none";
  std::string text = fmt::format("{} on {}", op, axis);
  if (!label.empty()) text += fmt::format(" for '{}'", label);
  if (!phase.empty()) text += fmt::format(" ({})", phase);
  return text;
}

const char* name_of(RankPlace::State state) {
  static constexpr std::array names{"computes", "waits", "failed", "ended", "gone"};
  return names.at(static_cast<std::size_t>(state));
}

namespace comm {
namespace {

thread_local RankCalls* calls_of_thread = nullptr;

// The most ranks of a table with one line per rank; with more, ranks at the same place share a
// line.
constexpr std::size_t most_lines = 16;

std::string seconds_text(double seconds) {
  return fmt::format("{:.1f} s", seconds);
}

// Ranks that were at the same place, ascending, with the least and the most seconds spent there.
struct RanksAt {
  RankPlace place;
  std::vector<int> ranks;
  double least = 0, most = 0;
};

std::vector<RanksAt> ranks_at(const std::vector<RankPlace>& places) {
  std::vector<RanksAt> all;
  std::map<std::tuple<RankPlace::State, std::int64_t, std::string, std::string, std::string>,
           std::size_t>
      known;
  for (const RankPlace& place : places) {
    const auto [at, fresh] = known.try_emplace(
        {place.state, place.done, place.last.text(), place.waits.text(), place.inside}, all.size());
    if (fresh || places.size() <= most_lines) {
      all.push_back({place, {place.rank}, place.seconds, place.seconds});
      continue;
    }
    RanksAt& same = all[at->second];
    same.ranks.push_back(place.rank);
    same.least = std::min(same.least, place.seconds);
    same.most = std::max(same.most, place.seconds);
  }
  return all;
}

// Writes ranks as ranges: "0-62, 64".
std::string ranges_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < ranks.size(); first = last + 1) {
    last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", first > 0 ? ", " : "", ranks[first]);
    if (last > first) text += fmt::format("-{}", ranks[last]);
  }
  return text;
}

}  // namespace

RankCalls* RankCalls::current() {
  return calls_of_thread;
}

void RankCalls::take_thread() {
  calls_of_thread = this;
}

std::int64_t RankCalls::begun(const std::string& axis, const char* op, const Purpose& purpose) {
  const std::lock_guard guard(lock_);
  RankPlace::Call& call = at(begun_);
  call.axis = axis;
  call.op = op;
  call.phase = purpose.phase;
  if (purpose.label != nullptr) {
    call.label = *purpose.label;
  } else {
    call.label.clear();
  }
  return begun_++;
}

void RankCalls::waits(std::int64_t call) {
  const double now = seconds_now();
  const std::lock_guard guard(lock_);
  waits_ = call;
  since_ = now;
}

void RankCalls::done(std::int64_t call) {
  const double now = seconds_now();
  const std::lock_guard guard(lock_);
  ++done_;
  if (waits_ >= 0) inside_.looked = now;  // the call does not count the time of others
  waits_ = -1;
  last_ = call;
  if (call >= 0 && call + static_cast<std::int64_t>(kept) > begun_) last_call_ = at(call);
  since_ = now;
}

void RankCalls::ends(bool failed) {
  const std::lock_guard guard(lock_);
  ended_ = true;
  failed_ = failed;
}

RankCalls::Inside RankCalls::enters(PluginCall call, const std::string& when) {
  Inside inside{std::move(call), "", 0, seconds_now()};
  inside.text = fmt::format("{}, {}", inside.call.callee, when);
  const std::lock_guard guard(lock_);
  return std::exchange(inside_, std::move(inside));
}

void RankCalls::leaves(Inside before) {
  before.looked = seconds_now();
  const std::lock_guard guard(lock_);
  inside_ = std::move(before);
}

RankCalls::PluginCall RankCalls::plugin_call() const {
  const std::lock_guard guard(lock_);
  return inside_.call;
}

std::string RankCalls::overdue() {
  constexpr double longest_look = 1;
  const double now = seconds_now();
  const std::lock_guard guard(lock_);
  // A rank that waits for other ranks does not hold them up.
  if (waits_ < 0) inside_.spent += std::min(now - inside_.looked, longest_look);
  inside_.looked = now;
  if (ended_ || inside_.text.empty() || inside_.spent <= inside_.call.seconds) return "";
  return fmt::format("{}, has not returned within {} s", inside_.text,
                     format_number(inside_.call.seconds));
}

bool RankCalls::ended() const {
  const std::lock_guard guard(lock_);
  return ended_;
}

RankPlace RankCalls::place() const {
  const double now = seconds_now();
  const std::lock_guard guard(lock_);
  RankPlace place;
  place.rank = rank_;
  place.state = failed_       ? RankPlace::State::failed
                : ended_      ? RankPlace::State::ended
                : waits_ >= 0 ? RankPlace::State::waits
                              : RankPlace::State::computes;
  place.done = done_;
  place.last = last_call_;
  if (waits_ >= 0 && waits_ + static_cast<std::int64_t>(kept) > begun_)
    place.waits = calls_[static_cast<std::size_t>(waits_) % kept];
  if (waits_ >= 0 || last_ >= 0) place.seconds = now - since_;
  place.inside = inside_.text;
  return place;
}

RankRecords::RankRecords(const std::vector<int>& ranks) {
  for (const int rank : ranks) calls_.push_back(std::make_unique<RankCalls>(rank));
}

void RankRecords::keep() {
  const std::lock_guard guard(lock_);
  if (!kept_.empty()) return;
  for (const auto& calls : calls_) kept_.push_back(calls->place());
}

std::pair<int, std::string> RankRecords::overdue() const {
  for (const auto& calls : calls_)
    if (std::string what = calls->overdue(); !what.empty())
      return {calls->place().rank, std::move(what)};
  return {-1, ""};
}

std::vector<int> RankRecords::running() const {
  std::vector<int> ranks;
  for (const auto& calls : calls_) {
    if (!calls->ended()) ranks.push_back(calls->place().rank);
  }
  return ranks;
}

std::string text_of(const RankPlace& place) {
  if (place.state == RankPlace::State::gone) return "its process is gone";
  std::string text = plural(place.done, "collective") + " done";
  if (!place.last.axis.empty()) text += fmt::format(", the last {}", place.last.text());
  if (!place.inside.empty()) text += "; is in " + place.inside;
  const std::string since = seconds_text(place.seconds);
  switch (place.state) {
    case RankPlace::State::waits:
      return text + fmt::format("; waits {} in {}", since, place.waits.text());
    case RankPlace::State::computes:
      return text + (place.done > 0 ? fmt::format("; has computed for {} since", since)
                                    : std::string("; computes"));
    case RankPlace::State::failed:
      if (place.waits.axis.empty()) return text + "; failed";
      return text + fmt::format("; failed after {} in {}", since, place.waits.text());
    case RankPlace::State::ended:
    case RankPlace::State::gone:
      break;
  }
  return text + "; has ended";
}

std::string table_of(const std::vector<RankPlace>& places) {
  TextTable table({"rank", "done", "last collective", "then", "for", "in"}, {0, 1, 4});
  for (const RanksAt& same : ranks_at(places)) {
    const RankPlace& place = same.place;
    const bool gone = place.state == RankPlace::State::gone;
    const bool began = place.done > 0 || !place.waits.axis.empty();
    const std::string least = seconds_text(same.least), most = seconds_text(same.most);
    table.add({ranges_text(same.ranks), gone ? "" : std::to_string(place.done),
               gone ? "" : place.last.text(), name_of(place.state),
               !began || place.state == RankPlace::State::ended ? ""
               : least == most                                  ? most
                               : fmt::format("{} to {}", least, most),
               !place.waits.axis.empty() ? place.waits.text() : place.inside});
  }
  return table.text("  ");
}

}  // namespace comm
}  // namespace mw
