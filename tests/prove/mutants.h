// Mutants: finished programs with one thing changed, whether the prover refuses them, and what they
// compute beside what one rank does.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "meshwright/program.h"
#include "support/mixes.h"

namespace mw::test {

// All of all_mixes(), and more: each schedule, sizes that no ways divide, what hooks, experts,
// matrices, recompute and offload add.
std::vector<NamedMix> mutation_mixes();

using Stages = std::vector<Program>;

// One change of a plan's programs. `kind`: of which sort, as the table has it; `what`: of what.
struct Mutation {
  std::string kind, what;
  std::function<void(Stages&)> apply;
};
// Every one that there is, in one order: instructions dropped, doubled, swapped, each of their
// fields changed, releases moved, runs of the timeline dropped, doubled, swapped.
std::vector<Mutation> mutations_of(const Stages& stages);

// What became of a mutant. Unless `ran`, the rest is empty.
struct Fate {
  bool refused = false;
  std::string code;  // of the refusal
  std::string said;  // the refusal's message
  bool ran = false;
  bool equal = false;  // loss, norm, gradients and parameters are one rank's on every rank
  std::string why;     // if they are not
  bool died = false;   // its process did, in the prover or (if `ran`) in the run
  double prove_seconds = 0;
};

struct Order {
  int mutation = 0;          // index into the mutations
  bool run_refused = false;  // it is run even where it is refused
  bool run_accepted = true;
};

// Proves and runs mutants of a mix, in a process of its own, which is begun anew where a mutant
// kills or hangs it. `overlooked`: a code that is taken for no refusal (a rule that is removed).
class Subject;
std::vector<Fate> fates(const Subject& subject, const std::vector<Mutation>& mutations,
                        const std::vector<Order>& orders, const std::string& overlooked = "");

// Counts by kind of mutation.
struct Count {
  int mutants = 0, refused = 0, harmless = 0, missed = 0;
  int tried = 0, false_alarms = 0;  // of the refused: run, and equal
};
using Table = std::map<std::string, Count>;
void add(Table& table, const Mutation& mutation, const Fate& fate);
std::string text_of(const Table& table);

}  // namespace mw::test
