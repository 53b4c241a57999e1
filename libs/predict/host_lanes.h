// Times the copies between a rank's device and host memory that run beside compute: when each copy
// begins and ends, and which instruction awaits it, by the executor's rules (run/host_copy.h).
#pragma once

#include <vector>

#include "meshwright/engine/footprint.h"

namespace mw {

// One lane for each direction of the host link: both directions carry copies at once, and copies in
// one direction follow each other.
class HostLanes {
 public:
  // `rank` must outlive this object.
  explicit HostLanes(const RankView& rank);

  // The storages that the instruction uses and that host copies read or write. The instruction
  // awaits copies of these storages that are under way.
  std::vector<int> awaits(const Instruction& instruction) const;
  // The storage that a transfer between persistent slots reads, if it is copied to or from host
  // memory: the transfer follows these copies, and the rank awaits none of them. -1: no such
  // storage.
  int follows(const Instruction& instruction) const;
  // When the copies of a microbatch to or from these storages are over.
  double there(const std::vector<int>& storages, int microbatch) const;
  // When all copies to host memory that were begun so far are over.
  double left() const;
  // Whether the copy begins only after left(). A copy between two persistent slots does not: while
  // such copies wait, they hold no more memory.
  bool awaits_left(const HostCopy& copy) const;
  // When the copies to or from this persistent slot in host memory are over.
  double on_host(int slot) const;

  struct Copy {
    double begin = 0, end = 0;
  };
  // Begins a copy at `clock`, which is no earlier than the end of what the copy awaits, and returns
  // its times.
  Copy begin(const HostCopy& copy, double seconds, int microbatch, double clock);

  // A copy under way, relative to a moment and a microbatch.
  struct Underway {
    double end = 0;
    int device = -1, host = -1, microbatch = 0;
    bool leaves = false, lasts = false;  // `lasts`: copy of a persistent slot, of no microbatch
    bool of(int which) const { return lasts || microbatch == which; }
  };
  struct State {
    double out = 0, in = 0;  // seconds until each lane is free
    std::vector<Underway> copies;
    bool quiet() const { return copies.empty() && out <= 0 && in <= 0; }
    // Whether the states are equal to the nanosecond.
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
  std::vector<bool> copied_;  // by storage: host copies read or write it; empty: none do
  double out_ = 0, in_ = 0;   // when each lane is free
  std::vector<Underway> underway_;
};

}  // namespace mw
