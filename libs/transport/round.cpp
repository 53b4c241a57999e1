// The life of a round: members of this process arrive, members of other processes arrive, the last
// piece comes or the round fails; and how a member waits for the end.
#include "transport/round.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace mw::transport {

using comm::Call;
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

std::vector<int> Members::processes() const {
  std::vector<int> list;
  for (const int one : process_of) {
    if (std::find(list.begin(), list.end(), one) == list.end()) list.push_back(one);
  }
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

void Round::refuse(int index, const Call& call, int other, const Call& other_call) {
  fail(comm::disagreement(members->axis, name, rank(index), call, rank(other), other_call),
       Cause::itself);
}

void Round::arrive(int index, Arrival arrival) {
  const auto me = static_cast<std::size_t>(index);
  auto& mine = arrivals[me];
  mine = std::move(arrival);
  mine.here = true;
  ++here_;
  for (const int i : own) {
    const auto& other = this->arrival(i);
    if (!other.here || i == index || mine.call.fits(me, other.call, static_cast<std::size_t>(i)))
      continue;
    return refuse(i, other.call, index, mine.call);
  }
}

void Round::arrived(Peer& peer, std::uint32_t their_handle, const std::vector<Call>& calls) {
  peer.handle = their_handle;
  peer.arrived = true;
  for (const int mine : own) {
    const Call& call = arrival(mine).call;
    for (std::size_t k = 0; k < peer.members.size(); ++k) {
      const int theirs = peer.members[k];
      if (call.fits(static_cast<std::size_t>(mine), calls[k], static_cast<std::size_t>(theirs)))
        continue;
      // The lower index first, so that all processes say the same.
      return mine < theirs ? refuse(mine, call, theirs, calls[k])
                           : refuse(theirs, calls[k], mine, call);
    }
  }
}

bool Round::complete() const {
  return summed_ == owned_.size() && std::all_of(peers.begin(), peers.end(), [](const Peer& peer) {
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
  // The tensors' last reference then goes on the member's own thread, where its memory ledger sees
  // it.
  for (auto& arrival : arrivals) arrival.tensors.clear();
  if (!failing_.exchange(true)) set(done);
}

void Round::fail(const Problem& problem, Cause cause) {
  if (failing_.exchange(true)) return;
  problem_ = problem;
  cause_ = cause;
  set(failed);
}

void Round::wait_until(Clock::time_point deadline) {
  for (auto now = state(); now != done && now != failed; now = state()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
    if (left <= 0) return;
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

}  // namespace mw::transport
