// Proves that the programs of a plan compute what one rank would, before they run: it follows every
// instruction of every stage, for one abstract rank that stands for all, and refuses what cannot be
// followed. It reads the finished programs alone, and nothing of what made them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/program.h"

namespace mw {

struct ProveOptions {
  // Supposes transfers that begin only when all of their ranks have come to them, as a backend of
  // one stream has them: then starts can wait for each other, too.
  bool strict = false;
};

// How a tensor has to lie on an axis, and how it was found.
struct AxisDifference {
  std::string axis;           // "tp"; of an atom of an axis "dp.1"
  std::string needed, found;  // "R", "S(heads)", "P", "P(max)"
};

// Why a plan is refused: the first instruction that could not be followed. Where a number is -1 or
// a text is empty, it does not apply.
struct Refusal {
  std::string code;  // "prove.place", ...; docs/errors.md has all of them
  std::string key;   // what of the experiment is at fault: "plan[2]"; empty: nothing is known
  int stage = -1;    // of the pipeline
  int segment = -1;  // index into Program::segments
  int run = -1;      // index into Program::timeline
  int microbatch = -1;
  int instruction = -1;  // index into the segment's code
  int ring_step = -1;    // of an instruction that stands for a ring
  int slot = -1;         // the tensor that is wrong
  std::string where;     // "stage 3, backward.1.last, run 212 (microbatch 7), instruction 184"
  std::string listed;    // the instruction, as a listing has it
  std::string message;   // what is wrong, a sentence without the place
  std::vector<AxisDifference> axes;  // where places differ
  std::string written;               // by which instruction the slot was written last
  std::string by;                    // the pass without which it could be followed, and whose it is
  // The contributions that a gradient lacks, and those that are in it twice.
  std::vector<std::string> missing, twice;
  std::string mend;  // the nearest single move that would make it right

  // All of it in lines, for people.
  std::string text() const;
  Problem problem() const;  // of Stage::plan
};

// What a proof takes for granted of an op, since it knows no kernel: that a piece of it, on parts
// as its cut says, makes the part of the whole, or what sums up to it.
struct Lemma {
  int op = -1;       // the first op of the graph of that kind
  std::string kind;  // "linear"
  Piece piece = Piece::forward;
  std::vector<std::string> cut;     // dims that axes cut, outermost first: "heads"
  std::vector<std::string> follow;  // dims that follow these: "kv_heads"
  bool carried = false;             // an operand is a sum over ranks and stays one
  bool ring = false;                // computed in ring steps
  friend auto operator<=>(const Lemma&, const Lemma&) = default;
  friend bool operator==(const Lemma&, const Lemma&) = default;
};

struct Proof {
  std::vector<Refusal> refusals;  // empty: proved
  // Bounds of the claim: what a hook's inexact sum loses ("powersgd of bucket 2").
  std::vector<std::string> notes;
  std::vector<Lemma> lemmas;      // each once, in order
  std::int64_t instructions = 0;  // of all segments of all stages
  std::int64_t rules = 0;         // applied: instructions of all runs
  std::int64_t runs = 0;          // of segments, of all stages
  int stages = 0, parameters = 0, microbatches = 0;
  double seconds = 0;
  bool proved() const { return refusals.empty(); }
  // "proved: 16 stages, 5,904 instructions, 1,072 runs, 94 parameters x 64 microbatches counted
  // once; no deadlock; 0.31 s; 31 lemmas", or the refusals.
  std::string text() const;
};

// Throws nothing but what memory and interrupts do. `stages`: the programs of a plan, one for each
// stage, in order, after all passes.
Proof prove(const std::vector<Program>& stages, const ProveOptions& options = {});

}  // namespace mw
