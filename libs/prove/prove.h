// Proves that the programs of a plan compute what one rank would, before they run: it follows every
// instruction of every stage, for one abstract rank that stands for all, and refuses what cannot be
// followed. It reads the finished programs alone, and nothing of what made them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/outer_steps.h"
#include "meshwright/program.h"

namespace mw {

struct ProveOptions {
  // Assumes that each stage's transfers with other stages run one by one, in the order of their
  // starts, as on a backend with a single stream. Then the order of starts can deadlock.
  bool strict = false;
};

// How a tensor must be placed on one mesh axis, and how the proof found it.
struct AxisDifference {
  std::string axis;           // "tp", or "dp.1" for one atom of an axis
  std::string needed, found;  // placements: "R", "S(heads)", "P", "P(max)"
};

// Why a plan is refused: the first instruction that could not be followed. Where a number is -1 or
// a text is empty, it does not apply.
struct Refusal {
  std::string code;  // "prove.place", ...; docs/errors.md has all of them
  std::string key;   // the key of the experiment that is at fault: "plan[2]"; empty: unknown
  int stage = -1;    // index of the pipeline stage
  int segment = -1;  // index into Program::segments
  int run = -1;      // index into Program::timeline
  int microbatch = -1;
  int instruction = -1;  // index into the segment's code
  int ring_step = -1;    // step inside an instruction that stands for a whole ring
  int slot = -1;         // index of the slot whose tensor is wrong
  std::string where;     // "stage 3, backward.1.last, run 212 (microbatch 7), instruction 184"
  std::string listed;    // the instruction, as a line of a program listing
  std::string message;   // what is wrong, a sentence that does not say where
  std::vector<AxisDifference> axes;  // the axes on which the placement is wrong
  std::string written;               // the instruction that last wrote the slot
  std::string by;                    // the pass that made the plan unprovable, and its strategy
  // Names of the terms that a gradient lacks, and of those that it contains twice.
  std::vector<std::string> missing, twice;
  std::string mend;  // the nearest single correction, mostly a move: "all-reduce over tp"

  // The whole refusal as lines for people to read.
  std::string text() const;
  Problem problem() const;  // as a problem of Stage::plan
};

// An assumption of a proof about an op, as it knows no kernel: that a piece of the op, run on the
// operand shards of its cut, makes the shard of the whole result, or shares that add up to it.
struct Lemma {
  int op = -1;       // the graph's first op of that kind (Graph::kind)
  std::string kind;  // "linear"
  Piece piece = Piece::forward;
  std::vector<std::string> cut;     // dims that mesh axes cut, outermost first: "heads"
  std::vector<std::string> follow;  // dims that are cut along with those: "kv_heads"
  bool carried = false;             // an operand is a Partial sum over ranks, and so is the result
  bool ring = false;                // the op is computed in ring steps
  friend auto operator<=>(const Lemma&, const Lemma&) = default;
  friend bool operator==(const Lemma&, const Lemma&) = default;
};

struct Proof {
  std::vector<Refusal> refusals;  // empty: proved
  // Limits of the claim, in words: inexact reduction hooks, and op constants that nothing checks.
  std::vector<std::string> notes;
  std::vector<Lemma> lemmas;      // assumptions of the proof, each once, sorted
  std::int64_t instructions = 0;  // instructions in all segments of all stages
  std::int64_t rules = 0;         // instructions followed, over all segment runs
  std::int64_t runs = 0;          // segment runs of all stages
  int stages = 0, parameters = 0, microbatches = 0;
  double seconds = 0;
  bool proved() const { return refusals.empty(); }
  // A line of statistics, or the refusals: "proved: 16 stages, 5,904 instructions, 1,072 runs,
  // 94 parameters x 64 microbatches counted once; no deadlock; 0.31 s; 31 lemmas".
  std::string text() const;
};

// Proves the finished programs of a plan, one for each stage, in the order of stages. Throws only
// std::bad_alloc and Stopped (engine/interrupt.h).
Proof prove(const std::vector<Program>& stages, const ProveOptions& options = {});

// Adds to the proof of a plan that of the programs of its outer steps (outer_plan).
void prove_outer_steps(const std::vector<Program>& stages, const OuterEvent& event, Proof& proof);

}  // namespace mw
