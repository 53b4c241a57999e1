// Issues collectives on a c10d backend and books each one's bytes and waiting time in the rank's
// ledger.
#include "meshwright/communicator.h"

#include <fmt/format.h>

#include <array>
#include <optional>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/cores.h"
#include "comm/futex.h"
#include "comm/local_backend.h"
#include "comm/purpose.h"
#include "comm/step_clock.h"
#include "meshwright/carrier.h"
#include "meshwright/engine/rank_calls.h"
#include "meshwright/error.h"
#include "meshwright/world.h"

namespace mw {
namespace {

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

c10d::ReduceOp reduce_op(Reduction op) {
  return op == Reduction::max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

double seconds_since(comm::Clock::time_point start) {
  return std::chrono::duration<double>(comm::Clock::now() - start).count();
}

}  // namespace

const char* name_of(Collective op) {
  static constexpr std::array names{"all-reduce", "all-gather", "reduce-scatter", "all-to-all",
                                    "broadcast",  "send",       "recv",           "barrier"};
  return names.at(static_cast<std::size_t>(op));
}

std::int64_t wire_bytes(Collective op, std::int64_t bytes, int ways) {
  switch (op) {
    case Collective::all_reduce:
      return 2 * (ways - 1) * bytes / ways;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::broadcast:
      return (ways - 1) * bytes / ways;
    case Collective::send:
      return bytes;
    case Collective::recv:
    case Collective::barrier:
      return 0;
  }
  return 0;
}

const Purpose* current_purpose() {
  return comm::PurposeScope::current();
}

Pending::Pending() = default;
Pending::Pending(c10::intrusive_ptr<c10d::Work> work, const Communicator* communicator,
                 Ledger::Entry entry)
    : work_(std::move(work)), communicator_(communicator), entry_(entry) {}
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;

bool Pending::valid() const {
  return work_.defined();
}

void Pending::wait() {
  if (!work_) return;
  const auto start = comm::Clock::now();
  const auto work = std::move(work_);
  comm::RankCalls* calls = comm::RankCalls::current();
  if (calls != nullptr) calls->waits(call_);
  Ledger* ledger = communicator_->ledger_;
  if (StepClock* clock = StepClock::on_device(); clock != nullptr && ledger != nullptr) {
    const int from = clock->mark();
    work->wait();
    if (calls != nullptr) calls->done(call_);
    clock->waited(*ledger, entry_, from, clock->mark());
    return;
  }
  {
    // A LocalWork gives up the rank's core itself, but only when it must sleep.
    std::optional<CoreRelease> away;
    if (dynamic_cast<comm::LocalWork*>(work.get()) == nullptr) away.emplace();
    work->wait();
  }
  if (calls != nullptr) calls->done(call_);
  if (ledger != nullptr) ledger->waited(entry_, seconds_since(start));
}

Communicator::Communicator(std::string axis, std::vector<int> group, int index,
                           c10::intrusive_ptr<c10d::Backend> backend, Ledger* ledger)
    : axis_(std::move(axis)),
      group_(std::move(group)),
      index_(index),
      backend_(std::move(backend)),
      ledger_(ledger) {}

Communicator::~Communicator() = default;

std::unique_ptr<Communicator> make_communicator(CommunicatorSource& source,
                                                const Connection& connection, int index,
                                                Ledger* ledger) {
  return std::make_unique<Communicator>(connection.axis, connection.ranks, index,
                                        source.backend(connection, index), ledger);
}

std::string Connection::name() const {
  return stream.empty() ? axis : fmt::format("{} on stream {}", axis, stream);
}

Ledger::Entry Communicator::entry_of(Collective op, const char* phase) {
  for (const Booked& known : booked_) {
    if (known.op == op && known.phase == phase) return known.entry;
  }
  const Ledger::Entry entry = ledger_->communication_entry(axis_, name_of(op), phase);
  return booked_.emplace_back(Booked{op, phase, entry}).entry;
}

template <class Call>
Pending Communicator::issue(Collective op, std::int64_t sent, const Purpose& purpose, Call&& call) {
  const comm::PurposeScope scope(purpose);
  const auto start = comm::Clock::now();
  comm::RankCalls* calls = comm::RankCalls::current();
  const std::int64_t number = calls == nullptr ? -1 : calls->begun(axis_, name_of(op), purpose);
  const Ledger::Entry entry = ledger_ == nullptr ? 0 : entry_of(op, purpose.phase);
  Pending pending(call(), this, entry);
  pending.call_ = number;
  if (ledger_ != nullptr) {
    ledger_->communicated(entry, sent);
    // On an accelerator the call has only queued the collective, which takes no time.
    ledger_->waited(entry, StepClock::on_device() == nullptr ? seconds_since(start) : 0);
  }
  return pending;
}

int Communicator::checked_peer(int index, Collective op) const {
  if (index >= 0 && index < ways()) return index;
  throw Error(Stage::run, "collective.rank", "",
              fmt::format("{} on axis '{}': there is no index {} among its {} ranks.", name_of(op),
                          axis_, index, ways()));
}

Pending Communicator::all_reduce(at::Tensor inout, Reduction op, Purpose purpose) {
  constexpr auto kind = Collective::all_reduce;
  return issue(kind, wire_bytes(kind, bytes_of(inout), ways()), purpose, [&] {
    std::vector<at::Tensor> tensors{inout};
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(op);
    return backend_->allreduce(tensors, options);
  });
}

Pending Communicator::all_gather(at::Tensor out, at::Tensor in, Purpose purpose) {
  constexpr auto kind = Collective::all_gather;
  return issue(kind, wire_bytes(kind, bytes_of(out), ways()), purpose,
               [&] { return backend_->_allgather_base(out, in, {}); });
}

Pending Communicator::reduce_scatter(at::Tensor out, at::Tensor in, Reduction op, Purpose purpose) {
  constexpr auto kind = Collective::reduce_scatter;
  return issue(kind, wire_bytes(kind, bytes_of(in), ways()), purpose, [&] {
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduce_op(op);
    return backend_->_reduce_scatter_base(out, in, options);
  });
}

Pending Communicator::all_to_all(at::Tensor out, at::Tensor in,
                                 std::vector<std::int64_t> out_splits,
                                 std::vector<std::int64_t> in_splits, Purpose purpose) {
  constexpr auto kind = Collective::all_to_all;
  std::int64_t sent = wire_bytes(kind, bytes_of(in), ways());
  if (static_cast<int>(in_splits.size()) == ways() && in.dim() > 0 && in.size(0) > 0) {
    const auto kept = in_splits[static_cast<std::size_t>(index_)];
    sent = bytes_of(in) / in.size(0) * (in.size(0) - kept);
  }
  return issue(kind, sent, purpose,
               [&] { return backend_->alltoall_base(out, in, out_splits, in_splits, {}); });
}

Pending Communicator::broadcast(at::Tensor inout, int root_index, Purpose purpose) {
  constexpr auto kind = Collective::broadcast;
  return issue(kind, wire_bytes(kind, bytes_of(inout), ways()), purpose, [&] {
    std::vector<at::Tensor> tensors{inout};
    c10d::BroadcastOptions options;
    options.rootRank = checked_peer(root_index, kind);
    return backend_->broadcast(tensors, options);
  });
}

Pending Communicator::send(at::Tensor tensor, int to_index, int tag, Purpose purpose) {
  constexpr auto kind = Collective::send;
  return issue(kind, wire_bytes(kind, bytes_of(tensor), ways()), purpose, [&] {
    std::vector<at::Tensor> tensors{tensor};
    return backend_->send(tensors, checked_peer(to_index, kind), tag);
  });
}

Pending Communicator::recv(at::Tensor tensor, int from_index, int tag, Purpose purpose) {
  constexpr auto kind = Collective::recv;
  return issue(kind, wire_bytes(kind, bytes_of(tensor), ways()), purpose, [&] {
    std::vector<at::Tensor> tensors{tensor};
    return backend_->recv(tensors, checked_peer(from_index, kind), tag);
  });
}

Pending Communicator::barrier(Purpose purpose) {
  return issue(Collective::barrier, 0, purpose, [&] { return backend_->barrier({}); });
}

}  // namespace mw
