// Collects the posts of stages, and finds which transfers are over where each stage makes its
// transfers one after the other.
#include "prove/mail.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace mw::proving {

int Mail::arrive(const RankSet& ranks, int stage, Post post) {
  Rounds& all = rounds[ranks];
  const int round = all.begun[stage]++;
  if (round >= static_cast<int>(all.list.size()))
    all.list.resize(static_cast<std::size_t>(round) + 1);
  all.list[round].posts.emplace(stage, std::move(post));
  begin(stage, {{-1, -1, -1, -1}, ranks, round});
  return round;
}

void Mail::begin(int stage, const Transfer& transfer) {
  if (!strict_) return;
  lines_[stage].push_back(transfer);
  advance();
}

std::vector<int> Mail::stages_of(const Transfer& transfer) const {
  if (transfer.round < 0) return {std::get<0>(transfer.key), std::get<1>(transfer.key)};
  if (!transfer.ranks.stages.empty()) return transfer.ranks.stages;
  std::vector<int> all(lines_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// A transfer is over once it is the next one of all stages that take part in it.
void Mail::advance() {
  for (bool moved = true; moved;) {
    moved = false;
    for (const std::deque<Transfer>& line : lines_) {
      if (line.empty()) continue;
      const Transfer next = line.front();
      const std::vector<int> stages = stages_of(next);
      const bool all = std::all_of(stages.begin(), stages.end(), [&](int stage) {
        return !lines_[stage].empty() && lines_[stage].front() == next;
      });
      if (!all) continue;
      for (const int stage : stages) lines_[stage].pop_front();
      over_.insert(next);
      moved = true;
    }
  }
}

}  // namespace mw::proving
