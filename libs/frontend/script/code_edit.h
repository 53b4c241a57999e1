// A segment's code while a pass of a script edits it: instructions by number, and verbs that move
// them as far as dataflow allows.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "meshwright/passes.h"
#include "script/instruction_filter.h"

namespace mw {

// What a verb or a directive has changed, for the note of a plan.
struct EditOutcome {
  // Instructions (of a `reduce`: buckets) that were to be changed, and that were changed.
  int asked = 0, moved = 0;
  std::int64_t places = 0;  // the sum of the places by which instructions moved
  std::string why = {};     // why the first unchanged one was not changed
  std::string later = {};   // reductions that a `reduce` leaves to the end of the step
  EditOutcome& operator+=(const EditOutcome& more);
};

class CodeEdit {
 public:
  // All three must outlive the object; `facts` are the program's. Instructions are numbered as they
  // stand at first, and keep their numbers.
  CodeEdit(Program& program, Segment& segment, const InstructionFacts& facts);

  const Program& program() const { return program_; }
  const Segment& segment() const { return segment_; }
  std::vector<int> find(const InstructionFilter& filter) const;  // in the code's order
  Json facts(int number) const;
  const Instruction& at(int number) const { return segment_.code[place_[number]]; }
  int size() const { return static_cast<int>(place_.size()); }
  // "start all-to-all of layers.0.moe.dispatch (instruction 12 of backward)"
  std::string text(int number) const;

  // Moves an instruction up, or down, past instructions that `over` takes (null: all), by `most`
  // places at most, while dataflow allows.
  EditOutcome hoist(int number, const InstructionFilter* over, int most);
  EditOutcome sink(int number, const InstructionFilter* over, int most);
  // Puts all of `first` before all of `then` (order_before). Throws Error, which names two of them,
  // where dataflow forbids this.
  EditOutcome order(const std::vector<int>& first, const std::vector<int>& then, Moves moves);
  // Puts collectives on a stream, given the instructions that start them. Throws Error for others.
  EditOutcome stream(const std::vector<int>& numbers, const std::string& name);
  // Has at most `most` of these transfers under way: the others start once an earlier one is
  // awaited.
  EditOutcome budget(const std::vector<int>& numbers, int most);
  // Has each of these transfers start before the code of the layer that is `layers_ahead` layers
  // before the one that reads it.
  EditOutcome issue(const std::vector<int>& numbers, int layers_ahead);

 private:
  bool takes(const InstructionFilter& filter, const Instruction& i) const;
  EditOutcome go(int number, std::size_t to, bool up, const InstructionFilter* over);
  // Why the instruction goes no further up, or down, toward `to`; `over` as in hoist().
  std::string why_still(int number, std::size_t to, bool up, const InstructionFilter* over) const;
  // Why the instruction at `then` cannot stand before the one at `first`. `chosen`: a verb that may
  // choose the order of a stream's transfers asks.
  std::string why_ordered(std::size_t first, std::size_t then, bool chosen) const;
  std::vector<std::size_t> places_of(const std::vector<int>& numbers) const;
  int wait_of(int start) const;
  // The instructions that start a transfer which is awaited in this segment.
  std::vector<int> awaited_here(const std::vector<int>& numbers) const;
  std::size_t issue_place(int start, int layers_ahead) const;

  Program& program_;
  Segment& segment_;
  const InstructionFacts& facts_;
  std::vector<std::size_t> place_;  // place of each number
  std::vector<int> number_;         // number at each place
};

}  // namespace mw
