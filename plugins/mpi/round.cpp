// A round's life: members of this process come together, other processes arrive, the last piece
// comes, or it fails; and how a member waits for that.
#include "round.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "meshwright/world.h"

namespace mpi {

using mw::Collective;
using mw::comm::Call;
using Clock = std::chrono::steady_clock;

std::vector<int> Members::of(int which) const {
  std::vector<int> list;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (process_of[i] == which) list.push_back(static_cast<int>(i));
  }
  return list;
}

std::vector<int> Members::ranks_of(int which) const {
  auto list = of(which);
  for (int& one : list) one = ranks[static_cast<std::size_t>(one)];
  return list;
}

std::vector<std::byte> Scratch::take(std::size_t bytes) {
  std::vector<std::byte> memory;
  if (!free_.empty()) {
    memory = std::move(free_.back());
    free_.pop_back();
  }
  if (memory.size() < bytes) memory.resize(bytes);
  return memory;
}

void Scratch::give(std::vector<std::byte> memory) {
  constexpr std::size_t kept = 8;
  if (!memory.empty() && free_.size() < kept) free_.push_back(std::move(memory));
}

Round::Round(std::uint64_t id_, std::shared_ptr<const Members> members_, std::string name_,
             bool far)
    : id(id_),
      members(std::move(members_)),
      name(std::move(name_)),
      arrivals(members->ranks.size()),
      own(members->of(members->process)),
      far_(far) {}

namespace {

bool fits(const Call& mine, int my_index, const Call& other, int other_index) {
  if (!mine.agrees_with(other)) return false;
  if (mine.op != Collective::all_to_all) return true;
  const auto me = static_cast<std::size_t>(my_index), they = static_cast<std::size_t>(other_index);
  return mine.in_splits[they] == other.out_splits[me] &&
         mine.out_splits[they] == other.in_splits[me];
}

}  // namespace

bool Round::arrive(int index, Arrival arrival) {
  auto& mine = arrivals[static_cast<std::size_t>(index)];
  mine = std::move(arrival);
  mine.here = true;
  ++here_;
  for (const int i : own) {
    const auto& other = arrivals[static_cast<std::size_t>(i)];
    if (!other.here || i == index || fits(mine.call, index, other.call, i)) continue;
    fail(mw::comm::disagreement(members->axis, name, members->ranks[static_cast<std::size_t>(i)],
                                other.call, members->ranks[static_cast<std::size_t>(index)],
                                mine.call),
         Cause::itself);
    return false;
  }
  return true;
}

bool Round::arrived(Peer& peer, std::uint32_t their_handle, const std::vector<Call>& calls) {
  peer.handle = their_handle;
  peer.arrived = true;
  for (const int mine : own) {
    const Call& call = arrivals[static_cast<std::size_t>(mine)].call;
    for (std::size_t k = 0; k < peer.members.size(); ++k) {
      const int theirs = peer.members[k];
      if (fits(call, mine, calls[k], theirs)) continue;
      // The lower index first, so that all processes say the same.
      const bool me_first = mine < theirs;
      const int first = me_first ? mine : theirs, second = me_first ? theirs : mine;
      fail(mw::comm::disagreement(
               members->axis, name, members->ranks[static_cast<std::size_t>(first)],
               me_first ? call : calls[k], members->ranks[static_cast<std::size_t>(second)],
               me_first ? calls[k] : call),
           Cause::itself);
      return false;
    }
  }
  return true;
}

Round::Peer* Round::peer_of(int process) {
  for (auto& peer : peers) {
    if (peer.process == process) return &peer;
  }
  return nullptr;
}

bool Round::complete() const {
  if (summed_ < owned_.size()) return false;
  return std::all_of(peers.begin(), peers.end(), [](const Peer& peer) {
    return peer.arrived && peer.out[plain].through() && peer.out[parts].through() &&
           peer.in[plain].through() && peer.in[parts].through();
  });
}

void Round::set(State state) {
  state_.store(state, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&state_), FUTEX_WAKE_PRIVATE, INT_MAX,
          nullptr, nullptr, 0);
}

void Round::finish(Scratch& scratch) {
  scratch.give(std::move(scratch_));
  // Their last reference goes on the member's own thread, where its ledger sees it.
  for (auto& arrival : arrivals) arrival.tensors.clear();
  if (!failing_.exchange(true)) set(done);
}

bool Round::in_flight() const {
  return std::any_of(peers.begin(), peers.end(), [](const Peer& peer) {
    return !peer.out[0].requests.empty() || !peer.out[1].requests.empty() ||
           !peer.in[0].requests.empty() || !peer.in[1].requests.empty();
  });
}

void Round::fail(const mw::Problem& problem, Cause cause) {
  if (failing_.exchange(true)) return;
  problem_ = problem;
  cause_ = cause;
  set(failed);
}

void Round::throw_failure() const {
  if (cause_ == Cause::itself) throw mw::Error(problem_);
  if (cause_ == Cause::absence) throw mw::WaitedInVain(problem_);
  throw mw::Aborted(problem_.message, problem_.hint);
}

Round::State Round::wait_until(Clock::time_point deadline) {
  for (;;) {
    const auto now = state();
    if (now == done || now == failed) return now;
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
    if (left <= 0) return now;
    const timespec most{static_cast<time_t>(left / 1'000'000'000),
                        static_cast<long>(left % 1'000'000'000)};
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&state_), FUTEX_WAIT_PRIVATE, now, &most,
            nullptr, 0);
  }
}

std::string Round::describe() const {
  for (const int i : own) {
    const auto& one = arrivals[static_cast<std::size_t>(i)];
    if (one.here) return one.call.describe();
  }
  return "a collective";
}

}  // namespace mpi
