// What an executor does with moves: posts collectives, sends and receives, waits for them, and
// writes what arrived into its slot.
#include <fmt/format.h>

#include <stdexcept>

#include "run/executor.h"

namespace mw {

const MoveSteps& Executor::steps(const Instruction& i, const Microbatch& m) {
  const auto [known, missing] = steps_.try_emplace({&i, m.sizes});
  if (missing) known->second = m.sizes->steps(i);
  return known->second;
}

void Executor::start(const Instruction& i, Microbatch& m, int microbatch) {
  const auto begun = [&](Underway move) { underway_[underway(i, microbatch)] = std::move(move); };
  using MoveKind = Move::Kind;
  if (i.code == Code::hook_start) return begun(start_hook(i));
  if (between_lasting(program_, i)) return begun(start_lasting(i));
  if (i.move.kind == MoveKind::send || i.move.kind == MoveKind::recv)
    return begun(start_transfer(i, m, microbatch));
  if (i.move.kind == MoveKind::shift) return begun(start_shift(i, m, microbatch));
  if (i.move.exchanges_rows()) return begun(start_exchange(i, m));
  const MoveSteps& steps = this->steps(i, m);
  if (i.code == Code::move) {
    m.slots[i.outputs[0]] = local_move(i.move, steps, tensor(m, i.inputs[0]));
  } else {
    begun(start_move(i.move, steps, tensor(m, i.inputs[0]), group({i.move.atoms, {}}),
                     {i.phase, &i.label}));
  }
}

void Executor::wait(const Instruction& i, Microbatch& m, int microbatch) {
  const auto move = underway_.find(underway(i, microbatch));
  if (move == underway_.end()) {
    if (i.again && !i.outputs.empty() && tensor(m, i.outputs[0]).defined()) return;
    const Slots& slots = i.outputs.empty() ? i.inputs : i.outputs;
    throw std::logic_error(
        fmt::format("{} of {} waits for transfer {} of {}, which was never begun", name_of(i.code),
                    i.label, i.pending, slots.empty() ? "no slot" : program_.slots[slots[0]].name));
  }
  const at::Tensor done = move->second.finish();
  if (done.defined()) m.slots[i.outputs[0]] = done;
  underway_.erase(move);
}

Underway Executor::start_transfer(const Instruction& i, Microbatch& m, int microbatch) {
  Communicator& stages = group({i.move.atoms, {}});
  const int tag = i.move.tag * program_.microbatches + microbatch;
  if (i.move.kind == Move::Kind::send) {
    const at::Tensor out = tensor(m, i.inputs[0]);
    return {stages.send(out, i.move.peer, tag, {i.phase, &i.label}), [] { return at::Tensor(); }};
  }
  at::Tensor in = at::empty(steps(i, m).arrived.shape, options(i.outputs[0]));
  return {stages.recv(in, i.move.peer, tag, {i.phase, &i.label}), [in] { return in; }};
}

Underway Executor::start_shift(const Instruction& i, Microbatch& m, int microbatch) {
  Communicator& ring = group({i.move.atoms, {}});
  const int ways = ring.ways(), me = ring.index();
  const int tag = (i.pending * i.ring_steps + i.ring_step) * program_.microbatches + microbatch;
  const Purpose purpose{i.phase, &i.label};
  const at::Tensor out = tensor(m, i.inputs[0]).contiguous();
  at::Tensor in = at::empty(steps(i, m).arrived.shape, options(i.outputs[0]));
  const auto sent = std::make_shared<Pending>(ring.send(out, (me + 1) % ways, tag, purpose));
  return {ring.recv(in, (me + ways - 1) % ways, tag, purpose), [in, out, sent] {
            sent->wait();
            return in;
          }};
}

at::Tensor Executor::redistribute(const at::Tensor& tensor, const Dims& dims, const Layout& from,
                                  const Layout& to, std::int64_t batch) {
  at::Tensor moved = tensor;
  Layout now = from;
  static const std::string label = "gather for comparison";
  for (const Move& move : moves(from, to, program_.mesh)) {
    const Layout next = after(now, move);
    const MoveSteps steps = move_steps(move, dims, moved.sizes().vec(), now, next, program_.mesh,
                                       at_, [&](Dim dim) { return program_.size(dim, batch); });
    if (communicates(move.kind)) {
      moved = start_move(move, steps, moved, group({move.atoms, {}}), {"verify", &label}).finish();
    } else {
      moved = local_move(move, steps, moved);
    }
    now = next;
  }
  return moved;
}

}  // namespace mw
