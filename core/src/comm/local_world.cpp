// Collectives between the ranks of one process: makes their groups, passes a rank's failure on to
// all ranks, and says what each rank does if one is missing.
#include "comm/local_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/local_backend.h"

namespace mw::comm {

LocalWorld::LocalWorld(int ranks, std::chrono::milliseconds timeout, const Beyond* beyond)
    : timeout_(timeout),
      beyond_(beyond != nullptr ? std::optional<Beyond>(*beyond) : std::nullopt) {
  for (int i = 0; i < ranks; ++i) status_.push_back(std::make_unique<Status>());
}

LocalWorld::~LocalWorld() = default;

c10::intrusive_ptr<c10d::Backend> LocalWorld::backend(const Connection& connection, int index) {
  auto members = group_of(connection.name(), connection.ranks, index);
  std::shared_ptr<StreamLine> line;
  if (!connection.stream.empty()) {
    const std::lock_guard guard(lock_);
    auto& known = lines_[{connection.ranks[static_cast<std::size_t>(index)], connection.stream}];
    if (!known) known = std::make_shared<StreamLine>();
    line = known;
  }
  return c10::make_intrusive<LocalBackend>(*this, std::move(members), index, std::move(line));
}

std::shared_ptr<LocalGroup> LocalWorld::group_of(const std::string& axis,
                                                 const std::vector<int>& group, int index) {
  check_group(axis, group, index, ranks());
  const std::lock_guard guard(lock_);
  auto& hub = groups_[{axis, group}];
  if (!hub) hub = std::make_shared<LocalGroup>(*this, axis, group);
  return hub;
}

void LocalWorld::abort(int rank, const std::string& reason) {
  std::string message;
  {
    const std::lock_guard guard(lock_);
    if (aborted_) return;
    abort_message_ = message = stopped_by(rank, reason);
    aborted_ = true;
  }
  std::vector<std::shared_ptr<LocalGroup>> groups;
  {
    const std::lock_guard guard(lock_);
    for (auto& [key, group] : groups_) groups.push_back(group);
  }
  for (auto& group : groups) group->fail_open(aborted_run(message));
}

void LocalWorld::ended(int rank) {
  status_[static_cast<std::size_t>(rank)]->ended = true;
  std::vector<std::shared_ptr<LocalGroup>> groups;
  {
    const std::lock_guard guard(lock_);
    for (auto& [key, group] : groups_) groups.push_back(group);
  }
  for (auto& group : groups) group->fail_ended(rank);
}

bool LocalWorld::has_ended(int rank) const {
  return status_[static_cast<std::size_t>(rank)]->ended;
}

void LocalWorld::check_aborted() const {
  if (aborted_) throw Aborted(abort_message_);
}

LocalGroup::Counts LocalWorld::counts() const {
  const std::lock_guard guard(lock_);
  LocalGroup::Counts all;
  for (const auto& [key, group] : groups_) {
    const LocalGroup::Counts counts = group->counts();
    all.comparisons += counts.comparisons;
    all.rounds_made += counts.rounds_made;
  }
  return all;
}

void LocalWorld::begins_to_wait(int rank, std::shared_ptr<Round> round) {
  auto& status = *status_[static_cast<std::size_t>(rank)];
  const std::lock_guard guard(status.lock);
  status.now = std::move(round);
}

void LocalWorld::ends_waiting(int rank, bool completed) {
  auto& status = *status_[static_cast<std::size_t>(rank)];
  const std::lock_guard guard(status.lock);
  // After a failure `now` stays set, because other ranks that fail at the same moment report it.
  if (completed) status.last = std::exchange(status.now, nullptr);
}

std::string LocalWorld::whereabouts(int rank) const {
  const auto& status = *status_[static_cast<std::size_t>(rank)];
  std::shared_ptr<Round> now, last;
  {
    const std::lock_guard guard(status.lock);
    now = status.now;
    last = status.last;
  }
  // Reads only members of `now` that cannot change, because other ranks may still join that round.
  std::string text = last ? fmt::format("last completed {} on axis '{}' ({})", last->describe(),
                                        last->axis(), last->name())
                          : "has completed no collective";
  if (now) text += fmt::format(" and now waits on axis '{}' ({})", now->axis(), now->name());
  return text;
}

bool LocalWorld::waits(int rank) const {
  const auto& status = *status_[static_cast<std::size_t>(rank)];
  const std::lock_guard guard(status.lock);
  return status.now != nullptr;
}

std::string LocalWorld::known_whereabouts(int rank) const {
  return beyond_ && beyond_->whereabouts ? beyond_->whereabouts(rank) : whereabouts(rank);
}

std::string LocalWorld::held_up_by(const std::vector<int>& missing) const {
  if (beyond_) return beyond_->held_up_by ? beyond_->held_up_by(missing) : "";
  std::vector<IdleRank> idle;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!has_ended(rank) && !waits(rank)) idle.push_back({rank, whereabouts(rank)});
  }
  return comm::held_up_by(missing, idle);
}

LocalGroup::LocalGroup(LocalWorld& world, std::string axis, std::vector<int> ranks)
    : world_(world), axis_(std::move(axis)), ranks_(std::move(ranks)), next_(ranks_.size(), 0) {}

LocalGroup::Seat LocalGroup::seated(std::shared_ptr<Round> round, int index, bool complete) {
  if (round->state() == Round::failed) round->throw_failure();
  if (complete) round->start(index);
  return {std::move(round), index};
}

// Called under the lock. A round that only known_ holds can be used again, unless it failed.
std::shared_ptr<Round> LocalGroup::spare_round() {
  constexpr std::size_t looks = 4, most_known = 64;
  for (std::size_t look = 0; look < std::min(looks, known_.size()); ++look) {
    known_.push_back(std::move(known_.front()));
    known_.pop_front();
    if (known_.back().use_count() > 1) continue;
    std::shared_ptr<Round> round = known_.back();  // a copy, so that last accesses are ordered
    if (round->state() == Round::done) return round;
    known_.pop_back();
  }
  if (known_.size() >= most_known) known_.pop_front();
  ++counts_.rounds_made;
  return known_.emplace_back(std::make_shared<Round>(axis_));
}

LocalGroup::Seat LocalGroup::join(int index, Arrival arrival) {
  std::shared_ptr<Round> round;
  bool complete = false;
  {
    const std::lock_guard guard(lock_);
    world_.check_aborted();  // under the lock: abort() either is seen here or sees this round
    const auto number = next_[static_cast<std::size_t>(index)]++;
    if (number - oldest_ == open_.size()) {
      open_.push_back(spare_round());
      open_.back()->begin(number, ranks_);
    }
    round = open_[number - oldest_];
    counts_.comparisons += round->arrive(index, std::move(arrival));
    complete = round->all_here();
    if (complete) {
      // Rounds are completed in order, since a rank joins them in order.
      open_.erase(open_.begin());
      ++oldest_;
    } else {
      check_ended(*round);
    }
  }
  return seated(std::move(round), index, complete);
}

LocalGroup::Seat LocalGroup::join_pair(int index, int peer, int tag, Arrival arrival) {
  const bool sends = arrival.call.op == Collective::send;
  const Key key{sends ? index : peer, sends ? peer : index, tag};
  std::shared_ptr<Round> round;
  bool complete = false;
  {
    const std::lock_guard guard(lock_);
    world_.check_aborted();
    auto& box = mail_[key];
    if (!box.empty() && box.front().sends != sends) {
      round = box.front().round;
      box.erase(box.begin());
      if (box.empty()) mail_.erase(key);
      counts_.comparisons += round->arrive(1, std::move(arrival));
      complete = true;
    } else {
      round = spare_round();
      round->begin({sends, ranks_[static_cast<std::size_t>(key.from)],
                    ranks_[static_cast<std::size_t>(key.to)], tag});
      round->arrive(0, std::move(arrival));
      box.push_back({round, sends});
      check_ended(*round);
    }
  }
  return seated(std::move(round), complete ? 1 : 0, complete);
}

void LocalGroup::check_ended(Round& round) {
  for (const int rank : round.missing()) {
    if (!world_.has_ended(rank)) continue;
    round.fail(ended_rank(axis_, round.name(), round.describe(), rank, round.present(),
                          fmt::format(" Rank {} {}.", rank, world_.known_whereabouts(rank))),
               Cause::itself);
    return;
  }
}

void LocalGroup::fail_late(Round& round, double seconds) {
  std::vector<int> missing;
  {
    const std::lock_guard guard(lock_);
    missing = round.missing();
  }
  // Called without the lock, because it may have to ask other processes.
  std::string who = missing.empty() ? "" : world_.held_up_by(missing);
  const std::lock_guard guard(lock_);
  missing = round.missing();
  if (missing.empty()) {  // the last rank came just now, or the round waits behind another one
    if (round.is_put_off()) {
      round.fail({Stage::run, "collective.timeout", "",
                  fmt::format("{} on axis '{}' ({}) stood for {:.0f} s behind another transfer of "
                              "its stream, for which some rank has not come.",
                              round.describe(), axis_, round.name(), seconds),
                  "Ranks must start the transfers of a stream in one order."},
                 Cause::absence);
    }
    return;
  }
  for (const int rank : missing)
    who += fmt::format(" Rank {} {}.", rank, world_.known_whereabouts(rank));
  std::string tags;  // names of the sends and recvs for which the missing rank itself waits
  if (round.ranks().size() == 2) {
    for (const auto& [key, box] : mail_) {
      for (const auto& waiting : box) {
        if (waiting.round.get() == &round || waiting.round->ranks()[0] != missing[0]) continue;
        tags += fmt::format("{}{}", tags.empty() ? "" : "; ", waiting.round->name());
      }
    }
  }
  if (!tags.empty()) tags = fmt::format(" It waits itself for a partner of: {}.", tags);
  round.fail(lateness(axis_, round.name(), round.describe(), seconds, missing, round.present(),
                      who + tags),
             Cause::absence);
}

void LocalGroup::fail_open(const Problem& problem) {
  const std::lock_guard guard(lock_);
  for (auto& round : open_) round->fail(problem, Cause::earlier);
  for (auto& [key, box] : mail_) {
    for (auto& waiting : box) waiting.round->fail(problem, Cause::earlier);
  }
}

LocalGroup::Counts LocalGroup::counts() const {
  const std::lock_guard guard(lock_);
  return counts_;
}

void LocalGroup::fail_ended(int rank) {
  if (std::find(ranks_.begin(), ranks_.end(), rank) == ranks_.end()) return;
  const std::lock_guard guard(lock_);
  for (auto& round : open_) check_ended(*round);
  for (auto& [key, box] : mail_) {
    for (auto& waiting : box) check_ended(*waiting.round);
  }
}

}  // namespace mw::comm
