// Matches a rank's calls with those of the other ranks of its process, and reports where each rank
// is when one is missing.
#include "transport/source.h"

#include <fmt/format.h>

#include <utility>

#include "meshwright/engine/hash.h"
#include "meshwright/error.h"
#include "transport/linked_backend.h"

namespace mw::transport {
namespace {

// A hash that is equal in all processes for the same things, and differs for others.
class IdHash {
 public:
  IdHash& operator<<(std::uint64_t number) {
    hash_.add(&number, sizeof number);
    return *this;
  }
  IdHash& operator<<(const std::string& text) {
    hash_.add(text.data(), text.size());
    return *this << text.size();
  }
  std::uint64_t value() const { return finalise64(hash_.value()); }

 private:
  Fnv1a<std::uint64_t> hash_;
};

std::uint64_t number(int value) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
}

}  // namespace

LinkedSource::LinkedSource(Engine& engine, std::string name,
                           const std::vector<std::vector<int>>& ranks,
                           std::chrono::milliseconds timeout)
    : engine_(engine),
      name_(std::move(name)),
      timeout_(timeout),
      process_of_(comm::process_of_ranks(ranks)) {
  ended_.assign(process_of_.size(), 0);
  status_.resize(process_of_.size());
  const comm::Beyond beyond{
      .whereabouts =
          [this](int rank) {
            const std::lock_guard guard(lock_);
            return whereabouts_in_group(rank);
          },
      .held_up_by = [this](const auto& missing) { return engine_.held_up_by(missing); }};
  threads_ = comm::thread_source(static_cast<int>(process_of_.size()), timeout, &beyond);
  const auto run = engine_.begin(this);
  const std::lock_guard guard(lock_);
  run_ = run;
}

LinkedSource::~LinkedSource() {
  engine_.leave();
}

c10::intrusive_ptr<c10d::Backend> LinkedSource::backend(const Connection& connection, int index) {
  const std::string axis = connection.name();
  const std::vector<int>& group = connection.ranks;
  comm::check_group(axis, group, index, ranks());
  auto members = std::make_shared<Members>();
  members->axis = axis;
  members->ranks = group;
  members->process = engine_.process();
  bool all_here = true, far = false;
  IdHash key;
  key << axis;
  for (const int rank : group) {
    const int process = process_of_[static_cast<std::size_t>(rank)];
    members->process_of.push_back(process);
    all_here &= process == engine_.process();
    far |= !engine_.together(process, members->process_of[0]);
    key << number(rank);
  }
  if (all_here) return threads_->backend(connection, index);
  const std::lock_guard guard(lock_);
  members->key = (key << std::uint64_t{run_}).value();
  auto& known = groups_[{axis, group}];
  if (!known) {
    known = std::make_unique<Group>();
    known->members = std::move(members);
    known->far = far;
    known->next.assign(group.size(), 0);
  }
  return c10::make_intrusive<LinkedBackend>(*this, *known, index);
}

std::shared_ptr<Round> LinkedSource::seat(std::uint64_t id,
                                          const std::shared_ptr<const Members>& members,
                                          const std::string& name, bool far, int index,
                                          Arrival arrival) {
  auto& round = gathering_[id];
  if (!round) round = std::make_shared<Round>(id, members, name, far);
  auto joined = round;
  joined->arrive(index, std::move(arrival));
  if (joined->all_here()) {
    gathering_.erase(id);
    if (joined->state() != Round::failed) engine_.submit(joined);
  } else {
    check_ended(*joined);
  }
  if (joined->state() == Round::failed) joined->throw_failure();
  return joined;
}

std::shared_ptr<Round> LinkedSource::join(Group& group, int index, Arrival arrival) {
  const std::lock_guard guard(lock_);
  check_running();
  const auto count = group.next[static_cast<std::size_t>(index)]++;
  const auto id = (IdHash() << group.members->key << count << 0).value();
  return seat(id, group.members, fmt::format("collective {}", count), group.far, index,
              std::move(arrival));
}

std::shared_ptr<Round> LinkedSource::join_pair(Group& group, int index, int peer, int tag,
                                               Arrival arrival) {
  const bool sends = arrival.call.op == Collective::send;
  const int from = sends ? index : peer, to = sends ? peer : index;
  const std::lock_guard guard(lock_);
  check_running();
  const auto count = group.pairs[{from, to, tag, sends}]++;
  const auto id =
      (IdHash() << group.members->key << count << 1 << number(from) << number(to) << number(tag))
          .value();
  auto pair = std::make_shared<Members>();
  pair->axis = group.members->axis;
  pair->process = engine_.process();
  for (const int one : {from, to}) {
    pair->ranks.push_back(group.members->ranks[static_cast<std::size_t>(one)]);
    pair->process_of.push_back(group.members->process_of[static_cast<std::size_t>(one)]);
  }
  const auto name = fmt::format("{} {} -> {}, tag {}", sends ? "send" : "recv", pair->ranks[0],
                                pair->ranks[1], tag);
  const bool far = !engine_.together(pair->process_of[0], pair->process_of[1]);
  return seat(id, pair, name, far, sends ? 0 : 1, std::move(arrival));
}

void LinkedSource::check_running() const {
  if (failed_) throw Aborted(comm::stopped_by(failed_->rank, failed_->reason));
}

void LinkedSource::check_ended(Round& round) {
  for (std::size_t i = 0; i < round.members->ranks.size(); ++i) {
    const int rank = round.members->ranks[i];
    if (round.members->process_of[i] != engine_.process() || round.arrivals[i].here ||
        ended_[static_cast<std::size_t>(rank)] == 0) {
      continue;
    }
    std::vector<int> waiting;
    for (const int m : round.own) {
      if (round.arrivals[static_cast<std::size_t>(m)].here)
        waiting.push_back(round.members->ranks[static_cast<std::size_t>(m)]);
    }
    round.fail(comm::ended_rank(round.members->axis, round.name, round.describe(), rank, waiting,
                                fmt::format(" Rank {} {}.", rank, whereabouts(rank))),
               Cause::itself);
    return;
  }
}

void LinkedSource::abort(int rank, const std::string& reason) {
  rank_failed(rank, reason);
  // A rank that another's failure has stopped reports that failure: its message could be the first
  // to reach other processes.
  Failure first;
  {
    const std::lock_guard guard(lock_);
    first = *failed_;
  }
  engine_.failed(first.rank, first.reason);
}

void LinkedSource::ended(int rank) {
  threads_->ended(rank);
  engine_.ended(rank);
}

void LinkedSource::rank_failed(int rank, const std::string& reason) {
  {
    const std::lock_guard guard(lock_);
    if (failed_) return;
    failed_ = {rank, reason};
    for (auto& [id, round] : gathering_) {
      round->fail(comm::aborted_run(comm::stopped_by(rank, reason)), Cause::earlier);
    }
  }
  threads_->abort(rank, reason);
}

void LinkedSource::rank_ended(int rank) {
  const std::lock_guard guard(lock_);
  ended_[static_cast<std::size_t>(rank)] = 1;
  for (auto& [id, round] : gathering_) check_ended(*round);
}

bool LinkedSource::has_ended(int rank) const {
  const std::lock_guard guard(lock_);
  return ended_[static_cast<std::size_t>(rank)] != 0;
}

std::vector<int> LinkedSource::ranks_of(int process) const {
  std::vector<int> list;
  for (std::size_t rank = 0; rank < process_of_.size(); ++rank) {
    if (process_of_[rank] == process) list.push_back(static_cast<int>(rank));
  }
  return list;
}

std::optional<std::string> LinkedSource::stopped() const {
  const std::lock_guard guard(lock_);
  if (!failed_) return std::nullopt;
  return comm::stopped_by(failed_->rank, failed_->reason);
}

std::vector<Whereabouts> LinkedSource::where(std::uint64_t id, const std::vector<int>& ranks) {
  const std::lock_guard guard(lock_);
  const auto found = gathering_.find(id);
  std::vector<Whereabouts> list;
  for (const int rank : ranks) {
    Whereabouts one{rank, found == gathering_.end(), whereabouts(rank)};
    if (found != gathering_.end()) {
      const Round& round = *found->second;
      for (const int m : round.own) {
        if (round.members->ranks[static_cast<std::size_t>(m)] == rank)
          one.here = round.arrivals[static_cast<std::size_t>(m)].here;
      }
    } else {
      // The round is under way already, or nobody has come to it yet.
      const auto& now = status_[static_cast<std::size_t>(rank)].now;
      one.here = now && now->id == id;
    }
    list.push_back(std::move(one));
  }
  return list;
}

std::vector<comm::IdleRank> LinkedSource::idle() {
  const std::lock_guard guard(lock_);
  std::vector<comm::IdleRank> list;
  for (const int rank : ranks_of(engine_.process())) {
    const auto at = static_cast<std::size_t>(rank);
    if (ended_[at] == 0 && !status_[at].now && !threads_->waits(rank))
      list.push_back({rank, whereabouts(rank)});
  }
  return list;
}

void LinkedSource::begins_to_wait(int rank, std::shared_ptr<Round> round) {
  const std::lock_guard guard(lock_);
  status_[static_cast<std::size_t>(rank)].now = std::move(round);
}

void LinkedSource::ends_waiting(int rank, bool completed) {
  const std::lock_guard guard(lock_);
  auto& status = status_[static_cast<std::size_t>(rank)];
  // After a failure `now` is kept: another rank that fails at the same moment reports where this
  // one is.
  if (completed) status.last = std::exchange(status.now, nullptr);
}

std::string LinkedSource::whereabouts(int rank) const {
  const auto& status = status_[static_cast<std::size_t>(rank)];
  if (ended_[static_cast<std::size_t>(rank)] != 0) return "has ended";
  if (!status.now && threads_->waits(rank)) return threads_->whereabouts(rank);
  std::string text =
      status.last ? fmt::format("last completed {} on axis '{}' ({})", status.last->describe(),
                                status.last->members->axis, status.last->name)
                  : "has completed no collective between processes";
  if (status.now) {
    text += fmt::format(" and now waits for {} on axis '{}' ({})", status.now->describe(),
                        status.now->members->axis, status.now->name);
  }
  return text;
}

std::string LinkedSource::whereabouts_in_group(int rank) const {
  const auto& status = status_[static_cast<std::size_t>(rank)];
  if (status.now) return whereabouts(rank);
  std::string text = threads_->whereabouts(rank);
  if (status.last) {
    text += fmt::format("; between processes it last completed {} on axis '{}' ({})",
                        status.last->describe(), status.last->members->axis, status.last->name);
  }
  return text;
}

}  // namespace mw::transport
