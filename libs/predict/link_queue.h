// When the transfers of one link go, on a rank's clock. Those of one group of ranks go in the order
// in which they are begun, as a communicator has them (Executor::group), and one that waits for
// what it sends holds up those behind it; meanwhile the link is free for other groups.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

namespace mw {

class LinkQueue {
 public:
  // One at a time goes on the link. A transfer that finds others before it in a time in which it
  // could begin goes on behind them, so it may have several.
  struct Piece {
    double begin = 0, end = 0;
    int key = -1;  // of the transfer
  };
  struct Time {
    double begin = 0, end = 0;
  };

  // Takes a transfer that is begun at `clock`, which is no earlier than that of the last; what it
  // sends is there at `ready`. Those that were begun before go when they were said to.
  Time begin(int group, int key, double clock, double ready, double seconds) {
    std::erase_if(pieces_, [&](const Piece& piece) { return piece.end <= clock; });
    double& over = over_[group];
    double at = std::max({clock, ready, over}), left = seconds;
    auto next = std::find_if(pieces_.begin(), pieces_.end(),
                             [&](const Piece& piece) { return piece.end > at; });
    bool begun = false;
    Time time;
    const auto go = [&](double until) {
      if (!begun) time.begin = at;
      begun = true;
      time.end = until;
      if (until > at) next = pieces_.insert(next, {at, until, key}) + 1;
    };
    while (next != pieces_.end()) {
      const double gap = next->begin - at;
      if (gap > 0) {
        if (left <= gap) break;
        const double until = next->begin;
        go(until);
        left -= gap;
      }
      at = (next++)->end;
    }
    go(at + left);
    return {time.begin, over = time.end};
  }

  // In their order; of transfers that are over, there may be none.
  const std::vector<Piece>& pieces() const { return pieces_; }
  // When all are over.
  double free() const { return pieces_.empty() ? 0 : pieces_.back().end; }

 private:
  std::vector<Piece> pieces_;
  std::map<int, double> over_;  // by group: when its last is
};

}  // namespace mw
