// Schedules the transfers of one link on a rank's clock. Transfers of one group of ranks go in the
// order in which they are begun, as a communicator has them (Executor::group). A transfer that
// waits for its data holds up the later ones of its group; meanwhile the link is free for other
// groups.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

namespace mw {

class LinkQueue {
 public:
  // A time in which one transfer has the link. A transfer fills the gaps between pieces that were
  // placed before, so it may have several pieces.
  struct Piece {
    double begin = 0, end = 0;
    int key = -1;  // communication key of the transfer
  };
  struct Time {
    double begin = 0, end = 0;
  };

  // Places a transfer that is begun at `clock`, which is no earlier than in the last call; its data
  // is there at `ready`. Transfers that were placed before keep their times.
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

  // The pieces in order of time. Pieces of transfers that are over may be missing.
  const std::vector<Piece>& pieces() const { return pieces_; }
  // When all placed transfers are over.
  double free() const { return pieces_.empty() ? 0 : pieces_.back().end; }

 private:
  std::vector<Piece> pieces_;
  std::map<int, double> over_;  // by group: when its last transfer is over
};

}  // namespace mw
