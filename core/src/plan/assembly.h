// The programs of all stages while they are being built, one virtual stage after the other.
#pragma once

#include <string>
#include <vector>

#include "meshwright/passes.h"
#include "meshwright/program.h"
#include "plan/derive.h"
#include "plan/stages.h"

namespace mw {

// What the forward of a virtual stage leaves behind: the order of ops and views, and their slots.
struct Tape {
  struct Entry {
    enum Kind { op, view } kind;
    int index;
  };
  std::vector<Entry> entries;
  std::vector<int> value_slot, view_slot;  // -1: not materialised
  std::vector<Slots> saved;                // for each op
};

// The way back of a crossing: the gradient leaves the later virtual stage through one slot,
// whichever form of backward made it, and arrives in one of the earlier stage's program. They are
// the same slot if one stage holds both.
struct Boundary {
  int leaving = -1, arriving = -1;
  int sending = -1;  // pending number of the send
};

struct Assembly {
  const Graph& graph;
  const Derived& derived;
  const Partition& partition;
  std::vector<Program>& programs;              // by stage
  std::vector<std::vector<int>> parameter_of;  // by stage and value: Program::parameters, or -1
  std::vector<Tape> tapes;                     // by virtual stage
  std::vector<Boundary> boundaries;            // by crossing

  int stage(int vstage) const { return partition.stage_of[vstage]; }
  bool local(const Crossing& crossing) const { return stage(crossing.from) == stage(crossing.to); }
  // "forward", or "forward.2" where there are several virtual stages.
  std::string name(const char* kind, int vstage) const;
};

// A slot for a value of the graph (or its gradient, which the caller renames).
Slot slot_of(const Program& program, int value, const Layout& layout);
// Start or wait of a send or recv of what crosses; `slot` is its input or its output.
Instruction transfer(const Assembly& assembly, int crossing, bool gradient, Move::Kind kind,
                     Code code, int slot, int pending);
// A segment that begins or awaits transfers: creates it if it is not there yet.
Segment& transfers(Assembly& assembly, SegmentKind kind, int vstage, bool gradient);

// Reserves so many more slots: to grow step by step is to move them all again and again.
void make_room(Program& program, std::size_t slots);

// Appends the instructions of `list` that start from `slot` in `layout`; returns the last slot.
int emit_moves(Program& program, std::vector<Instruction>& code, const std::vector<Move>& list,
               int slot, const Layout& layout, const char* phase);

// A compute of an op in ring steps: while one computes, what rotates goes on to the next rank. The
// gradient of what rotates follows it round: each step adds its share while the next shard is on
// its way, and after the last it comes home.
Instruction in_ring(Program& program, Instruction instruction, const Rotation& rotation);

void build_forward(Assembly& assembly, int vstage);
// Appends segment "backward", or, split, segments "dgrad" and "wgrad". After those of later virtual
// stages.
void build_backward(Assembly& assembly, int vstage, bool split);

}  // namespace mw
