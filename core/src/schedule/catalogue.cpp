// The list of pipeline schedulers that scripts can name.
#include <algorithm>

#include "schedule/make.h"

namespace mw {

const std::vector<const Scheduler*>& schedulers() {
  static const FixedScheduler gpipe(
      "gpipe", "all forwards, then all backwards (Huang et al. 2019, GPipe)", 1, false, fill_gpipe);
  static const FixedScheduler one_f_one_b(
      "1f1b", "one forward, one backward, at most p - i microbatches held (Narayanan et al. 2021)",
      1, false, fill_1f1b);
  static const FixedScheduler interleaved(
      "interleaved", "1F1B over several chunks a stage, bubble / chunks (Narayanan et al. 2021)", 0,
      false, fill_interleaved);
  static const FixedScheduler looped_bfs(
      "looped-bfs", "all microbatches through chunk after chunk (Lamy-Poirier 2022)", 0, false,
      fill_looped_bfs);
  static const FixedScheduler dualpipev(
      "dualpipev", "DualPipe cut in half: forwards and backwards cross in a V (DeepSeek 2025)", 2,
      true, fill_dualpipev);
  static const std::vector<const Scheduler*> all = {
      &gpipe,           &one_f_one_b,       &interleaved,
      &looped_bfs,      &zb_h1_scheduler(), &zb_h2_scheduler(),
      &zbv_scheduler(), &dualpipev};
  return all;
}

const Scheduler* find_scheduler(const std::string& name) {
  const auto& all = schedulers();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Scheduler* s) { return s->name() == name; });
  return found == all.end() ? nullptr : *found;
}

}  // namespace mw
