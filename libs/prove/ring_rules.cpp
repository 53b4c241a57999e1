// The rule for an op in ring steps: expands its one instruction as meshwright/instruction.h says of
// Rotating, and follows each of the resulting instructions by its own rule.
#include <fmt/format.h>

#include <algorithm>

#include "prove/stage.h"

namespace mw::proving {
namespace {

int in_turn(const std::vector<int>& slots, int step) {
  return slots[step % slots.size()];
}

// The instructions of one ring step, without releases.
class RingStep {
 public:
  RingStep(const Instruction& ring, const std::vector<int>& atoms, int step)
      : ring_(ring), atoms_(atoms), step_(step), last_(ring.ring_steps - 1) {}

  bool is_last() const { return step_ == last_; }
  // The slot of the operand's shard in this step.
  int shard(const Rotating& r) const {
    return step_ == 0 ? ring_.inputs[r.input] : in_turn(r.shards, step_ - 1);
  }
  // sum(): the slot of the sum of gradient shares up to this step. goes_to(): the slot in which the
  // next rank receives that sum.
  int sum(const Rotating& r) const {
    return step_ == 0 ? r.shares.front() : in_turn(r.sums, step_ - 1);
  }
  int goes_to(const Rotating& r) const {
    const auto input = static_cast<std::size_t>(r.input);
    return is_last() && !ring_.accumulate[input] ? ring_.grad_inputs[input]
                                                 : in_turn(r.sums, step_);
  }
  Instruction shift(Code code, int from, int to, int pending) const {
    Instruction i;
    i.code = code;
    i.inputs = {from};
    i.outputs = {to};
    i.move.kind = Move::Kind::shift;
    i.move.atoms = atoms_;
    i.pending = pending;
    i.phase = ring_.phase;
    i.label = ring_.label;
    return i;
  }
  Instruction addition(int from, int to) const {
    Instruction i;
    i.code = Code::add;
    i.inputs = {from};
    i.outputs = {to};
    i.label = ring_.label;
    return i;
  }
  Instruction compute() const {
    Instruction i = ring_;
    i.ring = nullptr;
    i.ring_step = step_;
    i.release.clear();
    for (std::size_t k = 0; k < i.accumulate.size(); ++k) {
      if (step_ > 0) i.accumulate[k] = true;
    }
    for (const Rotating& r : *ring_.ring) {
      const auto input = static_cast<std::size_t>(r.input);
      if (!r.shards.empty()) i.inputs[input] = shard(r);
      if (r.shares.empty()) continue;
      i.accumulate[input] = false;
      i.grad_inputs[input] = in_turn(r.shares, step_);
    }
    return i;
  }

 private:
  const Instruction& ring_;
  const std::vector<int>& atoms_;
  const int step_, last_;
};

}  // namespace

void StageProof::ring(const Instruction& i) {
  const auto rotation = program_.rotations.find(i.op);
  if (rotation == program_.rotations.end())
    refuse("prove.ring", i.label + " goes in ring steps, and nothing of it goes round");
  const std::vector<int>& atoms = rotation->second.atoms;
  const int steps = program_.mesh.ways(atoms);
  if (i.ring_steps != steps || steps < 2)
    refuse("prove.ring",
           fmt::format("{} has {} ring steps over {} ranks", i.label, i.ring_steps, steps));
  check_rotating(i);
  const auto run = [&](const Instruction& inner) {
    check_slots(inner);
    at_ = &inner;
    apply(inner);
    ++rules_;
  };
  for (int t = 0; t < steps; ++t) {
    where_.ring_step = t;
    const RingStep step(i, atoms, t), before(i, atoms, t - 1);
    for (const Rotating& r : *i.ring) {
      if (!r.shards.empty() && !step.is_last())
        run(step.shift(Code::start, step.shard(r), in_turn(r.shards, t), r.pending));
    }
    run(step.compute());
    for (const Rotating& r : *i.ring) {
      if (r.shares.empty()) continue;
      if (t > 0) {
        run(step.shift(Code::wait, before.sum(r), step.sum(r), r.sum_pending));
        release(before.sum(r));
        run(step.addition(in_turn(r.shares, t), step.sum(r)));
        release(in_turn(r.shares, t));
      }
      run(step.shift(Code::start, step.sum(r), step.goes_to(r), r.sum_pending));
    }
    for (const Rotating& r : *i.ring) {
      if (r.shards.empty() || step.is_last()) continue;
      run(step.shift(Code::wait, step.shard(r), in_turn(r.shards, t), r.pending));
      if (t > 0) release(step.shard(r));
    }
    if (!step.is_last()) continue;
    for (const Rotating& r : *i.ring) {
      if (!r.shards.empty()) release(step.shard(r));
      if (r.shares.empty()) continue;
      run(step.shift(Code::wait, step.sum(r), step.goes_to(r), r.sum_pending));
      release(step.sum(r));
      if (!i.accumulate[r.input]) continue;
      run(step.addition(step.goes_to(r), i.grad_inputs[r.input]));
      release(step.goes_to(r));
    }
  }
  where_.ring_step = -1;
  at_ = &i;
}

// Checks that exactly the operands with the rotating dim go round, that each has the slots it
// needs, and that, where shards differ in size, each slot has the size of the shard that arrives
// there.
void StageProof::check_rotating(const Instruction& i) {
  const Op& op = graph_.ops()[i.op];
  const Rotation& rotation = program_.rotations.at(i.op);
  const auto fits = [&](const std::vector<int>& slots, int first, int count) {
    for (int t = 0; t < count; ++t) {
      const int index = in_turn(slots, t);
      if (index < 0 || index >= static_cast<int>(program_.slots.size()) || lasting(index))
        refuse("prove.ring", i.label + " has no slot for a shard that goes round");
      const Slot& s = slot(index);
      std::int64_t parts = 1, size = 1;
      for (std::size_t a = 0; a < s.layout.size(); ++a) {
        const Placement& place = s.layout[a];
        const bool of_ring =
            std::count(rotation.atoms.begin(), rotation.atoms.end(), static_cast<int>(a)) > 0;
        if (of_ring && place.is_shard()) size = graph_.size(place.dim);
        if (of_ring) parts *= program_.mesh.atoms()[a].ways;
      }
      for (std::size_t a = 0; a < s.layout.size(); ++a) {
        const bool of_ring =
            std::count(rotation.atoms.begin(), rotation.atoms.end(), static_cast<int>(a)) > 0;
        if (!of_ring && tables_.lives(static_cast<int>(a)) && s.layout[a].is_shard() &&
            graph_.size(s.layout[a].dim) == size)
          parts *= program_.mesh.atoms()[a].ways;
      }
      const int steps = i.ring_steps;
      if (size % parts != 0 && (s.ring != rotation.atoms || (s.ring_step - first - t) % steps != 0))
        refuse("prove.ring",
               fmt::format("{} has room for the shard of ring step {}, and that of step "
                           "{} comes there",
                           s.name, s.ring_step, first + t),
               index);
    }
  };
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const bool has = contains(op.inputs[k].dims, rotation.dim);
    const auto of_it = [&](const Rotating& r) { return r.input == static_cast<int>(k); };
    const auto r = std::find_if(i.ring->begin(), i.ring->end(), of_it);
    const bool goes = r != i.ring->end() && !r->shards.empty();
    const bool returns = r != i.ring->end() && !r->shares.empty();
    const bool back =
        i.piece != Piece::forward && k < i.grad_inputs.size() && i.grad_inputs[k] >= 0;
    if (goes != (has && i.inputs[k] >= 0) || returns != (has && back))
      refuse("prove.ring", fmt::format("{} does not go round as {} has it",
                                       graph_.value(op.inputs[k].value).name, op.name));
    if (returns && (k >= i.accumulate.size() || r->sums.empty()))
      refuse("prove.ring", op.name + " has no slots for a gradient that goes round");
    if (goes) fits(r->shards, 1, i.ring_steps - 1);
    if (returns) fits(r->shares, 0, i.ring_steps);
    if (returns) fits(r->sums, 1, i.ring_steps - (i.accumulate[k] ? 0 : 1));
  }
}

}  // namespace mw::proving
