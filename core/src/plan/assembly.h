// The programs of all stages while they are being built, one virtual stage after the other.
#pragma once

#include <string>
#include <vector>

#include "meshwright/passes.h"
#include "meshwright/program.h"
#include "plan/derive.h"
#include "plan/stages.h"

namespace mw {

// What the forward of a virtual stage leaves to the builder of its backward: the order of ops and
// views, and their slots.
struct Tape {
  struct Entry {
    enum Kind { op, view } kind;
    int index;
  };
  std::vector<Entry> entries;
  std::vector<int> value_slot, view_slot;  // by value, by view; -1: no slot yet
  std::vector<Slots> saved;                // by op: slots of what forward saves
};

// The gradient of a crossing. It leaves the later virtual stage through one slot, whichever form of
// backward made it, and arrives in a slot of the earlier stage's program. They are the same slot if
// one stage holds both.
struct Boundary {
  int leaving = -1, arriving = -1;
  int sending = -1;  // pending number of the send
};

struct Assembly {
  const Graph& graph;
  const Derived& derived;
  const Partition& partition;
  std::vector<Program>& programs;  // by stage
  // by stage and value: index into Program::parameters, or -1
  std::vector<std::vector<int>> parameter_of;
  std::vector<Tape> tapes;           // by virtual stage
  std::vector<Boundary> boundaries;  // by crossing

  int stage(int vstage) const { return partition.stage_of[vstage]; }
  bool local(const Crossing& crossing) const { return stage(crossing.from) == stage(crossing.to); }
  // The name of a segment: "forward", or "forward.2" where there are several virtual stages.
  std::string name(const char* kind, int vstage) const;
};

// A slot for a value of the graph (or its gradient, which the caller renames).
Slot slot_of(const Program& program, int value, const Layout& layout);
// The start or the wait of a send or recv of a crossing's value or gradient; `slot` is its input or
// its output.
Instruction transfer(const Assembly& assembly, int crossing, bool gradient, Move::Kind kind,
                     Code code, int slot, int pending);
// The segment that begins or awaits a virtual stage's transfers: created if it is not there yet.
Segment& transfers(Assembly& assembly, SegmentKind kind, int vstage, bool gradient);

// Reserves so many more slots: to grow step by step would move all of them again and again.
void make_room(Program& program, std::size_t slots);

// Appends the instructions of `list` that start from `slot` in `layout`; returns the last slot.
int emit_moves(Program& program, std::vector<Instruction>& code, const std::vector<Move>& list,
               int slot, const Layout& layout, const char* phase);

// An op's compute in ring steps: while one step computes, the shards of rotating operands go on to
// the next rank. A rotating operand's gradient follows it round: each step adds its share while the
// next shard is on its way, and after the last step the gradient comes home.
Instruction in_ring(Program& program, Instruction instruction, const Rotation& rotation);

void build_forward(Assembly& assembly, int vstage);
// Appends segment "backward", or, split, segments "dgrad" and "wgrad". To be called after those of
// later virtual stages.
void build_backward(Assembly& assembly, int vstage, bool split);

}  // namespace mw
