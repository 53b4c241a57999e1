// Begins an executor's transfers and brings what arrived into its slot: moves of tensors, shifts
// and sends, exchanges of rows, and transfers between slots that last.
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "meshwright/engine/connections.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/scalar_type.h"
#include "run/executor.h"

namespace mw {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& list) {
  return std::accumulate(list.begin(), list.end(), std::int64_t{0});
}

// Reorders rows, which travel by rank and lie by group. `from`: their numbers, by rank and group.
at::Tensor reordered(const at::Tensor& rows, const std::vector<std::vector<std::int64_t>>& from,
                     bool by_group) {
  const std::size_t ranks = from.size(), groups = from.empty() ? 0 : from.front().size();
  if (ranks < 2 || groups < 2) return rows;
  std::vector<at::Tensor> runs(ranks * groups);
  std::int64_t place = 0;
  for (std::size_t n = 0; n < runs.size(); ++n) {  // runs of rows in their present order
    const std::size_t rank = by_group ? n / groups : n % ranks;
    const std::size_t group = by_group ? n % groups : n / ranks;
    runs[by_group ? group * ranks + rank : rank * groups + group] =
        rows.narrow(0, place, from[rank][group]);
    place += from[rank][group];
  }
  return at::cat(runs);
}

}  // namespace

void Executor::connect() {
  std::vector<const Program*> programs{&program_};
  for (const auto& other : others_) programs.push_back(&other->program_);
  if (evaluator_) programs.push_back(&evaluator_->program_);
  for (const OuterProgram& outer : outer_) programs.push_back(&outer.executor->program_);
  const Ledger::Scope scope(ledger_, Category::buffers);
  for (const Connection& one : connections_of(programs, rank_)) communicator(one);
}

Communicator& Executor::communicator(const Connection& connection) {
  auto& made = kept_->communicators[connection];
  if (!made) {
    const std::vector<int>& ranks = connection.ranks;
    const auto index = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    made = make_communicator(source_, connection, static_cast<int>(index), &ledger_);
  }
  return *made;
}

Communicator& Executor::group(const RankSet& set, const std::string& stream) {
  return communicator({program_.name_of(set), program_.ranks_of(set, rank_), stream});
}

Communicator& Executor::group(Lowered& l) {
  if (l.group != nullptr) return *l.group;
  const Move& move = l.said->move;
  return *(l.group = &group(
               {move.atoms, move.stages, move.exchanges_rows()},
               move.stream < 0 ? "" : program_.streams.at(static_cast<std::size_t>(move.stream))));
}

void Executor::find_pairs(Lowered& l) {
  if (l.goes != nullptr || l.comes != nullptr) return;
  const Move& move = l.said->move;
  const std::string axis = program_.name_of({move.atoms, move.stages});
  for_each_pair(program_, move, rank_, [&](int from, int to) {
    (from == rank_ ? l.goes : l.comes) = &communicator({axis, {from, to}, "", /*pair=*/true});
  });
}

void Executor::wait(const Lowered& l, Microbatch& m) {
  const Instruction& i = *l.said;
  const int microbatch = l.of_step ? -1 : m.number;
  std::vector<Begun>& all = kept_->begun;
  const auto begun = std::find_if(all.begin(), all.end(), [&](const Begun& one) {
    return one.start->transfer == l.transfer && one.microbatch == microbatch;
  });
  if (begun == all.end()) {
    if (i.again && l.output.slot >= 0 && tensor(m, l.output).defined()) return;
    const Operand& slot = l.output.slot < 0 ? l.input : l.output;
    throw std::logic_error(fmt::format(
        "{} of {} waits for transfer {} of {}, which was never begun", name_of(i.code), i.label,
        i.pending, slot.slot < 0 ? "no slot" : program_.slots[slot.slot].name));
  }
  const at::Tensor done = finish(*begun, m);
  std::swap(*begun, all.back());
  all.pop_back();
  if (done.defined()) m.slots[l.output.slot] = done;
}

// Returns the tensor for a slot of the microbatch; undefined: none takes it.
at::Tensor Executor::finish(Begun& begun, const Microbatch& m) {
  const Lowered& start = *begun.start;
  const Move& move = start.said->move;
  Underway& underway = begun.underway;
  underway.pending.wait();
  underway.sent.wait();
  if (start.code == Code::hook_start) {
    const Ledger::Scope scope(ledger_, Category::buffers);
    const Ledger::Kernel kernel(ledger_);
    const auto bucket = static_cast<std::size_t>(start.said->bucket);
    start.said->serves == Serves::parameters ? kept_->gathers[bucket]->finish()
                                             : kept_->hooks[bucket]->finish();
  }
  if (move.exchanges_rows() && move.to == graph_.sparse.dims.front())
    return reordered(underway.out, m.rows[static_cast<std::size_t>(start.output.rows)].from, true);
  return start.move ? finish_move(underway, *start.move) : underway.out;
}

void Executor::start(Lowered& l, Microbatch& m) {
  kept_->begun.push_back({&l, l.of_step ? -1 : m.number, begin(l, m)});
}

Underway Executor::begin(Lowered& l, Microbatch& m) {
  const Instruction& i = *l.said;
  const Purpose purpose{i.phase, &i.label};
  if (l.code == Code::hook_start) {
    const Ledger::Scope scope(ledger_, Category::buffers);
    const Ledger::Kernel kernel(ledger_);
    if (i.serves == Serves::parameters) {
      const at::Tensor& whole = storage_.open(l.output.slot);
      kept_->gathers[i.bucket]->start(storage_[l.input.slot], whole, group(l), purpose);
    } else {
      kept_->hooks[i.bucket]->start(storage_[l.input.slot], group(l), purpose);
    }
    return {};
  }
  if (l.of_step) return start_lasting(l);
  if (i.move.exchanges_rows()) return start_exchange(l, m);
  const auto room = [&] { return at::empty(l.move->steps.arrived.shape, options(l.output.slot)); };
  const auto tag = [&](int number) { return number * program_.microbatches + m.number; };
  switch (i.move.kind) {
    case Move::Kind::send:
      find_pairs(l);
      return {l.goes->send(tensor(m, l.input), 1, tag(i.move.tag), purpose), {}, {}, {}};
    case Move::Kind::recv: {
      find_pairs(l);
      const at::Tensor comes = room();
      return {l.comes->recv(comes, 0, tag(i.move.tag), purpose), {}, {}, comes};
    }
    case Move::Kind::shift: {
      find_pairs(l);
      const int turn = tag(i.pending * i.ring_steps + i.ring_step);
      const at::Tensor goes = tensor(m, l.input).contiguous(), comes = room();
      Pending sent = l.goes->send(goes, 1, turn, purpose);
      return {l.comes->recv(comes, 0, turn, purpose), std::move(sent), goes, comes};
    }
    default:
      return start_move(i.move, *l.move, tensor(m, l.input), group(l), purpose);
  }
}

Underway Executor::start_lasting(Lowered& l) {
  const Instruction& i = *l.said;
  const at::Tensor &source = storage_[l.input.slot], &target = storage_.open(l.output.slot);
  // Where the source is still on its way from host memory, the transfer follows it there, and what
  // the rank computes goes on beside both.
  std::optional<c10::StreamGuard> guard;
  if (copies_.brings(source)) guard.emplace(copies_.stream_of(source));
  return {post(i.move, target, source, group(l), {i.phase, &i.label}), {}, {}, {}};
}

// Starts an exchange of rows: from the ranks of their tokens to the ranks of their groups, or back.
Underway Executor::start_exchange(Lowered& l, Microbatch& m) {
  const Instruction& i = *l.said;
  const bool home = i.move.to != graph_.sparse.dims.front();
  Communicator& ranks = group(l);
  const Purpose purpose{i.phase, &i.label};
  const Operand &tokens = home ? l.output : l.input, &groups = home ? l.input : l.output;
  const Rows& sent = m.rows[static_cast<std::size_t>(tokens.rows)];
  Rows& held = m.rows[static_cast<std::size_t>(groups.rows)];
  if (i.move.brings_counts) count_rows(sent, held, ranks, purpose);
  if (!held.known) {  // a pass has put it too early
    throw std::logic_error(i.label +
                           ": rows are exchanged before the exchange that brings their counts");
  }
  std::vector<std::int64_t> at_tokens, at_groups;  // rows that go from or to each rank
  auto of_rank = sent.of_group.begin();
  for (const std::vector<std::int64_t>& from : held.from) {
    const auto next = of_rank + static_cast<std::ptrdiff_t>(from.size());
    at_tokens.push_back(std::accumulate(of_rank, next, std::int64_t{0}));
    at_groups.push_back(sum(from));
    of_rank = next;
  }
  const at::Tensor& input = tensor(m, l.input);
  const at::Tensor in = (home ? reordered(input, held.from, false) : input).contiguous();
  std::vector<std::int64_t> shape = input.sizes().vec();
  shape[0] = sum(home ? at_tokens : at_groups);
  const at::Tensor out = at::empty(shape, input.options());
  Pending pending = ranks.all_to_all(out, in, home ? at_tokens : at_groups,
                                     home ? at_groups : at_tokens, purpose);
  return {std::move(pending), {}, in, out};
}

// Exchanges how many rows of each group will come, and from which rank.
void Executor::count_rows(const Rows& sent, Rows& held, Communicator& ranks, Purpose purpose) {
  const auto ways = static_cast<std::size_t>(ranks.ways());
  const at::Tensor mine = sent_to(device_, at::tensor(sent.of_group, at::kLong));
  const at::Tensor theirs = at::empty_like(mine);
  ranks.all_to_all(theirs, mine, {}, {}, purpose).wait();
  const HostWait waits("rows of experts");
  const at::Tensor arrived = theirs.cpu();
  const auto* rows = arrived.const_data_ptr<std::int64_t>();
  const std::size_t groups = sent.of_group.size() / ways;
  held.known = true;
  held.of_group.assign(groups, 0);
  held.from.clear();
  for (std::size_t rank = 0; rank < ways; ++rank, rows += groups) {
    const auto& from = held.from.emplace_back(rows, rows + groups);
    for (std::size_t g = 0; g < groups; ++g) held.of_group[g] += from[g];
  }
}

at::Tensor Executor::redistribute(const at::Tensor& tensor, const Dims& dims, const Layout& from,
                                  const Layout& to, std::int64_t batch) {
  at::Tensor moved = tensor;
  Layout now = from;
  static const std::string label = "gather for comparison";
  for (const Move& move : moves(from, to, program_.mesh)) {
    const Layout next = after(now, move);
    const ReadyMove ready(move_steps(move, dims, moved.sizes().vec(), now, next, program_.mesh, at_,
                                     [&](Dim dim) { return program_.size(dim, batch); }));
    if (communicates(move.kind)) {
      Underway underway =
          start_move(move, ready, moved, group({move.atoms, {}}), {"verify", &label});
      moved = finish_move(underway, ready);
    } else {
      moved = local_move(move, ready, moved);
    }
    now = next;
  }
  return moved;
}

at::Tensor Executor::in_own_order(at::Tensor whole, const Dims& dims, int microbatch) const {
  static const Dim batch("batch"), seq("seq");
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto order = program_.token_permutation.find(dims[d]);
    if (order != program_.token_permutation.end())
      whole = from_runs(whole, static_cast<std::int64_t>(d), order->second);
  }
  if (program_.document_parts == 1 || !contains(dims, seq) || !contains(dims, batch)) return whole;
  const auto at = [&](Dim dim) { return std::find(dims.begin(), dims.end(), dim) - dims.begin(); };
  const at::Tensor by_row = whole.movedim(at(batch), 0), own = at::empty_like(by_row);
  const std::int64_t tokens = at(seq) < at(batch) ? at(seq) : at(seq) - 1;  // the dim of a row
  const std::vector<std::int64_t> numbers = samples_of(microbatch, {0, whole.size(at(batch))});
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    const auto r = static_cast<std::int64_t>(row);
    own[r].copy_(from_runs(by_row[r], tokens, order_of(numbers[row])));
  }
  return own.movedim(0, at(batch)).contiguous();
}

void Executor::make_hooks() {
  Ledger::Scope scope(ledger_, Category::buffers);
  kept_->hooks.clear();
  kept_->gathers.clear();
  const auto options =
      at::TensorOptions().device(device_).dtype(scalar_type(program_.gradient_dtype));
  for (const Bucket& bucket : program_.buckets) {
    kept_->hooks.push_back(bucket.hook ? bucket.hook->make(shape_of(program_, bucket, at_), options)
                                       : nullptr);
    kept_->gathers.push_back(bucket.gather_hook ? bucket.gather_hook->make_gather(
                                                      gathered_shape_of(program_, bucket, at_),
                                                      options.dtype(scalar_type(program_.dtype)))
                                                : nullptr);
  }
}

at::Tensor Executor::whole(int bucket, bool gradients) {
  await_updates();
  const Bucket& b = program_.buckets[bucket];
  const at::Tensor& parameters = storage_[b.flat.parameters];
  if (!gradients && parameters.defined()) return parameters;
  const HostWait waits("a gather outside of steps");
  at::Tensor part = storage_[gradients ? b.flat.reduced : b.flat.stored].to(device_);
  if (b.shard_atoms.empty()) return part;
  Communicator& ranks = group({b.shard_atoms, {}});
  at::Tensor all = at::empty({part.numel() * ranks.ways()}, part.options());
  static const std::string label = "gather for comparison";
  ranks.all_gather(all, part.contiguous(), {"verify", &label}).wait();
  return all;
}

}  // namespace mw
