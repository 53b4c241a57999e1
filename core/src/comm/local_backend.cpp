// Checks what a rank passes to a collective and joins it to the round in which the group's
// thread ranks meet.
#include "comm/local_backend.h"

#include <fmt/format.h>

#include <numeric>

#include "comm/purpose.h"
#include "comm/streams.h"
#include "meshwright/error.h"

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
      throw Error(Stage::run, "collective.type", "",
                  "The thread backend cannot reduce with this operation.",
                  "Use sum, average, product, min or max.");
  }
}

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

}  // namespace

LocalBackend::LocalBackend(LocalWorld& world, std::shared_ptr<LocalGroup> group, int index)
    : Backend(index, static_cast<int>(group->ranks().size())),
      world_(world),
      group_(std::move(group)),
      global_rank_(group_->ranks()[static_cast<std::size_t>(index)]),
      timeout_(world.timeout()) {}

void LocalBackend::abort() {
  world_.abort(global_rank_, fmt::format("abort() was called on axis '{}'", group_->axis()));
}

void LocalBackend::check(bool fits, Collective op, const std::string& what) const {
  if (fits) return;
  throw Error(Stage::run, "collective.arguments", "",
              fmt::format("{} on axis '{}', rank {}: {}", mw::name_of(op), group_->axis(),
                          global_rank_, what));
}

void LocalBackend::check_tensor(Collective op, const at::Tensor& tensor) const {
  check(tensor.defined(), op, "the tensor is undefined.");
  check(tensor.is_contiguous(), op, "the tensor is not contiguous.");
}

at::Tensor& LocalBackend::only_tensor(Collective op, std::vector<at::Tensor>& tensors) const {
  check(tensors.size() == 1, op, "takes one tensor.");
  check_tensor(op, tensors[0]);
  return tensors[0];
}

void LocalBackend::check_pair(Collective op, const at::Tensor& input,
                              const at::Tensor& output) const {
  check_tensor(op, output);
  check_tensor(op, input);
  check(output.scalar_type() == input.scalar_type(), op, "input and output differ in dtype.");
}

Call LocalBackend::new_call(Collective op, const at::Tensor& tensor, std::int64_t elements) const {
  Call call;
  call.op = op;
  call.dtype = tensor.scalar_type();
  call.device = tensor.device();
  call.elements = elements;
  return call;
}

Arrival LocalBackend::new_arrival(Call call, const at::Tensor* in, at::Tensor* out) {
  Arrival arrival;
  if (const auto* purpose = PurposeScope::current()) {
    if (purpose->label != nullptr) call.label = *purpose->label;
    if (purpose->phase != nullptr) call.phase = purpose->phase;
  }
  if (!call.device.is_cpu()) {
    if (!stream_) stream_ = new_stream(call.device, /*urgent=*/true);
    arrival.stream = stream_;
    arrival.ready.emplace(record_event(current_stream(call.device)));
  }
  arrival.call = std::move(call);
  if (in != nullptr) arrival.in = bytes_of(*in);
  if (out != nullptr) arrival.out = bytes_of(*out);
  return arrival;
}

LocalBackend::WorkPtr LocalBackend::issue(Arrival arrival, std::vector<at::Tensor> tensors,
                                          std::vector<at::Tensor> results, c10d::OpType type,
                                          std::chrono::milliseconds timeout) {
  auto seat = group_->join(rank_, std::move(arrival));
  return c10::make_intrusive<LocalWork>(world_, group_, std::move(seat), global_rank_,
                                        std::move(tensors), std::move(results), type,
                                        timeout.count() > 0 ? timeout : timeout_);
}

LocalBackend::WorkPtr LocalBackend::allreduce(std::vector<at::Tensor>& tensors,
                                              const c10d::AllreduceOptions& options) {
  constexpr auto op = Collective::all_reduce;
  auto& tensor = only_tensor(op, tensors);
  auto call = new_call(op, tensor, tensor.numel());
  call.combine = combine_of(options.reduceOp);
  check_reducible(call.dtype, call.combine);
  return issue(new_arrival(std::move(call), &tensor, &tensor), {tensor}, {tensor},
               c10d::OpType::ALLREDUCE, options.timeout);
}

LocalBackend::WorkPtr LocalBackend::broadcast(std::vector<at::Tensor>& tensors,
                                              const c10d::BroadcastOptions& options) {
  constexpr auto op = Collective::broadcast;
  auto& tensor = only_tensor(op, tensors);
  auto call = new_call(op, tensor, tensor.numel());
  call.root = static_cast<int>(options.rootRank);
  check(call.root >= 0 && call.root < size_, op,
        fmt::format("root {} is none of its {} ranks.", call.root, size_));
  return issue(new_arrival(std::move(call), &tensor, &tensor), {tensor}, {tensor},
               c10d::OpType::BROADCAST, options.timeout);
}

LocalBackend::WorkPtr LocalBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
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

LocalBackend::WorkPtr LocalBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  constexpr auto op = Collective::all_gather;
  check_pair(op, input, output);
  check(output.numel() == size_ * input.numel(), op,
        fmt::format("the output has {} elements; {} ranks with {} each need {}.", output.numel(),
                    size_, input.numel(), size_ * input.numel()));
  return issue(new_arrival(new_call(op, input, input.numel()), &input, &output), {output, input},
               {output}, c10d::OpType::_ALLGATHER_BASE, options.timeout);
}

LocalBackend::WorkPtr LocalBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  constexpr auto op = Collective::reduce_scatter;
  check_pair(op, input, output);
  check(input.numel() == size_ * output.numel(), op,
        fmt::format("the input has {} elements; {} ranks that keep {} each need {}.", input.numel(),
                    size_, output.numel(), size_ * output.numel()));
  auto call = new_call(op, output, output.numel());
  call.combine = combine_of(options.reduceOp);
  check_reducible(call.dtype, call.combine);
  return issue(new_arrival(std::move(call), &input, &output), {output, input}, {output},
               c10d::OpType::_REDUCE_SCATTER_BASE, options.timeout);
}

LocalBackend::WorkPtr LocalBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
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
  return issue(new_arrival(std::move(call), &input, &output), {output, input}, {output},
               c10d::OpType::ALLTOALL_BASE, options.timeout);
}

LocalBackend::WorkPtr LocalBackend::issue_pair(Collective op, std::vector<at::Tensor>& tensors,
                                               int peer, int tag) {
  auto& tensor = only_tensor(op, tensors);
  check(peer >= 0 && peer < size_, op,
        fmt::format("partner {} is none of its {} ranks.", peer, size_));
  const bool sends = op == Collective::send;
  auto arrival = new_arrival(new_call(op, tensor, tensor.numel()), &tensor, &tensor);
  auto seat = group_->join_pair(rank_, peer, tag, std::move(arrival));
  return c10::make_intrusive<LocalWork>(world_, group_, std::move(seat), global_rank_, tensors,
                                        tensors, sends ? c10d::OpType::SEND : c10d::OpType::RECV,
                                        timeout_);
}

LocalBackend::WorkPtr LocalBackend::send(std::vector<at::Tensor>& tensors, int to, int tag) {
  return issue_pair(Collective::send, tensors, to, tag);
}

LocalBackend::WorkPtr LocalBackend::recv(std::vector<at::Tensor>& tensors, int from, int tag) {
  return issue_pair(Collective::recv, tensors, from, tag);
}

LocalBackend::WorkPtr LocalBackend::barrier(const c10d::BarrierOptions& options) {
  Call call;
  call.op = Collective::barrier;
  return issue(new_arrival(std::move(call), nullptr, nullptr), {}, {}, c10d::OpType::BARRIER,
               options.timeout);
}

}  // namespace mw::comm
