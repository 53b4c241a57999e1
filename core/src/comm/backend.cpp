// Checks what a rank passes to a collective, whatever carries it, and puts it into the form that
// ranks compare; the words of what goes wrong where ranks meet.
#include "meshwright/backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "comm/local_world.h"
#include "comm/purpose.h"

namespace mw::comm {
namespace {

Combine combine_of(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return Combine::sum;
    case c10d::ReduceOp::AVG:
      return Combine::average;
    case c10d::ReduceOp::PRODUCT:
      return Combine::product;
    case c10d::ReduceOp::MIN:
      return Combine::min;
    case c10d::ReduceOp::MAX:
      return Combine::max;
    default:
      throw Error(Stage::run, "collective.type", "", "Ranks cannot reduce with this operation.",
                  "Use sum, average, product, min or max.");
  }
}

}  // namespace

CheckedBackend::CheckedBackend(std::string axis, const std::vector<int>& group, int index,
                               std::chrono::milliseconds timeout)
    : Backend(index, static_cast<int>(group.size())),
      axis_(std::move(axis)),
      global_rank_(group[static_cast<std::size_t>(index)]),
      timeout_(timeout) {}

void CheckedBackend::check(bool fits, Collective op, const std::string& what) const {
  if (fits) return;
  throw Error(
      Stage::run, "collective.arguments", "",
      fmt::format("{} on axis '{}', rank {}: {}", mw::name_of(op), axis_, global_rank_, what));
}

void CheckedBackend::check_tensor(Collective op, const at::Tensor& tensor) const {
  check(tensor.defined(), op, "the tensor is undefined.");
  check(tensor.is_contiguous(), op, "the tensor is not contiguous.");
}

at::Tensor& CheckedBackend::only_tensor(Collective op, std::vector<at::Tensor>& tensors) const {
  check(tensors.size() == 1, op, "takes one tensor.");
  check_tensor(op, tensors[0]);
  return tensors[0];
}

void CheckedBackend::check_pair(Collective op, const at::Tensor& input,
                                const at::Tensor& output) const {
  check_tensor(op, output);
  check_tensor(op, input);
  check(output.scalar_type() == input.scalar_type(), op, "input and output differ in dtype.");
}

Call CheckedBackend::new_call(Collective op, const at::Tensor& tensor,
                              std::int64_t elements) const {
  Call call;
  call.op = op;
  call.dtype = tensor.scalar_type();
  call.device = tensor.device();
  call.elements = elements;
  return call;
}

CheckedBackend::Issue CheckedBackend::new_issue(Call call, at::Tensor in, at::Tensor out,
                                                c10d::OpType type,
                                                std::chrono::milliseconds timeout) const {
  Issue issue;
  if (const auto* purpose = PurposeScope::current()) {
    if (purpose->label != nullptr) call.label = *purpose->label;
    if (purpose->phase != nullptr) call.phase = purpose->phase;
  }
  issue.call = std::move(call);
  if (out.defined()) {
    issue.tensors.push_back(out);
    issue.results.push_back(out);
    if (!in.is_same(out)) issue.tensors.push_back(in);
  }
  issue.in = std::move(in);
  issue.out = std::move(out);
  issue.type = type;
  issue.timeout = timeout.count() > 0 ? timeout : timeout_;
  return issue;
}

CheckedBackend::WorkPtr CheckedBackend::allreduce(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& options) {
  constexpr auto op = Collective::all_reduce;
  auto& tensor = only_tensor(op, tensors);
  auto call = new_call(op, tensor, tensor.numel());
  call.combine = combine_of(options.reduceOp);
  check_reducible(call.dtype, call.combine);
  return issue(
      new_issue(std::move(call), tensor, tensor, c10d::OpType::ALLREDUCE, options.timeout));
}

CheckedBackend::WorkPtr CheckedBackend::broadcast(std::vector<at::Tensor>& tensors,
                                                  const c10d::BroadcastOptions& options) {
  constexpr auto op = Collective::broadcast;
  auto& tensor = only_tensor(op, tensors);
  auto call = new_call(op, tensor, tensor.numel());
  call.root = static_cast<int>(options.rootRank);
  check(call.root >= 0 && call.root < size_, op,
        fmt::format("root {} is not one of its {} ranks.", call.root, size_));
  return issue(
      new_issue(std::move(call), tensor, tensor, c10d::OpType::BROADCAST, options.timeout));
}

CheckedBackend::WorkPtr CheckedBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const c10d::AllgatherOptions& options) {
  constexpr auto op = Collective::all_gather;
  check(inputs.size() == 1 && outputs.size() == 1, op, "takes one input and one list of outputs.");
  check(static_cast<int>(outputs[0].size()) == size_, op,
        fmt::format("{} outputs for {} ranks.", outputs[0].size(), size_));
  // A list of outputs is an all-to-all with equal rows, whose input is the same for every rank; as
  // few need it, it goes through one flat buffer.
  auto flat = at::empty({size_ * inputs[0].numel()}, inputs[0].options().requires_grad(false));
  auto work = _allgather_base(flat, inputs[0], options);
  work->wait();
  for (int i = 0; i < size_; ++i) {
    auto& output = outputs[0][static_cast<std::size_t>(i)];
    output.copy_(flat.narrow(0, i * inputs[0].numel(), inputs[0].numel()).view_as(output));
  }
  return work;
}

CheckedBackend::WorkPtr CheckedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  constexpr auto op = Collective::all_gather;
  check_pair(op, input, output);
  check(output.numel() == size_ * input.numel(), op,
        fmt::format("the output has {} elements; {} ranks with {} each need {}.", output.numel(),
                    size_, input.numel(), size_ * input.numel()));
  return issue(new_issue(new_call(op, input, input.numel()), input, output,
                         c10d::OpType::_ALLGATHER_BASE, options.timeout));
}

CheckedBackend::WorkPtr CheckedBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  constexpr auto op = Collective::reduce_scatter;
  check_pair(op, input, output);
  check(input.numel() == size_ * output.numel(), op,
        fmt::format("the input has {} elements; {} ranks that keep {} each need {}.", input.numel(),
                    size_, output.numel(), size_ * output.numel()));
  auto call = new_call(op, output, output.numel());
  call.combine = combine_of(options.reduceOp);
  check_reducible(call.dtype, call.combine);
  return issue(new_issue(std::move(call), input, output, c10d::OpType::_REDUCE_SCATTER_BASE,
                         options.timeout));
}

CheckedBackend::WorkPtr CheckedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<std::int64_t>& out_splits,
                                                      std::vector<std::int64_t>& in_splits,
                                                      const c10d::AllToAllOptions& options) {
  constexpr auto op = Collective::all_to_all;
  check_pair(op, input, output);
  check(size_ == 1 || input.numel() == 0 || input.data_ptr() != output.data_ptr(), op,
        "input and output are the same memory.");
  const auto splits = [&](const at::Tensor& tensor, const std::vector<std::int64_t>& given,
                          const char* name) {
    check(tensor.dim() >= 1, op, fmt::format("the {} has no dims to split.", name));
    const auto rows = tensor.size(0);
    if (given.empty()) {
      check(rows % size_ == 0, op,
            fmt::format("{} rows of the {} cannot be split evenly over {} ranks.", rows, name,
                        size_));
      return std::vector<std::int64_t>(static_cast<std::size_t>(size_), rows / size_);
    }
    check(static_cast<int>(given.size()) == size_, op,
          fmt::format("{} splits of the {} for {} ranks.", given.size(), name, size_));
    check(std::accumulate(given.begin(), given.end(), std::int64_t{0}) == rows &&
              std::none_of(given.begin(), given.end(), [](std::int64_t s) { return s < 0; }),
          op,
          fmt::format("the splits {} of the {} do not make up its {} rows.", fmt::join(given, "+"),
                      name, rows));
    return given;
  };
  const auto row = [](const at::Tensor& tensor) {
    std::int64_t elements = 1;
    for (std::int64_t d = 1; d < tensor.dim(); ++d) elements *= tensor.size(d);
    return elements;
  };
  auto call = new_call(op, input, row(input));
  call.in_splits = splits(input, in_splits, "input");
  call.out_splits = splits(output, out_splits, "output");
  check(row(input) == row(output), op,
        fmt::format("rows of the input have {} elements, of the output {}.", row(input),
                    row(output)));
  return issue(
      new_issue(std::move(call), input, output, c10d::OpType::ALLTOALL_BASE, options.timeout));
}

CheckedBackend::WorkPtr CheckedBackend::send_or_recv(Collective op,
                                                     std::vector<at::Tensor>& tensors, int peer,
                                                     int tag) {
  auto& tensor = only_tensor(op, tensors);
  check(peer >= 0 && peer < size_, op,
        fmt::format("partner {} is not one of its {} ranks.", peer, size_));
  const auto type = op == Collective::send ? c10d::OpType::SEND : c10d::OpType::RECV;
  return issue_pair(new_issue(new_call(op, tensor, tensor.numel()), tensor, tensor, type, timeout_),
                    peer, tag);
}

CheckedBackend::WorkPtr CheckedBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  return send_or_recv(Collective::send, tensors, to, tag);
}

CheckedBackend::WorkPtr CheckedBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  return send_or_recv(Collective::recv, tensors, from, tag);
}

CheckedBackend::WorkPtr CheckedBackend::barrier(const c10d::BarrierOptions& options) {
  Call call;
  call.op = Collective::barrier;
  return issue(new_issue(std::move(call), {}, {}, c10d::OpType::BARRIER, options.timeout));
}

std::vector<int> process_of_ranks(const std::vector<std::vector<int>>& ranks) {
  std::vector<int> process_of;
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    for (const int rank : ranks[p]) {
      const auto at = static_cast<std::size_t>(rank);
      if (at >= process_of.size()) process_of.resize(at + 1, -1);
      process_of[at] = static_cast<int>(p);
    }
  }
  return process_of;
}

std::unique_ptr<ThreadSource> thread_source(int ranks, std::chrono::milliseconds timeout,
                                            const Beyond* beyond) {
  return std::make_unique<LocalWorld>(ranks, timeout, beyond);
}

std::string list_ranks(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  std::string text = "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  }
  return text;
}

std::string Call::describe() const {
  std::string text = mw::name_of(op);
  if (op == Collective::all_reduce || op == Collective::reduce_scatter) {
    text += fmt::format(" ({})", comm::name_of(combine));
  }
  if (op == Collective::broadcast) text += fmt::format(" from index {}", root);
  if (op == Collective::all_to_all) {
    text += fmt::format(" of rows of {} {}, {} rows out and {} in", elements, c10::toString(dtype),
                        fmt::join(in_splits, "+"), fmt::join(out_splits, "+"));
  } else if (op != Collective::barrier) {
    text += fmt::format(" of {} {}", elements, c10::toString(dtype));
  }
  if (!device.is_cpu()) text += fmt::format(" on {}", device.str());
  if (!label.empty()) text += fmt::format(" for '{}'", label);
  if (!phase.empty()) text += fmt::format(" ({})", phase);
  return text;
}

bool Call::fits(std::size_t place, const Call& other, std::size_t other_place) const {
  const auto point_to_point = [](Collective c) {
    return c == Collective::send || c == Collective::recv;
  };
  const bool pair = point_to_point(op) && point_to_point(other.op);
  if (!pair && (op != other.op || label != other.label)) return false;
  if (op == Collective::barrier) return true;
  const bool reduces = op == Collective::all_reduce || op == Collective::reduce_scatter;
  if (dtype != other.dtype || device.type() != other.device.type() || elements != other.elements ||
      root != other.root || (reduces && combine != other.combine))
    return false;
  return op != Collective::all_to_all || (in_splits[other_place] == other.out_splits[place] &&
                                          out_splits[other_place] == other.in_splits[place]);
}

void lay_out(std::span<const Call* const> calls, std::vector<Run>& runs) {
  runs.clear();
  const std::size_t n = calls.size();
  const auto known = static_cast<std::size_t>(
      std::find_if(calls.begin(), calls.end(), [](const Call* call) { return call != nullptr; }) -
      calls.begin());
  const Call& call = *calls[known];
  const auto add = [&](std::int64_t elements, Run::Buffers in, Run::Buffers out) {
    if (elements > 0) runs.push_back({in, out, elements});
  };
  const auto one = [](std::size_t member, std::int64_t begin = 0) {
    return Run::Buffers{member, 1, begin};
  };
  const auto all = [&](std::size_t part) {
    return Run::Buffers{0, n, static_cast<std::int64_t>(part) * call.elements};
  };
  switch (call.op) {
    case Collective::barrier:
      return;
    case Collective::all_reduce:
      return add(call.elements, all(0), all(0));
    case Collective::all_gather:
      for (std::size_t m = 0; m < n; ++m) add(call.elements, one(m), all(m));
      return;
    case Collective::reduce_scatter:
      for (std::size_t m = 0; m < n; ++m) add(call.elements, all(m), one(m));
      return;
    case Collective::broadcast:
      return add(call.elements, one(static_cast<std::size_t>(call.root)), all(0));
    case Collective::send:
      return add(call.elements, one(known), one(1 - known));
    case Collective::recv:
      return add(call.elements, one(1 - known), one(known));
    case Collective::all_to_all:
      break;
  }
  std::vector<std::int64_t> filled(n, 0);  // elements of each output that are laid out
  for (std::size_t from = 0; from < n; ++from) {
    std::int64_t taken = 0;
    for (std::size_t to = 0; to < n; ++to) {
      const std::int64_t rows = calls[from] != nullptr ? calls[from]->in_splits[to]
                                : calls[to] != nullptr ? calls[to]->out_splits[from]
                                                       : 0;
      add(rows * call.elements, one(from, taken), one(to, filled[to]));
      taken += rows * call.elements;
      filled[to] += rows * call.elements;
    }
  }
}

void throw_failure(const Problem& problem, Cause cause) {
  if (cause == Cause::itself) throw Error(problem);
  if (cause == Cause::absence) throw WaitedInVain(problem);
  throw Aborted(problem.message, problem.hint);
}

void check_group(const std::string& axis, const std::vector<int>& group, int index, int ranks) {
  for (const int rank : group) {
    if (rank >= 0 && rank < ranks) continue;
    throw Error(Stage::run, "collective.rank", "",
                fmt::format("Axis '{}' names rank {}, but there are {} ranks.", axis, rank, ranks));
  }
  if (index < 0 || index >= static_cast<int>(group.size())) {
    throw Error(Stage::run, "collective.rank", "",
                fmt::format("Axis '{}' has no index {}: its group has {} ranks.", axis, index,
                            group.size()));
  }
}

Problem disagreement(const std::string& axis, const std::string& name, int rank, const Call& call,
                     int other_rank, const Call& other_call) {
  return {
      Stage::run, "collective.mismatch", "",
      fmt::format("Ranks disagree on axis '{}', {}: rank {} called {}; rank {} called {}.", axis,
                  name, rank, call.describe(), other_rank, other_call.describe()),
      "All ranks of an axis must make the same calls in the same order, with sizes that match."};
}

Problem ended_rank(const std::string& axis, const std::string& name, const std::string& call,
                   int ended, const std::vector<int>& waiting, const std::string& whereabouts) {
  return {Stage::run, "collective.mismatch", "",
          fmt::format("Rank {} has ended, but {} on axis '{}' ({}) still needs it. Waiting: {}.{}",
                      ended, call, axis, name, list_ranks(waiting), whereabouts),
          "All ranks of an axis must make the same calls in the same order."};
}

Problem aborted_run(const std::string& why, const std::string& hint) {
  return {Stage::run, "run.aborted", "", why, hint};
}

Problem dropped_collective(const std::string& axis, int rank, const std::string& what) {
  return aborted_run(
      fmt::format("Rank {} dropped a collective on axis '{}' without waiting for it: "
                  "{}.",
                  rank, axis, what),
      "Call wait() on every Pending.");
}

std::string stopped_by(int rank, const std::string& reason) {
  return fmt::format("Stopped because rank {} failed: {}", rank, reason);
}

Problem lateness(const std::string& axis, const std::string& name, const std::string& call,
                 double seconds, const std::vector<int>& missing, const std::vector<int>& waiting,
                 const std::string& whereabouts) {
  return {Stage::run, "collective.timeout", "",
          fmt::format("{} on axis '{}' ({}) waited {:.3g} s for {}. Waiting: {}.{}", call, axis,
                      name, seconds, list_ranks(missing), list_ranks(waiting), whereabouts),
          "All ranks of an axis must make the same calls in the same order; raise the timeout if "
          "a rank is only slow."};
}

std::string held_up_by(const std::vector<int>& missing, const std::vector<IdleRank>& idle) {
  constexpr std::size_t most_named = 2;
  if (idle.size() > most_named) return "";
  std::string text;
  for (const IdleRank& one : idle) {
    if (std::find(missing.begin(), missing.end(), one.rank) != missing.end()) return "";
    text += fmt::format(" Rank {} waits for no rank, and others wait in turn: it {}.", one.rank,
                        one.text);
  }
  return text;
}

}  // namespace mw::comm
