// Counts what a step computes and sends: floating-point operations of all ranks, and the bytes of
// one rank's collectives.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "meshwright/engine/rank_view.h"
#include "meshwright/ledger.h"
#include "meshwright/program.h"

namespace mw {

// Floating-point operations of a step, all ranks together.
struct Flops {
  // By the field's convention (Narayanan et al. 2021, appendix; PaLM, appendix B): every op of the
  // whole model once forward and once backward, attention scores in full, elementwise work not.
  double model = 0;
  // The operations that the ranks run, by the convention of `model`: work that several ranks repeat
  // counts for each of them, recomputed work counts again. Equal to `model` if nothing is repeated.
  double hardware = 0;
};

// Looks at each op once, however many ranks there are: a convention flop belongs to one point of an
// op's iteration space, so a cut op sums to the whole one, and an axis that cuts nothing of an op
// repeats it. `documents`: what documents leave of the work of attention.
Flops count_flops(const std::vector<Program>& stages, double documents = 1);

// The dims of an op that no axis cuts.
LocalDims whole_dims(const Graph& graph, const Op& op);

// A sentence for each kind of op whose price lacks something that its author has not declared: "the
// op scan declares no FLOPs, …".
std::vector<std::string> undeclared_work(const Graph& graph);

// How often each segment and lane of it runs in a step, by kind of microbatch (RankViews::kind).
std::map<std::tuple<int, int, int>, std::int64_t> segment_runs(const RankViews& ranks,
                                                               const Program& program);

// Predicted communication of one rank and step, as its Communicators will post it.
using Traffic = std::map<CommunicationKey, CommunicationUse>;
// The calls and bytes of one rank in a step; seconds are left at 0.
Traffic forecast_traffic(const RankView& rank);

// Raises each row of `most` to that of the rank that sends more, with the calls of the rank that
// makes more, as a run's table has it: calls do not depend on what tokens choose, bytes may.
void take_most(Traffic& most, const Traffic& other);

}  // namespace mw
