// Copies between a rank's device and host memory that go on beside what it computes, by a clock:
// when each begins and ends, and who awaits it, as the executor has them (run/host_copy.h).
#pragma once

#include <vector>

#include "meshwright/engine/footprint.h"

namespace mw {

// A lane each way: a link carries both ways at once, and copies of one way follow each other.
class HostLanes {
 public:
  // `rank` outlives it.
  explicit HostLanes(const RankView& rank);

  // Storages that copies leave or come to, of those that the instruction comes to: it awaits
  // copies of them that are under way.
  std::vector<int> awaits(const Instruction& instruction) const;
  // The storage that a transfer between slots that last reads, if copies come to it: the transfer
  // follows them, and the rank awaits none. -1: there is none.
  int follows(const Instruction& instruction) const;
  // When the copies of a microbatch to or from these storages are over.
  double there(const std::vector<int>& storages, int microbatch) const;
  // When all copies to host memory that were begun before are over.
  double left() const;
  // Whether a copy awaits left(). One between two slots that last does not: waiting copies of this
  // kind hold no more memory.
  bool awaits_left(const HostCopy& copy) const;
  // When the copies to or from this slot in host memory, which lasts, are over.
  double on_host(int slot) const;

  struct Copy {
    double begin = 0, end = 0;
  };
  // Begun at `clock`, which is no earlier than what it awaits.
  Copy begin(const HostCopy& copy, double seconds, int microbatch, double clock);

  // What is under way, seen from a moment and a microbatch.
  struct Underway {
    double end = 0;
    int device = -1, host = -1, microbatch = 0;
    bool leaves = false, lasts = false;  // a copy of a slot that lasts belongs to no microbatch
    bool of(int which) const { return lasts || microbatch == which; }
  };
  struct State {
    double out = 0, in = 0;  // seconds until each lane is free
    std::vector<Underway> copies;
    bool quiet() const { return copies.empty() && out <= 0 && in <= 0; }
    // To the nanosecond.
    bool like(const State& other) const;
  };
  State state(double clock, int microbatch) const;
  void resume(const State& state, double clock, int microbatch);

 private:
  int storage(int slot) const;
  // When the last of the copies under way for which `which` holds is over.
  template <class Which>
  double over(const Which& which) const;

  const Program& program_;
  std::vector<bool> copied_;  // by storage; empty: nothing ever is
  double out_ = 0, in_ = 0;   // when each lane is free
  std::vector<Underway> underway_;
};

}  // namespace mw
