// What an executor does with moves: posts collectives, sends and receives, waits for them, and
// writes what arrived into its slot.
#include "run/executor.h"

namespace mw {

Moving Executor::moving(const Move& move, const Dims& dims, const Layout& from, const Layout& to,
                        std::int64_t batch) const {
  Moving what;
  what.dims = dims;
  auto parts = [&](Dim dim, const Layout& layout) {
    return local_sizes(dim, program_.size(dim, batch), layout, program_.mesh, move.atoms, at_);
  };
  if (move.from.valid()) what.from_parts = parts(move.from, from);
  if (move.to.valid()) what.to_parts = parts(move.to, to);
  return what;
}

void Executor::start(const Instruction& i, Microbatch& m, int microbatch) {
  const auto begun = [&](Underway move) {
    underway_[{i.pending, i.bucket >= 0 ? -1 : microbatch}] = std::move(move);
  };
  using Kind = Move::Kind;
  if (i.bucket >= 0) return begun(start_flat(i));
  if (i.move.kind == Kind::send || i.move.kind == Kind::recv)
    return begun(start_transfer(i, m, microbatch));
  if (i.move.kind == Kind::shift) return begun(start_shift(i, m, microbatch));
  if (!i.move.lands.empty()) return begun(start_exchange(i, m));
  const Slot &from = program_.slots[i.inputs[0]], &to = program_.slots[i.outputs[0]];
  const Moving what = moving(i.move, from.dims, from.layout, to.layout, m.sizes->batch());
  if (i.code == Code::start) {
    begun(start_move(i.move, what, tensor(m, i.inputs[0]), i.in_place, group({i.move.atoms, {}}),
                     {i.phase, &i.label}));
  } else {
    m.slots[i.outputs[0]] = local_move(i.move, what, tensor(m, i.inputs[0]),
                                       program_.mesh.index_in_group(rank_, i.move.atoms));
  }
}

// A gather that is awaited by several is there for all after the first.
void Executor::wait(const Instruction& i, Microbatch& m, int microbatch) {
  const auto move = underway_.find({i.pending, i.bucket >= 0 ? -1 : microbatch});
  if (move != underway_.end()) {
    const at::Tensor done = move->second.finish();
    if (done.defined()) m.slots[i.outputs[0]] = done;
    underway_.erase(move);
  }
  if (i.bucket < 0) return;
  // The next reduction counts the sum so far once.
  const Bucket& bucket = program_.buckets[i.bucket];
  if (bucket.each && !bucket.hook && !sizes_.of_kind(0).contributes(bucket.reduce))
    storage_.begin_sum(i.bucket);
}

Underway Executor::start_transfer(const Instruction& i, Microbatch& m, int microbatch) {
  Communicator& stages = group({i.move.atoms, {}});
  const int tag = i.move.tag * program_.microbatches + microbatch;
  if (i.move.kind == Move::Kind::send) {
    const at::Tensor out = tensor(m, i.inputs[0]);
    return {stages.send(out, i.move.peer, tag, {i.phase, &i.label}), [] { return at::Tensor(); }};
  }
  const Slot& slot = program_.slots[i.outputs[0]];
  at::Tensor in =
      at::empty(program_.local_shape(slot, at_, m.sizes->batch()), options(i.outputs[0]));
  return {stages.recv(in, i.move.peer, tag, {i.phase, &i.label}), [in] { return in; }};
}

Underway Executor::start_shift(const Instruction& i, Microbatch& m, int microbatch) {
  Communicator& ring = group({i.move.atoms, {}});
  const int ways = ring.ways(), me = ring.index();
  const int tag = i.pending * program_.microbatches + microbatch;
  const Purpose purpose{i.phase, &i.label};
  const at::Tensor out = tensor(m, i.inputs[0]).contiguous();
  const Slot& slot = program_.slots[i.outputs[0]];
  at::Tensor in =
      at::empty(program_.local_shape(slot, at_, m.sizes->batch()), options(i.outputs[0]));
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
    const Moving what = moving(move, dims, now, next, batch);
    if (communicates(move.kind)) {
      moved = start_move(move, what, moved.contiguous(), false, group({move.atoms, {}}),
                         {"verify", &label})
                  .finish();
    } else {
      moved = local_move(move, what, moved, program_.mesh.index_in_group(rank_, move.atoms));
    }
    now = next;
  }
  return moved;
}

}  // namespace mw
