// Writes the backward segments of a virtual stage: which op's gradient is computed when, who
// owns each gradient's storage, and what is redistributed.
#include <unordered_set>

#include "meshwright/engine/interrupt.h"
#include "plan/assembly.h"
#include "program/slots.h"

namespace mw {
namespace {

class Backward {
 public:
  Backward(Assembly& assembly, int vstage, bool split)
      : assembly_(assembly),
        vstage_(vstage),
        program_(assembly.programs[assembly.stage(vstage)]),
        graph_(assembly.graph),
        derived_(assembly.derived),
        tape_(assembly.tapes[vstage]),
        parameter_of_(assembly.parameter_of[assembly.stage(vstage)]),
        split_(split),
        value_grad_(graph_.values().size(), -1),
        view_grad_(derived_.views.size(), -1),
        later_grad_(derived_.views.size(), -1) {}

  void run() {
    const std::size_t ops = tape_.entries.size();
    code_.reserve(2 * ops + 16);
    if (split_) later_.reserve(ops);
    make_room(program_, 2 * ops + 32);
    for (int loss : graph_.losses()) {
      if (tape_.value_slot[loss] >= 0) seed(loss);
    }
    arrive();
    for (std::size_t i = tape_.entries.size(); i-- > 0;) {
      throw_if_stopped();
      const Tape::Entry& entry = tape_.entries[i];
      entry.kind == Tape::Entry::op ? op(entry.index) : view(entry.index);
    }
    leave();
    if (split_) {
      add_segment("dgrad", SegmentKind::dgrad, std::move(code_));
      add_segment("wgrad", SegmentKind::wgrad, std::move(later_));
    } else {
      add_segment("backward", SegmentKind::backward, std::move(code_));
    }
  }

 private:
  void add_segment(const char* name, SegmentKind kind, std::vector<Instruction> code) {
    Segment segment;
    segment.name = assembly_.name(name, vstage_);
    segment.code = std::move(code);
    segment.kind = kind;
    segment.vstage = vstage_;
    program_.segments.push_back(std::move(segment));
  }

  void seed(int loss) {
    Slot one;
    one.name = "d " + graph_.value(loss).name;
    one.layout = gradient_layout(derived_.layout[loss]);
    one.dtype = program_.dtype_of(Scalar::real, graph_.value(loss).fp32_at_least);
    Instruction seed;
    seed.code = Code::seed;
    seed.phase = "backward";
    seed.label = one.name;
    seed.outputs = {add_slot(program_, one)};
    own(value_grad_[loss], seed.outputs[0]);
    code_.push_back(std::move(seed));
  }

  // Takes in the gradients of values that later virtual stages read.
  void arrive() {
    const auto& crossings = assembly_.partition.crossings;
    for (std::size_t i = 0; i < crossings.size(); ++i) {
      const Crossing& c = crossings[i];
      const int crossing = static_cast<int>(i);
      if (c.from != vstage_ || assembly_.boundaries[i].leaving < 0) continue;
      Boundary& boundary = assembly_.boundaries[i];
      if (boundary.arriving < 0 && assembly_.local(c)) boundary.arriving = boundary.leaving;
      if (boundary.arriving < 0) {
        const int arrived = boundary.arriving = add_slot(program_, boundary_slot(c));
        const int pending = program_.pendings++;
        transfers(assembly_, SegmentKind::post, vstage_, true)
            .code.push_back(transfer(assembly_, crossing, true, Move::Kind::recv, Code::start,
                                     arrived, pending));
        transfers(assembly_, SegmentKind::receive, vstage_, true)
            .code.push_back(transfer(assembly_, crossing, true, Move::Kind::recv, Code::wait,
                                     arrived, pending));
      }
      int& target = value_grad_[c.value];
      if (target < 0) {
        own(target, boundary.arriving);
      } else {
        ++owners(boundary.arriving);
        add(target, boundary.arriving);
      }
    }
  }

  // Passes on the gradients of values that earlier virtual stages have made.
  void leave() {
    const auto& crossings = assembly_.partition.crossings;
    for (std::size_t i = 0; i < crossings.size(); ++i) {
      const Crossing& c = crossings[i];
      int& gradient = value_grad_[c.value];
      if (c.to != vstage_ || gradient < 0) continue;
      const int crossing = static_cast<int>(i);
      Boundary& boundary = assembly_.boundaries[i];
      if (boundary.leaving < 0) {
        boundary.leaving = add_slot(program_, boundary_slot(c));
        if (!assembly_.local(c)) {
          boundary.sending = program_.pendings++;
          transfers(assembly_, SegmentKind::sent, vstage_, true)
              .code.push_back(transfer(assembly_, crossing, true, Move::Kind::send, Code::wait,
                                       boundary.leaving, boundary.sending));
        }
      }
      // The earlier virtual stage, which this rank holds too, may add to the gradient.
      if (assembly_.local(c)) claim(gradient);
      code_.push_back(alias(program_, gradient, boundary.leaving, "backward"));
      if (!assembly_.local(c)) {
        code_.push_back(transfer(assembly_, crossing, true, Move::Kind::send, Code::start,
                                 boundary.leaving, boundary.sending));
      }
      disown(gradient);
    }
  }

  Slot boundary_slot(const Crossing& c) const {
    Slot slot = slot_of(program_, c.value, gradient_layout(derived_.layout[c.value]));
    slot.name = "d " + slot.name;
    return slot;
  }

  // Several gradients may share one slot (a residual add hands its gradient to both operands); who
  // is not its only owner must not add into it.
  void own(int& gradient, int slot) {
    gradient = slot;
    ++owners(slot);
  }
  void disown(int& gradient) {
    if (gradient >= 0) --owners(gradient);
    gradient = -1;
  }
  bool sole(int slot) { return owners(slot) == 1 && !pinned_.contains(program_.root(slot)); }
  int& owners(int slot) {
    const auto root = static_cast<std::size_t>(program_.root(slot));
    if (owners_.size() <= root) owners_.resize(program_.slots.size() + 64, 0);
    return owners_[root];
  }

  int fresh(const std::string& name, int value, const Layout& layout) {
    Slot slot;
    slot.name = "d " + name;
    slot.dims = graph_.value(value).dims;
    slot.dtype = program_.dtype_of(Scalar::real, graph_.value(value).fp32_at_least);
    slot.layout = layout;
    slot.value = value;
    return add_slot(program_, std::move(slot));
  }

  // Copies the gradient if it shares a slot, so that it may be added to.
  void claim(int& gradient) {
    if (sole(gradient)) return;
    Instruction copy;
    copy.code = Code::copy;
    copy.phase = "backward";
    Slot slot = program_.slots[gradient];
    slot.alias_of = -1;
    copy.label = slot.name;
    copy.inputs = {gradient};
    copy.outputs = {add_slot(program_, slot)};
    const int copied = copy.outputs[0];
    code_.push_back(std::move(copy));
    disown(gradient);
    own(gradient, copied);
  }

  void add(int& gradient, int contribution) {
    if (!sole(gradient) && sole(contribution)) std::swap(gradient, contribution);
    claim(gradient);
    code_.push_back(addition(program_, gradient, contribution));
    disown(contribution);
  }

  // Redistributes a view's complete gradient and adds it to the value's gradient. For a parameter,
  // the part that the wgrads of a split backward made goes there in their segment, apart from the
  // rest.
  void view(int index) {
    const View& view = derived_.views[index];
    const int parameter = parameter_of_[view.value];
    if (parameter < 0) {
      if (view_grad_[index] >= 0) into_value(view, view_grad_[index]);
    } else {
      const ProgramParameter& p = program_.parameters[parameter];
      if (view_grad_[index] >= 0) into_parameter(view, view_grad_[index], p, code_);
      if (later_grad_[index] >= 0) into_parameter(view, later_grad_[index], p, later_);
    }
    view_grad_[index] = later_grad_[index] = -1;
  }

  void into_value(const View& view, int gradient) {
    int moved = emit_moves(program_, code_, *view.backward, gradient, view.gradient, "backward");
    if (moved != gradient) {
      disown(gradient);
      ++owners(moved);
    }
    int& target = value_grad_[view.value];
    if (target < 0) {
      target = moved;
    } else {
      add(target, moved);
    }
  }

  // Adds a view's gradient to its parameter's. If their layouts differ, it is redistributed at
  // once, except for sums that are left to the bucket's reduction.
  void into_parameter(const View& view, int gradient, const ProgramParameter& parameter,
                      std::vector<Instruction>& code) {
    Layout target = gradient_layout(parameter.stored);
    for (std::size_t a = 0; a < target.size(); ++a) {
      if (view.gradient[a].is_partial() && parameter.accumulated[a].is_partial()) {
        target[a] = view.gradient[a];
      }
    }
    const std::vector<Move> list = moves(view.gradient, target, program_.mesh);
    const int moved = emit_moves(program_, code, list, gradient, view.gradient, "backward");
    Instruction add = addition(program_, parameter.gradient_slot, moved);
    add.contributing = {contributing(parameter, target)};
    code.push_back(std::move(add));
    if (moved == gradient) disown(gradient);
  }

  // Atoms on which a contribution is whole while the accumulated gradient is a sum over ranks.
  static std::vector<int> contributing(const ProgramParameter& parameter,
                                       const Layout& contribution) {
    std::vector<int> atoms;
    for (std::size_t a = 0; a < contribution.size(); ++a) {
      if (parameter.accumulated[a].is_partial() && contribution[a].is_replicate()) {
        atoms.push_back(static_cast<int>(a));
      }
    }
    return atoms;
  }

  void op(int index) {
    const Op& op = graph_.ops()[index];
    const OpTraits& traits = graph_.traits(index);
    if (!traits.differentiable) return;
    Slots grads;
    bool any = false;
    for (int value : op.outputs) {
      grads.push_back(value_grad_[value]);
      any = any || value_grad_[value] >= 0;
    }
    if (!any) return;
    pass_through(index, op, traits, grads);
    if (traits.splits) {
      emit(index, op, traits, grads, Piece::dgrad);
      emit(index, op, traits, grads, Piece::wgrad);
    } else {
      emit(index, op, traits, grads, Piece::backward);
    }
    for (int value : op.outputs) disown(value_grad_[value]);
  }

  bool passes(const OpTraits& traits, std::size_t input) const {
    return input < traits.gradient_passes.size() && traits.gradient_passes[input];
  }

  // Operands whose gradient is the output's own share its slot.
  void pass_through(int index, const Op& op, const OpTraits& traits, const Slots& grads) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (!passes(traits, i) || !graph_.value(op.inputs[i].value).needs_grad) continue;
      int& gradient = view_grad_[derived_.view_of[index][i]];
      if (gradient < 0) {
        own(gradient, grads[0]);
      } else {
        int contribution = grads[0];
        ++owners(contribution);
        add(gradient, contribution);
      }
    }
  }

  void emit(int index, const Op& op, const OpTraits& traits, const Slots& grads, Piece piece) {
    Gradients made{Slots(op.inputs.size(), -1), Few<bool, 8>(op.inputs.size(), false), {}, {}};
    made.contributing.resize(op.inputs.size());
    bool wanted = false, of_parameters = true;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const bool mine = piece == Piece::backward || (i == 0) == (piece == Piece::dgrad);
      if (!mine || passes(traits, i) || !graph_.value(op.inputs[i].value).needs_grad) continue;
      wanted = true;
      of_parameters = of_parameters && parameter_of_[op.inputs[i].value] >= 0;
      gradient_of(index, i, piece, made);
    }
    if (!wanted) return;
    const auto rotation = program_.rotations.find(index);
    const bool rotates = rotation != program_.rotations.end();
    // What a computed weight was computed from needs its gradient at once.
    const bool later = split_ && piece == Piece::wgrad && !rotates && of_parameters;
    if (later) {
      for (int slot : grads) pinned_.insert(program_.root(slot));
    }
    Instruction& instruction = (later ? later_ : code_).emplace_back();
    instruction.code = Code::compute;
    instruction.piece = piece;
    instruction.op = index;
    instruction.phase = "backward";
    instruction.label = op.name;
    instruction.grad_outputs = grads;
    instruction.saved = tape_.saved[index];
    instruction.grad_inputs = made.inputs;
    instruction.accumulate = made.accumulate;
    instruction.contributing = std::move(made.contributing);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const bool spared = traits.splits &&
                          (piece == Piece::dgrad ? i == 0 : parameter_of_[op.inputs[i].value] >= 0);
      const bool reads = traits.backward_reads_input[i] && !spared;
      instruction.inputs.push_back(reads ? tape_.view_slot[derived_.view_of[index][i]] : -1);
    }
    for (std::size_t o = 0; o < op.outputs.size(); ++o) {
      instruction.outputs.push_back(
          traits.backward_reads_output[o] ? tape_.value_slot[op.outputs[o]] : -1);
    }
    if (rotates) instruction = in_ring(program_, std::move(instruction), rotation->second);
    for (const auto& [view_index, second] : made.again) {
      ++owners(second);
      add(view_grad_[view_index], second);
    }
  }

  // The gradients that an instruction of backward makes, by input.
  struct Gradients {
    Slots inputs;
    Few<bool, 8> accumulate;
    std::vector<std::vector<int>> contributing;
    // Views that the op reads more than once, each with the slot of a further gradient.
    std::vector<std::pair<int, int>> again;
  };
  // Adds to `made` the slot that takes the gradient of operand `i` of the op.
  void gradient_of(int index, std::size_t i, Piece piece, Gradients& made) {
    const int view_index = derived_.view_of[index][i];
    const View& view = derived_.views[view_index];
    if (const int parameter = parameter_of_[view.value]; parameter >= 0 && view.forward->empty()) {
      const ProgramParameter& p = program_.parameters[parameter];
      made.inputs[i] = p.gradient_slot;
      made.accumulate[i] = true;
      made.contributing[i] = contributing(p, view.gradient);
      return;
    }
    const bool later = split_ && piece == Piece::wgrad && parameter_of_[view.value] >= 0;
    int& gradient = (later ? later_grad_ : view_grad_)[view_index];
    if (gradient >= 0 &&
        std::find(made.inputs.begin(), made.inputs.end(), gradient) != made.inputs.end()) {
      const int second = fresh(graph_.value(view.value).name, view.value, view.gradient);
      made.inputs[i] = second;
      made.again.emplace_back(view_index, second);
      return;
    }
    if (gradient < 0) {
      own(gradient, fresh(graph_.value(view.value).name, view.value, view.gradient));
    } else {
      claim(gradient);
      made.accumulate[i] = true;
    }
    made.inputs[i] = gradient;
  }

  Assembly& assembly_;
  const int vstage_;
  Program& program_;
  const Graph& graph_;
  const Derived& derived_;
  const Tape& tape_;
  const std::vector<int>& parameter_of_;
  const bool split_;
  std::vector<int> value_grad_, view_grad_;
  // by view: slot of a parameter's gradient that wgrads of a split backward make
  std::vector<int> later_grad_;
  std::vector<int> owners_;         // by root slot: how many gradients share its storage
  std::unordered_set<int> pinned_;  // root slots that the wgrad segment reads later
  std::vector<Instruction> code_, later_;
};

}  // namespace

void build_backward(Assembly& assembly, int vstage, bool split) {
  Backward(assembly, vstage, split).run();
}

}  // namespace mw
