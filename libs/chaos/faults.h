// Makes one fault happen to a run that is under way, and follows what the run makes of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include "chaos/chaos.h"
#include "chaos/disturbed_run.h"
#include "chaos/order.h"

namespace mw::chaos {

class Faults {
 public:
  Faults(DisturbedRun& run, std::int64_t ranks, bool several, std::uint64_t seed)
      : run_(run), ranks_(ranks), several_(several), random_(seed) {}

  // Whether such a fault can be made now: the run trains, and has enough checkpoints.
  bool ready_for(const FaultKind& kind) const;
  // Makes the fault, waits until the run has gone on beyond where it was, or is done, and says
  // what came of it.
  Record make(const FaultKind& kind, std::int64_t number);
  // Random numbers: from 0 to 1, and a whole one from 0 to `most`, which must not be negative.
  double share();
  std::int64_t draw(std::int64_t most);

 private:
  void happen(const FaultKind& kind, Record& record);
  void order(const FaultKind& kind, Record& record);
  void kill_member(const FaultKind& kind, Record& record);
  void stand_still(const FaultKind& kind, Record& record);
  void jump_clock(Record& record);
  void fill_disk(Record& record);
  void close_folder(Record& record);
  void flip_in_file(const FaultKind& kind, Record& record);
  void flip_in_data(Record& record);

  void await_end(Record& record);
  void await_notice(Record& record);
  void go_on(const FaultKind& kind, Record& record);
  void judge(const FaultKind& kind, Record& record) const;
  void judge_unseen(Record& record);
  bool alive() const { return !run_.over() && run_.begun() == begun_; }
  std::int64_t must_go_on_from(const FaultKind& kind) const;

  DisturbedRun& run_;
  const std::int64_t ranks_;
  const bool several_;
  std::mt19937_64 random_;
  std::int64_t begun_ = 0;  // how often it had begun before the fault
  double since_ = 0;
  std::int64_t least_ = 0;  // step from which it must go on, at least, where the fault ends it
  // A checkpoint's folder in which a bit was flipped: another of that name has another inode.
  std::filesystem::path flipped_;
  std::uint64_t flipped_inode_ = 0;
};

}  // namespace mw::chaos
