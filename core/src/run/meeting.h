// Where the ranks of this process bring together what each of them knows, without a word to other
// processes.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "meshwright/engine/away.h"
#include "meshwright/world.h"

namespace mw {

// Every rank comes to the same meetings in the same order, and brings a value to each. Of a meeting
// the first rank takes all values, gives one answer to all ranks, or does both in this order. What
// waits throws Aborted where a rank has failed and what is waited for will not come.
template <class T>
class Meeting {
 public:
  explicit Meeting(std::size_t ranks) : next_(ranks, 0), failed_(ranks, false) {}

  // Takes the value of the rank in this place, and returns the number of its meeting.
  std::uint64_t put(std::size_t place, T value) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = next_[place]++;
    Round& round = round_of(number);
    round.values[place] = std::move(value);
    if (++round.came == next_.size()) changed_.notify_all();
    return number;
  }
  // All values of a meeting, by place, once they are there. A rank that fails after it has brought
  // its own does not take the meeting away. `answered`: an answer is to follow.
  std::vector<T> wait_for_all(std::uint64_t number, bool answered) {
    std::unique_lock lock(mutex_);
    Round& round = round_of(number);
    const auto complete = [&] { return round.came == next_.size(); };
    wait_away(changed_, lock, [&] { return complete() || lacks_for_good(number); });
    if (!complete()) throw Aborted("Stopped because another rank failed.");
    std::vector<T> values = std::move(round.values);
    if (!answered) rounds_.erase(number);
    return values;
  }
  void answer(std::uint64_t number, T value) {
    const std::lock_guard lock(mutex_);
    round_of(number).answer = std::move(value);
    changed_.notify_all();
  }
  T wait_for_answer(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    Round& round = round_of(number);
    wait_away(changed_, lock, [&] {
      return round.answer || std::find(failed_.begin(), failed_.end(), true) != failed_.end();
    });
    if (!round.answer) throw Aborted("Stopped because another rank failed.");
    T value = *round.answer;
    if (++round.answered == next_.size()) rounds_.erase(number);
    return value;
  }
  void fail(std::size_t place) {
    const std::lock_guard lock(mutex_);
    failed_[place] = true;
    changed_.notify_all();
  }

 private:
  struct Round {
    std::vector<T> values;
    std::size_t came = 0, answered = 0;
    std::optional<T> answer;
  };
  Round& round_of(std::uint64_t number) {
    Round& round = rounds_[number];
    round.values.resize(next_.size());
    return round;
  }
  bool lacks_for_good(std::uint64_t number) const {
    for (std::size_t place = 0; place < next_.size(); ++place)
      if (failed_[place] && next_[place] <= number) return true;
    return false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> next_;  // by place
  std::vector<bool> failed_;
  std::map<std::uint64_t, Round> rounds_;
};

}  // namespace mw
