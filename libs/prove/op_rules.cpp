// The rules for instructions that load data or compute an op: forward, backward, dgrad and wgrad,
// at once or in ring steps.
#include <fmt/format.h>

#include <algorithm>

#include "prove/stage.h"

namespace mw::proving {
namespace {

constexpr std::uint8_t bit_of(Piece piece) {
  return static_cast<std::uint8_t>(1U << static_cast<unsigned>(piece));
}

}  // namespace

// Loaded data has the layout that its slot declares, which must be a possible one.
void StageProof::load(const Instruction& i) {
  if (microbatch_ < 0) refuse("prove.microbatch", "data is loaded for no microbatch");
  for (const int index : i.outputs) {
    if (index < 0) refuse("prove.operands", "it loads into no slot");
    const Slot& s = slot(index);
    if (s.value < 0 || graph_.value(s.value).source != Value::Source::data)
      refuse("prove.load", s.name + " is no data of the graph", index);
    Content content;
    content.what = ContentKind::value;
    content.id = s.value;
    content.microbatch = microbatch_;
    content.place = s.layout;
    for (std::size_t a = 0; a < content.place.size(); ++a) {
      Placement& place = content.place[a];
      if (place.is_partial() || (place.is_shard() && !contains(s.dims, place.dim)) ||
          (place.is_shard() && static_cast<int>(a) == program_.stage_atom))
        refuse(
            "prove.layout",
            fmt::format("{} cannot have the layout {}", s.name, to_string(s.layout, program_.mesh)),
            index);
      if (!tables_.lives(static_cast<int>(a))) place = {};
    }
    const Value& value = graph_.value(s.value);
    make(index, std::move(content), value.dims,
         program_.dtype_of(value.scalar, value.fp32_at_least));
  }
}

void StageProof::check_cut(int op) {
  if (op < 0 || op >= static_cast<int>(graph_.ops().size()))
    refuse("prove.operands", fmt::format("the graph has no op {}", op));
  if (checked_[op] != 0) return;
  checked_[op] = 1;
  const CutFault fault = tables_.fault(op);
  if (!fault.message.empty()) refuse(fault.stages ? "prove.stages" : "prove.cut", fault.message);
}

// Bits of the pieces of an op that are done for the current microbatch.
std::uint8_t& StageProof::done(int op) {
  int& number = numbers_[op];
  if (number < 0) number = ops_++;
  std::vector<std::uint8_t>& list = now().done;
  if (static_cast<int>(list.size()) <= number) list.resize(static_cast<std::size_t>(ops_), 0);
  return list[number];
}

void StageProof::note_lemma(const Instruction& i, Atoms carried) {
  std::uint8_t& noted = noted_[i.op];
  const auto bit = static_cast<std::uint8_t>(bit_of(i.piece) << (carried != 0 ? 4 : 0));
  if ((noted & bit) != 0) return;
  noted |= bit;
  Lemma lemma;
  lemma.op = graph_.kind(i.op);
  lemma.kind = graph_.ops()[i.op].kind();
  lemma.piece = i.piece;
  for (std::size_t a = 0; a < program_.cut[i.op].size(); ++a) {
    if (!tables_.lives(static_cast<int>(a))) continue;
    const Placement &cut = program_.cut[i.op][a], &follow = program_.follow[i.op][a];
    if (cut.is_shard()) lemma.cut.push_back(cut.dim.name());
    if (follow.is_shard()) lemma.follow.push_back(follow.dim.name());
  }
  if (const Slicing* sliced = program_.slicing_of(i)) {  // slices are a cut in time
    std::vector<std::string> has;
    for (const Dim dim : sliced->dims) {
      if (graph_.ops()[i.op].has(dim)) has.push_back(dim.name());
    }
    if (!has.empty()) lemma.cut.push_back(has.front());
    if (has.size() > 1) lemma.follow.push_back(has[1]);
  }
  lemma.carried = carried != 0;
  lemma.ring = in_ring(i);
  lemmas_.insert(std::move(lemma));
}

bool StageProof::rotates(const Instruction& i, std::size_t input) const {
  if (!in_ring(i)) return false;
  const Op& op = graph_.ops()[i.op];
  return contains(op.inputs[input].dims, program_.rotations.at(i.op).dim);
}

void StageProof::check_ring_shard(const Instruction& i, std::size_t input) {
  const int slot = i.inputs[input];
  const int shift = read(slot).content->shift;
  if (shift == (rotates(i, input) ? i.ring_step : 0)) return;
  refuse("prove.ring",
         fmt::format("{} is the shard of the rank {} before, in ring step {}", name(slot), shift,
                     i.ring_step),
         slot);
}

void StageProof::compute(const Instruction& i) {
  check_cut(i.op);
  const Op& op = graph_.ops()[i.op];
  if (microbatch_ < 0) refuse("prove.microbatch", op.name + " is computed for no microbatch");
  if (i.inputs.size() != op.inputs.size())
    refuse("prove.operands", fmt::format("{} takes {} inputs and has {}", op.name, op.inputs.size(),
                                         i.inputs.size()));
  if (in_slices(i)) next_slice(i);
  if (i.ring) return ring(i);
  if (program_.rotations.count(i.op) > 0 && !in_ring(i))
    refuse("prove.ring", op.name + " is to be computed in ring steps, and is not");
  if (i.piece == Piece::forward) {
    forward(i);
  } else {
    backward(i);
  }
  know_rows(i);
}

bool StageProof::matches(const Content& content, int value) const {
  if (content.what != ContentKind::value || content.id != value) return false;
  return content.microbatch == microbatch_ ||
         graph_.value(value).source == Value::Source::parameter;
}

// Refuses an operand that is not this value of the graph, placed as needed.
void StageProof::need_value(int index, int value, const Layout& place, int steps,
                            const std::string& what) {
  if (index < 0) refuse("prove.missing", what + " is read, and the instruction names no slot");
  const Operand found = read(index);
  const Content& content = *found.content;
  const Value& needed = graph_.value(value);
  if (!matches(content, value) || content.steps != steps) {
    refuse("prove.value",
           fmt::format("{} must be {} of microbatch {}, and {} is {}", what, needed.name,
                       microbatch_, name(index), text_of(content)),
           index, found.by);
  }
  check_slice(index, content);
  if (content.place != place) misplaced(index, found, place, what);
  const Dtype dtype = program_.dtype_of(needed.scalar, needed.fp32_at_least);
  if (found.dtype != dtype)
    refuse("prove.dtype",
           fmt::format("{} must be {}, and is {}", what, name_of(dtype), name_of(found.dtype)),
           index, found.by);
  if (found.memory != Memory::device)
    refuse("prove.memory", fmt::format("{} is read from host memory", name(index)), index,
           found.by);
}

// Atoms on which an operand that the op is linear in is a sum over the ranks.
Atoms StageProof::carried(const Instruction& i) {
  const Op& op = graph_.ops()[i.op];
  Atoms all = 0;
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    if (!op.inputs[k].linear || i.inputs[k] < 0) continue;
    const Layout& place = read(i.inputs[k]).content->place;
    for (std::size_t a = 0; a < place.size(); ++a) {
      if (!place[a].is_partial() || program_.cut[i.op][a].is_shard()) continue;
      if ((all >> a & 1) != 0)
        refuse("prove.product",
               fmt::format("{} has two operands that are sums over {}", op.name,
                           program_.mesh.atoms()[a].name),
               i.inputs[k]);
      all |= Atoms{1} << a;
    }
  }
  return all;
}

void StageProof::forward(const Instruction& i) {
  const Op& op = graph_.ops()[i.op];
  const OpTraits& traits = graph_.traits(i.op);
  if (i.outputs.size() != op.outputs.size() || i.saved.size() != traits.saved.size())
    refuse("prove.operands", op.name + " has another number of results than its op");
  const Atoms carried = this->carried(i);
  const OpTable& table = tables_.of(i.op, carried);
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const std::string& what = graph_.value(op.inputs[k].value).name;
    need_value(i.inputs[k], op.inputs[k].value, table.need[k], 0, what);
    check_ring_shard(i, k);
  }
  note_lemma(i, carried);
  if (carried != 0) now().carried[i.op] = carried;
  done(i.op) |= bit_of(Piece::forward);
  const int j = traits.forward_in_place;
  int shared = -1;
  if (i.in_place) {
    if (j < 0 || in_ring(i)) refuse("prove.in-place", op.name + " cannot work in place");
    const int from = i.inputs[j];
    if (in_slices(i) && slot(from).slices == 1)
      refuse("prove.in-place",
             fmt::format("{} is overwritten by one slice of {}", name(from), op.name), from);
    if (lasting(from)) refuse("prove.in-place", name(from) + " lasts, and is overwritten", from);
    overwrite(from);
    shared = held(from);
    for (std::size_t k = 0; k < i.inputs.size(); ++k) {
      const int other = i.inputs[k];
      if (static_cast<int>(k) != j && !lasting(other) && held(other) == shared)
        refuse("prove.in-place",
               fmt::format("{} is overwritten by an op that reads it as {} too", name(from),
                           name(other)),
               from);
    }
  }
  for (std::size_t k = 0; k < i.outputs.size(); ++k) {
    if (i.outputs[k] < 0) refuse("prove.operands", op.name + " has no slot for a result");
    if (shared < 0 || k > 0) {
      write_output(i, k, table);
      continue;
    }
    Tensor& t = tensor(shared);
    Content made{ContentKind::value, op.outputs[0], 0, microbatch_, 0, table.out[0], 0, 0};
    const Value& value = graph_.value(op.outputs[0]);
    mark_slice(i, value.dims, made);
    const Dtype dtype = program_.dtype_of(value.scalar, value.fp32_at_least);
    if (t.dtype != dtype)
      refuse("prove.in-place",
             fmt::format("{} has the dtype {}, and its slot {}", value.name, name_of(dtype),
                         name_of(t.dtype)),
             i.outputs[0]);
    claim(i.outputs[0], made, value.dims, dtype);
    t.content = std::move(made);
    t.dims = value.dims;
    t.by = where_;
    hold(i.outputs[0], shared);
  }
  for (std::size_t k = 0; k < i.saved.size(); ++k) write_saved(i, k, table);
}

void StageProof::write_output(const Instruction& i, std::size_t k, const OpTable& table) {
  const int id = graph_.ops()[i.op].outputs[k];
  const Value& value = graph_.value(id);
  const int index = i.outputs[k];
  const int steps = in_steps(i) && i.part() + 1 < i.parts() ? i.part() + 1 : 0;
  Content made{ContentKind::value, id, 0, microbatch_, 0, table.out[k], 0, 0};
  mark_slice(i, value.dims, made);
  const bool own = made.slices > 1;
  if (i.part() > 0 && !own) {  // a later part adds to it in place
    need_value(index, id, table.out[k], i.part(), value.name);
    Tensor& t = overwrite(index);
    t.content.steps = steps;
    t.by = where_;
    return;
  }
  if (!own) made.steps = steps;
  make(index, std::move(made), value.dims, program_.dtype_of(value.scalar, value.fp32_at_least));
}

void StageProof::write_saved(const Instruction& i, std::size_t k, const OpTable& table) {
  const SavedValue& saved = graph_.traits(i.op).saved[k];
  const int index = i.saved[k];
  if (index < 0) refuse("prove.operands", "there is no slot for " + saved.name);
  const bool sliced = in_slices(i);
  const int steps = in_ring(i) && i.ring_step + 1 < i.ring_steps ? i.ring_step + 1 : 0;
  if (i.ring_step > 0) {
    Tensor& t = overwrite(index);
    if (t.content.what != ContentKind::saved || t.content.id != i.op ||
        t.content.output != static_cast<int>(k) || t.content.steps != i.ring_step)
      refuse("prove.value", fmt::format("{} is {}", name(index), text_of(t.content)), index, t.by);
    t.content.steps = steps;
    t.by = where_;
    return;
  }
  if (slot(index).extra != saved.extra)
    refuse("prove.layout",
           fmt::format("{} has {} at its end, and {} is needed", name(index), slot(index).extra,
                       saved.extra),
           index);
  Content made{
      ContentKind::saved, i.op, static_cast<int>(k), microbatch_, 0, table.saved[k], 0, steps};
  mark_slice(i, saved.dims, made);
  if (sliced && made.slices == 1) {  // each slice saves a tensor of its own, even without the dim
    made.slices = i.slices;
    made.slice = i.slice;
  }
  make(index, std::move(made), saved.dims, program_.dtype_of(Scalar::real, saved.fp32_at_least));
}

// Checks what backward reads of forward: operands, results and saved tensors.
void StageProof::need_saved(const Instruction& i, const OpTable& table) {
  const Op& op = graph_.ops()[i.op];
  const OpTraits& traits = graph_.traits(i.op);
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    const Value& value = graph_.value(op.inputs[k].value);
    const bool parameter = value.source == Value::Source::parameter;
    const bool spared = traits.splits && (i.piece == Piece::dgrad ? k == 0 : parameter);
    const bool reads = traits.backward_reads_input.at(k) && !spared;
    if (!reads && i.inputs[k] < 0) continue;
    need_value(i.inputs[k], op.inputs[k].value, table.need[k], 0, value.name);
    check_ring_shard(i, k);
  }
  if (i.outputs.size() != op.outputs.size() || i.saved.size() != traits.saved.size())
    refuse("prove.operands", op.name + " has another number of results than its op");
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    if (!traits.backward_reads_output.at(k) && i.outputs[k] < 0) continue;
    need_value(i.outputs[k], op.outputs[k], table.out[k], 0, graph_.value(op.outputs[k]).name);
  }
  for (std::size_t k = 0; k < i.saved.size(); ++k) {
    if (i.saved[k] < 0) refuse("prove.missing", "it reads " + traits.saved[k].name + " of no slot");
    const Operand found = read(i.saved[k]);
    const Content& c = *found.content;
    if (c.what != ContentKind::saved || c.id != i.op || c.output != static_cast<int>(k) ||
        c.microbatch != microbatch_ || c.steps != 0)
      refuse("prove.value",
             fmt::format("{} must be what {} keeps of microbatch {}, and is {}", name(i.saved[k]),
                         op.name, microbatch_, text_of(c)),
             i.saved[k], found.by);
    check_slice(i.saved[k], c);
    if (found.memory != Memory::device)
      refuse("prove.memory", fmt::format("{} is read from host memory", name(i.saved[k])),
             i.saved[k], found.by);
  }
}

namespace {

// The names of the terms that multiset `all` has more often than multiset `but`.
std::vector<std::string> beyond(const Gradients& gradients, const std::vector<int>& all,
                                const std::vector<int>& but) {
  std::vector<int> more;
  std::set_difference(all.begin(), all.end(), but.begin(), but.end(), std::back_inserter(more));
  std::vector<std::string> text;
  for (const int term : more) text.push_back(gradients.text(term));
  return text;
}

}  // namespace

// Checks the gradients of an op's results that backward reads: each must be complete.
void StageProof::need_gradients(const Instruction& i, const OpTable& table) {
  const Op& op = graph_.ops()[i.op];
  if (i.grad_outputs.size() != op.outputs.size())
    refuse("prove.operands", op.name + " has another number of gradients than results");
  for (std::size_t k = 0; k < op.outputs.size(); ++k) {
    const int index = i.grad_outputs[k];
    const Value& value = graph_.value(op.outputs[k]);
    const TermSet needed = gradients_.complete(op.outputs[k]);
    if (index < 0 && needed == 0) continue;
    if (index < 0) refuse("prove.missing", "the gradient of " + value.name + " is not read");
    const Operand found = read(index);
    const Content& c = *found.content;
    if (c.what != ContentKind::gradient || c.microbatch != microbatch_ || c.shift != 0 ||
        c.steps != 0 || !c.parts.empty())
      refuse("prove.value",
             fmt::format("{} must be the gradient of {} of microbatch {}, and is {}", name(index),
                         value.name, microbatch_, text_of(c)),
             index, found.by);
    check_slice(index, c);
    if (c.terms != needed) {
      Refusal made = refusal("prove.gradient", "");
      made.slot = index;
      made.missing =
          beyond(gradients_, gradients_.sets.terms(needed), gradients_.sets.terms(c.terms));
      made.twice =
          beyond(gradients_, gradients_.sets.terms(c.terms), gradients_.sets.terms(needed));
      made.message = fmt::format("{} is not the gradient of {}", name(index), value.name);
      if (found.by.known()) made.written = proving::text_of(program_, found.by);
      throw Refused{std::move(made)};
    }
    if (c.place != table.arrives[k])
      misplaced(index, found, table.arrives[k], "the gradient of " + value.name);
    if (found.dtype != program_.dtype_of(Scalar::real, value.fp32_at_least))
      refuse("prove.dtype", fmt::format("{} is {}", name(index), name_of(found.dtype)), index,
             found.by);
  }
}

void StageProof::backward(const Instruction& i) {
  const Op& op = graph_.ops()[i.op];
  const OpTraits& traits = graph_.traits(i.op);
  std::uint8_t& done = this->done(i.op);
  if ((done & bit_of(Piece::forward)) == 0)
    refuse("prove.order", fmt::format("{} goes back before it was computed", op.name));
  if (!traits.differentiable || (i.piece == Piece::backward) == traits.splits)
    refuse("prove.piece", fmt::format("{} has no {}", op.name, name_of(i.piece)));
  if (i.part() == 0 && (done & bit_of(i.piece)) != 0)
    refuse("prove.twice", fmt::format("the {} of {} is computed twice for microbatch {}",
                                      name_of(i.piece), op.name, microbatch_));
  done |= bit_of(i.piece);
  const auto sums = now().carried.find(i.op);
  const Atoms carried = sums == now().carried.end() ? 0 : sums->second;
  const OpTable& table = tables_.of(i.op, carried);
  need_saved(i, table);
  need_gradients(i, table);
  note_lemma(i, carried);
  if (i.grad_inputs.size() != op.inputs.size())
    refuse("prove.operands", op.name + " has another number of gradients than operands");
  if (i.in_place && !traits.backward_may_overwrite_saved)
    refuse("prove.in-place",
           fmt::format("the {} of {} may not overwrite what it reads", name_of(i.piece), op.name));
  for (std::size_t k = 0; k < op.inputs.size(); ++k) {
    if (i.grad_inputs[k] >= 0) write_gradient(i, k, table);
  }
}

void StageProof::write_gradient(const Instruction& i, std::size_t k, const OpTable& table) {
  const Op& op = graph_.ops()[i.op];
  const OpTraits& traits = graph_.traits(i.op);
  const Value& value = graph_.value(op.inputs[k].value);
  const int index = i.grad_inputs[k];
  const bool passes = k < traits.gradient_passes.size() && traits.gradient_passes[k];
  const bool mine = i.piece == Piece::backward || (k == 0) == (i.piece == Piece::dgrad);
  if (passes || !mine || !value.needs_grad)
    refuse(
        "prove.piece",
        fmt::format("the {} of {} makes no gradient of {}", name_of(i.piece), op.name, value.name),
        index);
  Content made;
  made.what = ContentKind::gradient;
  made.microbatch = microbatch_;
  made.terms = gradients_.sets.single(gradients_.term(i.op, static_cast<int>(k)));
  made.place = table.gradient[k];
  const bool goes_round = rotates(i, k);
  const bool last = i.part() + 1 == i.parts();
  if (lasting(index)) {
    if (k >= i.contributing.size())
      refuse("prove.operands", "it does not say which ranks contribute to " + name(index), index);
    if (in_slices(i)) same_target(i, k);
    if (in_steps(i) && (goes_round || !last)) {
      if (goes_round) refuse("prove.ring", name(index) + " cannot go round", index);
      return;
    }
    add_gradient(index, made, i.contributing[k]);
    return;
  }
  const Dtype dtype = program_.dtype_of(Scalar::real, value.fp32_at_least);
  if (in_slices(i)) {
    if (slot(index).slices == 1) return add_part(i, k, std::move(made));
    mark_slice(i, value.dims, made);
  } else if (goes_round) {
    made.shift = i.ring_step;
    made.steps = 1;
  } else if (in_ring(i)) {
    made.steps = last ? 0 : i.ring_step + 1;
  }
  if (k < i.accumulate.size() && i.accumulate[k]) return add_share(i, k, made);
  if (i.in_place && i.inputs[k] < 0)
    refuse("prove.in-place", "there is no operand that " + name(index) + " could overwrite", index);
  if (!i.in_place) return make(index, std::move(made), value.dims, dtype);
  const int from = i.inputs[k];
  if (lasting(from)) refuse("prove.in-place", name(from) + " lasts, and is overwritten", from);
  Tensor& t = overwrite(from);
  claim(index, made, value.dims, dtype);
  t.content = std::move(made);
  t.dims = value.dims;
  t.by = where_;
  return hold(index, held(from));
}

// Adds a gradient of an operand to a tensor that is there already.
void StageProof::add_share(const Instruction& i, std::size_t k, const Content& made) {
  const int index = i.grad_inputs[k];
  const bool goes_round = rotates(i, k);
  Tensor& t = overwrite(index);
  const Content& there = t.content;
  const bool goes_on = in_ring(i) && i.ring_step > 0 && !goes_round;
  if (there.slices != made.slices || there.slice != made.slice || !there.parts.empty())
    refuse(
        "prove.slice",
        fmt::format("{} is {}, to which {} is added", name(index), text_of(there), text_of(made)),
        index, t.by);
  if (there.what != ContentKind::gradient || there.microbatch != microbatch_ || there.shift != 0 ||
      there.steps != (goes_on ? i.ring_step : 0) || goes_round)
    refuse("prove.value",
           fmt::format("{} is {}, to which no gradient can be added", name(index), text_of(there)),
           index, t.by);
  if (there.place != made.place)
    misplaced(index, read(index), made.place, "what the gradient is added to");
  if (!goes_on) t.content.terms = gradients_.sets.join(there.terms, made.terms);
  t.content.steps = made.steps;
  t.by = where_;
}

// Refuses an op on sparse rows whose number is not known yet, unless the op itself makes them.
void StageProof::know_rows(const Instruction& i) {
  if (graph_.sparse.dims.empty()) return;
  const Op& op = graph_.ops()[i.op];
  const bool makes = std::none_of(op.inputs.begin(), op.inputs.end(),
                                  [&](const Use& use) { return graph_.sparse.has(use.dims); });
  for (const auto* list : {&i.inputs, &i.grad_outputs, &i.outputs, &i.grad_inputs}) {
    for (const int index : *list) {
      if (index < 0 || slot(index).value < 0 || !graph_.sparse.has(slot(index).dims)) continue;
      auto rows = rows_of(index);
      if (makes && i.piece == Piece::forward) {
        now().rows.insert(std::move(rows));
      } else if (now().rows.count(rows) == 0) {
        refuse("prove.rows", fmt::format("how many rows {} has is not known here", name(index)),
               index);
      }
      return;
    }
  }
}

}  // namespace mw::proving
