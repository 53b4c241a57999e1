// Writes out the steps of a ring. The shards of an operand go from each rank to the next; the
// gradient of one follows it round, each step adds its share while the next shard is on its way,
// and after the last step it comes home.
#include "meshwright/engine/program_facts.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "meshwright/optimizer.h"
#include "meshwright/outer_steps.h"
#include "program/slots.h"

namespace mw {
namespace {

int in_turn(const std::vector<int>& slots, int step) {
  return slots[static_cast<std::size_t>(step) % slots.size()];
}

class RingWriter {
 public:
  RingWriter(const Program& program, const Instruction& ring)
      : program_(program), ring_(ring), last_(ring.ring_steps - 1) {}

  // Whether slots serve several steps in turn, which only shards of one size allow.
  bool in_turns() const {
    return std::all_of(ring_.ring->begin(), ring_.ring->end(), [&](const Rotating& r) {
      return static_cast<int>(std::max(r.shards.size(), r.shares.size())) < last_;
    });
  }

  void write(int step, int alike = 0) {
    step_ = step;
    alike_ = alike;
    for (const Rotating& r : *ring_.ring) {
      if (step_ < last_ && !r.shards.empty())
        emit(shift(Code::start, shard(r, step_), in_turn(r.shards, step_), r.pending));
    }
    emit(compute());
    for (const Rotating& r : *ring_.ring) {
      if (!r.shares.empty()) hand_on(r);
    }
    for (const Rotating& r : *ring_.ring) {
      if (step_ == last_ || r.shards.empty()) continue;
      Instruction wait = shift(Code::wait, shard(r, step_), in_turn(r.shards, step_), r.pending);
      if (step_ > 0 || goes_early(r)) wait.release = wait.inputs;
      emit(std::move(wait));
    }
    if (step_ < last_) return;
    for (const Rotating& r : *ring_.ring) {
      if (!r.shares.empty()) bring_home(r);
    }
    for (const int slot : ring_.release) {
      if (is_goal(slot)) code_.back().release.push_back(slot);
    }
  }

  std::vector<Instruction> take() { return std::move(code_); }

 private:
  int shard(const Rotating& r, int step) const {
    return step == 0 ? ring_.inputs[r.input] : in_turn(r.shards, step - 1);
  }
  int goal(const Rotating& r) const { return ring_.grad_inputs[r.input]; }
  bool adds(const Rotating& r) const { return ring_.accumulate[r.input]; }
  // The slot with the sum of the shares of all steps up to this one.
  int sum(const Rotating& r, int step) const {
    return step == 0 ? r.shares.front() : in_turn(r.sums, step - 1);
  }
  // The slot into which the shift of that sum brings the sum of the rank before.
  int sent_to(const Rotating& r, int step) const {
    return step == last_ && !adds(r) ? goal(r) : in_turn(r.sums, step);
  }
  bool is_goal(int slot) const {
    return std::any_of(ring_.ring->begin(), ring_.ring->end(),
                       [&](const Rotating& r) { return !r.shares.empty() && goal(r) == slot; });
  }
  // Whether the rank's own shard is released once the last operand has sent it on.
  bool goes_early(const Rotating& r) const {
    const int slot = ring_.inputs[r.input];
    if (r.shards.empty() || std::count(ring_.release.begin(), ring_.release.end(), slot) == 0)
      return false;
    const auto of_it = [&](const Rotating& other) { return ring_.inputs[other.input] == slot; };
    const auto last = std::find_if(ring_.ring->rbegin(), ring_.ring->rend(), of_it);
    return &*last == &r && !other_operand(slot);
  }
  // Whether steps after the first use the slot too, as something that does not go round.
  bool other_operand(int slot) const {
    for (int i = 0; i < static_cast<int>(ring_.inputs.size()); ++i) {
      const auto of_input = [&](const Rotating& r) { return r.input == i; };
      if (ring_.inputs[i] == slot && std::none_of(ring_.ring->begin(), ring_.ring->end(), of_input))
        return true;
    }
    for (const auto* slots :
         {&ring_.outputs, &ring_.saved, &ring_.grad_outputs, &ring_.grad_inputs}) {
      if (std::find(slots->begin(), slots->end(), slot) != slots->end()) return true;
    }
    return false;
  }
  bool goes_early(int slot) const {
    return std::any_of(ring_.ring->begin(), ring_.ring->end(), [&](const Rotating& r) {
      return ring_.inputs[r.input] == slot && goes_early(r);
    });
  }

  void emit(Instruction instruction) {
    instruction.ring_step = step_;
    instruction.ring_steps = ring_.ring_steps;
    instruction.ring_alike = alike_;
    code_.push_back(std::move(instruction));
  }

  Instruction compute() const {
    Instruction i = ring_;
    i.ring = nullptr;
    i.release.clear();
    for (const Rotating& r : *ring_.ring) {
      if (r.shards.empty()) continue;
      i.inputs[r.input] = shard(r, step_);
      if (step_ == last_) i.release.push_back(i.inputs[r.input]);
    }
    if (step_ == last_) {
      for (const int slot : ring_.release) {
        if (!goes_early(slot) && !is_goal(slot)) i.release.push_back(slot);
      }
    }
    if (i.piece == Piece::forward) return i;
    // Gradients of operands that do not go round add up in place.
    for (std::size_t k = 0; k < i.accumulate.size(); ++k) {
      if (step_ > 0) i.accumulate[k] = true;
    }
    for (const Rotating& r : *ring_.ring) {
      i.accumulate[r.input] = false;
      if (!r.shares.empty()) i.grad_inputs[r.input] = in_turn(r.shares, step_);
    }
    return i;
  }

  Instruction shift(Code code, int from, int to, int pending) const {
    Instruction i;
    i.code = code;
    i.inputs = {from};
    i.outputs = {to};
    i.move.kind = Move::Kind::shift;
    i.move.atoms = program_.rotations.at(ring_.op).atoms;
    i.pending = pending;
    i.phase = ring_.phase;
    i.label = program_.slots[from].name;
    return i;
  }

  Instruction last_addition(int to, int share) const {
    Instruction i = addition(program_, to, share);
    i.release = {share};
    return i;
  }

  // Awaits the sum that the rank before has sent in this step.
  void arrive(const Rotating& r, int step) {
    Instruction wait = shift(Code::wait, sum(r, step), sent_to(r, step), r.sum_pending);
    wait.release = wait.inputs;
    emit(std::move(wait));
  }
  void hand_on(const Rotating& r) {
    if (step_ > 0) {
      arrive(r, step_ - 1);
      emit(last_addition(sum(r, step_), in_turn(r.shares, step_)));
    }
    emit(shift(Code::start, sum(r, step_), sent_to(r, step_), r.sum_pending));
  }
  void bring_home(const Rotating& r) {
    arrive(r, last_);
    if (adds(r)) emit(last_addition(goal(r), sent_to(r, last_)));
  }

  const Program& program_;
  const Instruction& ring_;
  const int last_;
  int step_ = 0, alike_ = 0;
  std::vector<Instruction> code_;
};

}  // namespace

const UpdateRule* rule_of_update(const Program& program, const Instruction& update) {
  return of_outer_step(update.update) ? &rule_of_outer_step(program, update.bucket)
                                      : program.buckets[update.bucket].rule.get();
}

bool outlasts_step(const Program& program, const Instruction& instruction) {
  if (instruction.serves == Serves::outer_gradients) return program.outer->delay > 0;
  return instruction.serves == Serves::parameters && instruction.pending >= 0 &&
         program.buckets[instruction.bucket].gather_overlaps_forward;
}

bool completes_update(const Program& program, const Instruction& instruction) {
  if (!instruction.has_bucket()) return false;
  const Bucket& bucket = program.buckets[instruction.bucket];
  if (!bucket.update_overlaps_forward) return false;
  switch (instruction.code) {
    case Code::compute:
      return instruction.update == Update::apply;
    case Code::copy:
      return instruction.outputs[0] == bucket.flat.stored;
    case Code::start:
      return bucket.gathered_once_updated() && instruction.serves == Serves::parameters;
    default:
      return false;
  }
}

std::vector<Instruction> ring_steps(const Program& program, const Instruction& ring) {
  RingWriter writer(program, ring);
  for (int step = 0; step < ring.ring_steps; ++step) writer.write(step);
  return writer.take();
}

std::vector<Instruction> ring_kinds(const Program& program, const Instruction& ring) {
  constexpr int begins = 2;  // first steps, which differ from later ones
  RingWriter writer(program, ring);
  const int last = ring.ring_steps - 1, between = last - begins;
  // An even number is left out, so that slots which take turns hold what the next step expects.
  const int alike = between > 2 && writer.in_turns() ? (between - 1) / 2 * 2 : 0;
  for (int step = 0; step <= last; ++step) {
    const bool joins = step == begins;
    writer.write(step, joins ? alike : 0);
    if (joins) step += alike;
  }
  return writer.take();
}

std::size_t ring_length(const Program& program, const Instruction& ring) {
  std::size_t length = 0;
  for (const Instruction& i : ring_kinds(program, ring))
    length += static_cast<std::size_t>(1 + i.ring_alike);
  return length;
}

LikeOps::LikeOps(const Program& program)
    : program_(program),
      first_(program.graph->ops().size(), -1),
      number_(first_),
      of_kind_(first_),
      other_(first_) {}

int LikeOps::first(int op) {
  int& first = first_[op];
  if (first >= 0) return first;
  int& last = of_kind_[program_.graph->kind(op)];
  for (int known = last; known >= 0; known = other_[known]) {
    if (cut_alike(known, op)) return first = known;
  }
  other_[op] = last;
  last = op;
  number_[op] = count_++;
  return first = op;
}

bool LikeOps::cut_alike(int a, int b) const {
  if (program_.cut[a] != program_.cut[b] || program_.follow[a] != program_.follow[b]) return false;
  const auto whole = program_.slicing.end();
  const auto x = program_.slicing.find(a), y = program_.slicing.find(b);
  if ((x == whole) != (y == whole) || (x != whole && !(x->second == y->second))) return false;
  const auto none = program_.rotations.end();
  if (program_.rotations.empty()) return true;
  const auto p = program_.rotations.find(a), q = program_.rotations.find(b);
  if (p == none || q == none) return p == none && q == none;
  return p->second.dim == q->second.dim && p->second.atoms == q->second.atoms;
}

const char* work_name(const Instruction& i) {
  const bool moves = (i.begins_transfer() || i.awaits_transfer()) && !i.runs_hook();
  return i.update != Update::none ? "update"
         : moves                  ? "packing for transfers"
         : i.makes_totals()       ? "gradient norm"
         : i.begins_sums()        ? "sums"
                                  : name_of(i.code);
}

BucketShape shape_of(const Program& program, const Bucket& bucket, const Coordinates& at) {
  BucketShape shape;
  shape.name = bucket.name;
  for (int p : bucket.parameters) {
    const ProgramParameter& parameter = program.parameters[p];
    shape.parameters.push_back(program.graph->value(parameter.value).name);
    shape.shapes.push_back(program.local_shape(program.slots[parameter.slot], at));
  }
  shape.elements = program.shard_elements(bucket, at) * program.mesh.ways(bucket.shard_atoms);
  shape.element = bytes_of(program.gradient_dtype);
  shape.ways = program.ways(program.hooked_reduction(bucket));
  shape.own_elements = program.shard_elements(bucket, at);
  shape.own_offset =
      shape.own_elements * program.mesh.index_in_group(program.mesh.rank(at), bucket.shard_atoms);
  return shape;
}

BucketShape gathered_shape_of(const Program& program, const Bucket& bucket, const Coordinates& at) {
  BucketShape shape = shape_of(program, bucket, at);
  shape.element = bytes_of(program.dtype);
  shape.ways = program.mesh.ways(bucket.shard_atoms);
  return shape;
}

}  // namespace mw
