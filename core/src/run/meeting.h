// Where the ranks of this process bring together what each of them knows, without a word to other
// processes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "meshwright/engine/away.h"
#include "meshwright/world.h"

namespace mw {

// Every rank comes to the same meetings in the same order; its `place`, from 0 on, says which rank
// it is. A call that waits throws Aborted where a rank has failed on its way to that meeting.
template <class T>
class Meeting {
 public:
  explicit Meeting(std::size_t ranks) : next_(ranks, 0), failed_(ranks, false) {}

  // Returns the values of all ranks, by place, on the first rank; empty on the others, which do not
  // wait.
  std::vector<T> gather(std::size_t place, T value) {
    std::unique_lock lock(mutex_);
    const std::uint64_t number = next_[place]++;
    Round& round = rounds_[number];
    round.values.resize(next_.size());
    round.values[place] = std::move(value);
    if (++round.came == next_.size()) changed_.notify_all();
    if (place > 0) return {};
    wait(lock, number, [&] { return round.came == next_.size(); });
    std::vector<T> values = std::move(round.values);
    rounds_.erase(number);
    return values;
  }
  // Returns the first rank's value, on all ranks.
  T broadcast(std::size_t place, T value) {
    std::unique_lock lock(mutex_);
    const std::uint64_t number = next_[place]++;
    Round& round = rounds_[number];
    if (place == 0) {
      round.values.push_back(std::move(value));
      changed_.notify_all();
    }
    wait(lock, number, [&] { return !round.values.empty(); });
    T told = round.values.front();
    if (++round.came == next_.size()) rounds_.erase(number);
    return told;
  }
  void fail(std::size_t place) {
    const std::lock_guard lock(mutex_);
    failed_[place] = true;
    changed_.notify_all();
  }

 private:
  struct Round {
    std::vector<T> values;
    std::size_t came = 0;
  };
  template <class There>
  void wait(std::unique_lock<std::mutex>& lock, std::uint64_t number, const There& there) {
    const auto lacks = [&] {
      for (std::size_t place = 0; place < next_.size(); ++place)
        if (failed_[place] && next_[place] <= number) return true;
      return false;
    };
    wait_away(changed_, lock, [&] { return there() || lacks(); });
    if (!there()) throw Aborted("Stopped because another rank failed.");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> next_;  // by place: the meeting that the rank comes to next
  std::vector<bool> failed_;
  std::map<std::uint64_t, Round> rounds_;
};

}  // namespace mw
