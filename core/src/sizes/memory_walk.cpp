#include "sizes/memory_walk.h"

#include <algorithm>
#include <utility>

#include "sizes/matrices.h"

namespace mw {
namespace {

class Walk {
 public:
  Walk(const RankView& rank, Held& held, bool highest)
      : rank_(rank), program_(rank.program()), held_(held), wants_highest_(highest) {
    held_.storage.resize(program_.slots.size(), -1);
    bucket_of_.assign(program_.slots.size(), -1);
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      for (int p : program_.buckets[b].parameters) {
        bucket_of_[program_.parameters[p].gradient_slot] = static_cast<int>(b);
      }
    }
  }

  Effect run(const Segment& segment) {
    for (const Instruction& i : segment.code) {
      instruction(i);
      for (int slot : i.release) drop(slot);
    }
    return effect_;
  }

 private:
  void take(std::int64_t bytes, bool buffer = false) {
    (buffer ? effect_.after.buffers : effect_.after.activations) += bytes;
    effect_.highest.activations = std::max(effect_.highest.activations, effect_.after.activations);
    effect_.highest.buffers = std::max(effect_.highest.buffers, effect_.after.buffers);
    effect_.highest_sum =
        std::max(effect_.highest_sum, effect_.after.activations + effect_.after.buffers);
  }
  // Beside the rank's own memory.
  void take_host(std::int64_t bytes) {
    effect_.after.host += bytes;
    effect_.highest.host = std::max(effect_.highest.host, effect_.after.host);
  }
  // Memory that lives inside an instruction only.
  void pass(std::int64_t bytes) {
    take(bytes);
    take(-bytes);
  }

  int add(std::int64_t bytes, bool buffer = false) {
    take(bytes, buffer);
    held_.storages.push_back({bytes, 0, buffer});
    return static_cast<int>(held_.storages.size()) - 1;
  }
  void put(int slot, int storage) {
    ++held_.storages[storage].users;
    drop(slot);
    held_.storage[slot] = storage;
  }
  void drop(int slot) {
    int& storage = held_.storage[slot];
    if (storage < 0) return;
    HeldStorage& lies = held_.storages[storage];
    if (--lies.users == 0) lies.host ? take_host(-lies.bytes) : take(-lies.bytes, lies.buffer);
    storage = -1;
  }

  void fresh(int slot) { put(slot, add(rank_.bytes(slot))); }
  // The slot's own new storage, or that of the slot which it overwrites.
  void yield(int slot, bool in_place) {
    const int of = program_.slots[slot].alias_of;
    if (in_place && of >= 0 && held_.storage[of] >= 0) {
      put(slot, held_.storage[of]);
    } else {
      fresh(slot);
    }
  }

  void instruction(const Instruction& i) {
    switch (i.code) {
      case Code::load:
        load(i);
        break;
      case Code::compute:
        compute(i);
        break;
      case Code::gather:
        if (stored_in_parts(i, Parted::parameters))
          open(held_.gathered[i.bucket], rank_.flat(i.bucket).parameters);
        break;
      case Code::drop:
        close(held_.gathered[i.bucket]);
        break;
      case Code::reduce: {
        const ReductionCost hook = rank_.reduction(i.bucket);
        take(hook.held + hook.start.workspace, true);
        take(-hook.start.workspace, true);
        if (stored_in_parts(i, Parted::gradients))  // if nothing was written
          open(held_.whole[i.bucket], rank_.flat(i.bucket).gradients);
        take(rank_.flat(i.bucket).reducing, true);
        break;
      }
      case Code::reduce_parts:
      case Code::reduced_parts:
        take((i.code == Code::reduce_parts ? 1 : -1) * rank_.flat(i.bucket).reducing_parts, true);
        break;
      case Code::reduced: {
        const ReductionCost hook = rank_.reduction(i.bucket);
        take(hook.finish.workspace, true);
        take(-hook.finish.workspace - hook.held, true);
        if (stored_in_parts(i, Parted::gradients)) close(held_.whole[i.bucket]);
        take(-rank_.flat(i.bucket).reducing, true);
        break;
      }
      case Code::hand: {  // of a walk that begins here, nothing is known of who handed it on
        const int given = held_.storage[i.inputs[0]];
        given < 0 ? fresh(i.outputs[0]) : put(i.outputs[0], given);
        break;
      }
      case Code::move:
      case Code::seed:
      case Code::copy:
      case Code::fetch:
        fresh(i.outputs[0]);
        break;
      case Code::offload:
        take_host(rank_.bytes(i.outputs[0]));
        held_.storages.push_back({rank_.bytes(i.outputs[0]), 0, false, true});
        put(i.outputs[0], static_cast<int>(held_.storages.size()) - 1);
        break;
      case Code::start:
        start(i);
        break;
      case Code::wait:
        wait(i);
        break;
      case Code::totals:
        pass(64);  // a handful of scalars
        for (std::size_t b = 0; program_.gradient_element < 4 && b < program_.buckets.size(); ++b) {
          pass(4 * std::min(rank_.flat(static_cast<int>(b)).part_elements, widened_at_a_time));
        }
        break;
      case Code::direct:
        direct(i);
        break;
      case Code::update:
        if (i.parameter >= 0) pass(matrix_update(rank_, i).workspace);
        if (i.parameter >= 0 || program_.buckets[i.bucket].offload != Offload::nothing) break;
        if (program_.master_element > program_.gradient_element) {
          pass(program_.master_element *
               std::min(rank_.flat(i.bucket).part_elements, widened_at_a_time));
        }
        break;
      case Code::add:
        if (program_.slots[i.outputs[0]].persistent) written(i.outputs[0]);
        break;
      default:
        break;  // no memory to speak of
    }
  }

  // Tokens and labels are read together, then cut to the rank's columns: a copy, but of one row.
  void load(const Instruction& i) {
    static const Dim batch("batch"), seq("seq");
    const std::int64_t sequence = program_.graph->size(seq);
    int read[2] = {-1, -1};
    std::vector<std::pair<int, int>> views;
    for (int slot : i.outputs) {
      const Slot& s = program_.slots[slot];
      if (s.name == "positions") {
        const Range own = local_range(seq, sequence, s.layout, program_.mesh, rank_.at());
        if (program_.lying(seq, own).size() > 1) pass(rank_.bytes(slot));  // joined from its runs
        put(slot, add(rank_.bytes(slot), true));
        continue;
      }
      const Range columns = local_range(seq, sequence, s.layout, program_.mesh, rank_.at());
      const bool together = program_.lying(seq, columns).size() == 1;
      const std::int64_t rows = local_range(batch, program_.size(batch, rank_.batch()), s.layout,
                                            program_.mesh, rank_.at())
                                    .size;
      if (read[0] < 0) {
        for (int& storage : read) {
          storage = add(rows * sequence * 8, true);
          ++held_.storages[storage].users;  // the reader's own
        }
      }
      put(slot, together && (columns.size == sequence || rows == 1) ? read[s.name == "labels"]
                                                                    : add(rank_.bytes(slot), true));
    }
    for (int storage : read) {
      if (storage < 0) continue;
      HeldStorage& lies = held_.storages[storage];
      if (--lies.users == 0) take(-lies.bytes, true);
    }
  }

  void direct(const Instruction& i) {
    const DirectSize size = direct_size(rank_, i);
    take(size.widened);
    const int storage = add(size.made);
    for (int slot : i.outputs) put(slot, storage);
    take(-size.widened);
  }

  bool stored_in_parts(const Instruction& i, Parted what) const {
    return program_.buckets[i.bucket].parted >= what;
  }
  // A whole flat tensor beside the part that is kept.
  void open(std::int64_t& bytes, std::int64_t whole) {
    if (bytes > 0) return;
    bytes = whole;
    take(bytes, true);
  }
  void close(std::int64_t& bytes) {
    take(-bytes, true);
    bytes = 0;
  }
  // Gradients stored in parts are written to a whole tensor first.
  void written(int slot) {
    const int bucket = bucket_of_[slot];
    if (bucket < 0 || program_.buckets[bucket].parted < Parted::gradients) return;
    open(held_.whole[bucket], rank_.flat(bucket).gradients);
  }

  void compute(const Instruction& i) {
    if (!rank_.runs(i)) return;
    std::int64_t apart = 0;  // gradients that are made on their own, then added
    const Op& op = program_.graph->ops()[i.op];
    for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
      const int slot = i.grad_inputs[k];
      if (slot < 0) continue;
      if (!program_.slots[slot].persistent) {
        if (i.accumulate[k] && op.type->traits(op).gradients_apart) apart += rank_.bytes(slot);
        continue;
      }
      written(slot);
      if (program_.gradient_element != program_.element && rank_.first_of(i.first_of[k])) {
        apart += rank_.bytes(slot);
      }
    }
    if (i.piece == Piece::forward && i.turn == 0) {
      for (std::size_t k = 0; k < i.outputs.size(); ++k) yield(i.outputs[k], i.in_place && k == 0);
      for (int slot : i.saved) fresh(slot);
    } else if (i.piece != Piece::forward) {
      for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
        const int slot = i.grad_inputs[k];
        if (slot < 0 || program_.slots[slot].persistent || i.accumulate[k]) continue;
        yield(slot, i.in_place);
      }
    }
    if (!wants_highest_) return;
    const Scratch workspace = rank_.workspace(i.op, i.piece, i.turn);
    effect_.measured = effect_.measured && workspace.measured;
    pass(workspace.bytes + apart);
  }

  void start(const Instruction& i) {
    const MoveSize move = rank_.size_of(i);
    pass(move.start_peak);
    take(move.held);
    held_.underway[i.pending] = move.held;
  }

  void wait(const Instruction& i) {
    const MoveSize move = rank_.size_of(i);
    const std::int64_t held = held_.underway[i.pending];
    held_.underway.erase(i.pending);
    if (i.outputs.empty()) return;  // a send
    if (move.takes_source) {
      put(i.outputs[0], held_.storage[i.inputs[0]]);
      take(-held);
      return;
    }
    if (move.takes_held) {
      take(-held);
      put(i.outputs[0], add(move.result));
      return;
    }
    const int made = add(move.result);
    put(i.outputs[0], made);
    take(-held);
  }

  const RankView& rank_;
  const Program& program_;
  Held& held_;
  const bool wants_highest_;
  std::vector<int> bucket_of_;  // of gradient slots
  Effect effect_;
};

}  // namespace

Effect walk(const RankView& rank, Held& held, const Segment& segment, bool highest) {
  return Walk(rank, held, highest).run(segment);
}

}  // namespace mw
