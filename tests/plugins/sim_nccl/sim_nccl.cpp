// What stands for NCCL where there are no GPUs: communicators of ranks on simulated devices, in one
// process or several, with NCCL's rules.
//
// - Members make a communicator together: each waits until all have come.
// - A communicator has one stream. A call returns at once; the transfer reads its operands later,
//   when it is first on its stream with every member, and holds up that stream until it is over.
// - Nothing compares calls: members are matched by their order alone. Where NCCL would mix up data
//   or hang, an error says which calls came together.
// - In the first transfer of a pair, NCCL connects the two, and the caller waits for its peer.
//
// Data goes through the store by which the members find each other.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "../../../plugins/nccl/carrier.h"
#include "meshwright/carrier.h"
#include "meshwright/plugin.h"
#include "queues.h"

namespace mw::sim_nccl {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;

// A transfer that is on a stream, or over.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::string error;
  std::optional<c10::Event> end;  // recorded on the communicator's stream
};

class Transfer final : public c10d::Work {
 public:
  Transfer(std::shared_ptr<State> state, at::DeviceType type)
      : state_(std::move(state)), type_(type) {}
  bool isCompleted() override {
    const std::lock_guard lock(state_->mutex);
    return state_->over;
  }
  // The caller's stream waits for the transfer. Ops of simulated devices run at once, so that the
  // caller itself has to wait too.
  bool wait(std::chrono::milliseconds) override {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->over; });
    if (!state_->error.empty()) throw std::runtime_error(state_->error);
    const c10::impl::VirtualGuardImpl guard(type_);
    if (state_->end) state_->end->block(guard.getStream(guard.getDevice()));
    return true;
  }

 private:
  const std::shared_ptr<State> state_;
  const at::DeviceType type_;
};

// The bytes of a tensor, and a tensor of bytes; both on this thread's current stream.
Bytes bytes_of(const at::Tensor& tensor) {
  const at::Tensor host = tensor.contiguous().cpu();
  const auto* const first = static_cast<const std::uint8_t*>(host.const_data_ptr());
  return {first, first + host.nbytes()};
}
at::Tensor tensor_of(const Bytes& bytes, std::size_t at, std::int64_t elements,
                     at::ScalarType dtype) {
  at::Tensor made = at::empty({elements}, dtype);
  if (at + made.nbytes() > bytes.size()) throw std::runtime_error("the calls differ in size");
  std::memcpy(made.data_ptr(), bytes.data() + at, made.nbytes());
  return made;
}

class Communicator final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  Communicator(c10::intrusive_ptr<c10d::Store> store, int index, int ways, bool urgent,
               std::chrono::milliseconds timeout)
      : Backend(index, ways), store_(std::move(store)), urgent_(urgent), timeout_(timeout) {}

  const std::string getBackendName() const override { return "simulated nccl"; }

  void eagerConnectSingleDevice(at::Device device) override {
    device_ = device;
    queue_ = &next_queue(device, urgent_);
    all("made", {});
  }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override {
    const at::Tensor t = tensors.at(0);
    return put(fmt::format("all-reduce {}", options.reduceOp.op_), t, [=, this](const auto& all) {
      at::Tensor sum = part(all[0], 0, t);
      for (std::size_t k = 1; k < all.size(); ++k)
        sum = combined(options.reduceOp.op_, sum, part(all[k], 0, t));
      if (options.reduceOp.op_ == c10d::ReduceOp::AVG) sum = sum / static_cast<double>(all.size());
      t.copy_(sum.view(t.sizes()));
    });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in, const c10d::AllgatherOptions&) override {
    return put("all-gather", in, [=](const auto& all) {
      std::vector<at::Tensor> parts;
      for (const Bytes& one : all) parts.push_back(part(one, 0, in));
      out.copy_(at::cat(parts).view(out.sizes()));
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& options) override {
    return put(fmt::format("reduce-scatter {}", options.reduceOp.op_), in,
               [=, this](const auto& all) {
                 const std::size_t at = static_cast<std::size_t>(getRank()) * out.nbytes();
                 at::Tensor sum = part(all[0], at, out);
                 for (std::size_t k = 1; k < all.size(); ++k)
                   sum = combined(options.reduceOp.op_, sum, part(all[k], at, out));
                 out.copy_(sum.view(out.sizes()));
               });
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_splits,
                        std::vector<std::int64_t>& in_splits,
                        const c10d::AllToAllOptions&) override {
    // Each message begins with where its parts lie.
    const std::int64_t rows = in.size(0), row = rows > 0 ? in.numel() / rows : 0;
    Bytes places(static_cast<std::size_t>(getSize() + 1) * sizeof(std::int64_t));
    std::vector<std::int64_t> ends{0};
    for (int k = 0; k < getSize(); ++k)
      ends.push_back(ends.back() + row * (in_splits.empty() ? rows / getSize() : in_splits[k]));
    std::memcpy(places.data(), ends.data(), places.size());
    const std::int64_t out_row = out.size(0) > 0 ? out.numel() / out.size(0) : 0;
    std::vector<std::int64_t> expected;
    for (int k = 0; k < getSize(); ++k)
      expected.push_back(out_row * (out_splits.empty() ? out.size(0) / getSize() : out_splits[k]));
    return put(
        "all-to-all", in,
        [=, this](const auto& all) {
          std::vector<at::Tensor> parts;
          for (const Bytes& one : all) {
            std::vector<std::int64_t> of(static_cast<std::size_t>(getSize() + 1));
            std::memcpy(of.data(), one.data(), places.size());
            const auto own = static_cast<std::size_t>(getRank());
            if (of[own + 1] - of[own] != expected[parts.size()])
              throw std::runtime_error("a member sends another number of rows than is expected");
            parts.push_back(tensor_of(
                one, places.size() + static_cast<std::size_t>(of[own]) * in.element_size(),
                of[own + 1] - of[own], in.scalar_type()));
          }
          out.copy_(at::cat(parts).view(out.sizes()));
        },
        places);
  }
  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const c10d::BroadcastOptions& options) override {
    const at::Tensor t = tensors.at(0);
    const auto root = static_cast<std::size_t>(options.rootRank);
    return put(fmt::format("broadcast from {}", root), t,
               [=](const auto& all) { t.copy_(part(all[root], 0, t).view(t.sizes())); });
  }
  WorkPtr send(std::vector<at::Tensor>& tensors, int, int tag) override {
    return pair(tensors.at(0), tag, [](const auto&) {});
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    const at::Tensor t = tensors.at(0);
    const auto sender = static_cast<std::size_t>(from);
    return pair(t, tag, [=](const auto& all) { t.copy_(part(all[sender], 0, t).view(t.sizes())); });
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { throw std::logic_error("no barrier"); }

  void abort() override { stopped_ = true; }
  void shutdown() override { abort(); }
  c10d::ErrorType getError() override {
    return failed_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
  }

 private:
  using All = std::vector<Bytes>;

  static at::Tensor part(const Bytes& bytes, std::size_t at, const at::Tensor& like) {
    return tensor_of(bytes, at, like.numel(), like.scalar_type());
  }
  static at::Tensor combined(c10d::ReduceOp::RedOpType op, const at::Tensor& a,
                             const at::Tensor& b) {
    switch (op) {
      case c10d::ReduceOp::MAX:
        return at::maximum(a, b);
      case c10d::ReduceOp::MIN:
        return at::minimum(a, b);
      case c10d::ReduceOp::PRODUCT:
        return a * b;
      default:
        return a + b;
    }
  }

  // A transfer of a pair. NCCL has no tags; that the two calls are of one message is looked at.
  WorkPtr pair(const at::Tensor& t, int tag, std::function<void(const All&)> done) {
    const bool first = !std::exchange(connected_, true);
    WorkPtr work = put(fmt::format("message {}", tag), t, std::move(done));
    if (first) work->wait(timeout_);
    return work;
  }

  // Puts a transfer behind what the caller's stream has queued, and on the communicator's stream.
  WorkPtr put(std::string what, const at::Tensor& in, std::function<void(const All&)> done,
              Bytes head = {}) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    c10::Event ready(device_.type());
    ready.record(guard.getStream(device_));
    ready.block(queue_->stream);
    const auto state = std::make_shared<State>();
    const std::string name = fmt::format("{}", calls_++);
    const auto* const purpose = current_purpose();
    if (purpose != nullptr && purpose->label != nullptr)
      what += fmt::format(" for {} ({})", *purpose->label, purpose->phase);
    // Members of an all-to-all may send differently much.
    if (head.empty()) what += fmt::format(" of {} {}", in.numel(), at::toString(in.scalar_type()));
    const auto self = c10::intrusive_ptr<Communicator>::unsafe_reclaim_from_nonowning(this);
    queue_->put(
        [=, this, self = self, in = in, done = std::move(done), head = std::move(head)]() mutable {
          std::string error;
          try {
            const Bytes own = bytes_of(in);
            head.insert(head.end(), own.begin(), own.end());
            done(all(name, head, what));
          } catch (const std::exception& thrown) {
            error = thrown.what();
            failed_ = true;
          }
          done = nullptr;  // lets go of the operands before the rank goes on
          in.reset();
          c10::Event end(device_.type());
          end.record(queue_->stream);
          {
            const std::lock_guard lock(state->mutex);
            state->over = true;
            state->error = error;
            state->end = std::move(end);
          }
          state->changed.notify_all();
        });
    return c10::make_intrusive<Transfer>(state, device_.type());
  }

  // What each member brings to a meeting, which all of them come to.
  All all(const std::string& name, const Bytes& own, const std::string& what = "") {
    store_->set(fmt::format("{}/{}", name, getRank()), own);
    store_->set(fmt::format("{}/{}/what", name, getRank()), Bytes(what.begin(), what.end()));
    All brought;
    const auto began = Clock::now();
    for (int member = 0; member < getSize(); ++member) {
      const std::string key = fmt::format("{}/{}", name, member);
      while (!store_->check({key + "/what"})) {
        if (stopped_) throw std::runtime_error("aborted");
        if (Clock::now() - began > timeout_)
          throw std::runtime_error(fmt::format("timed out: member {} has not come to {}", member,
                                               what.empty() ? "its making" : what));
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      const Bytes said = store_->get(key + "/what");
      if (std::string(said.begin(), said.end()) != what)
        throw std::runtime_error(fmt::format("member {} came with {} where member {} came with {}",
                                             member, std::string(said.begin(), said.end()),
                                             getRank(), what));
      brought.push_back(store_->get(key));
    }
    return brought;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const bool urgent_;
  const std::chrono::milliseconds timeout_;
  at::Device device_ = at::kCPU;
  Queue* queue_ = nullptr;
  std::int64_t calls_ = 0;
  bool connected_ = false;
  std::atomic<bool> stopped_ = false, failed_ = false;
};

class Simulated final : public nccl::Library {
 public:
  at::DeviceType type() const override { return at::kPrivateUse1; }
  nccl::GroupPtr make(c10::intrusive_ptr<c10d::Store> store, int index, int ways, bool urgent,
                      std::chrono::milliseconds timeout) const override {
    return c10::make_intrusive<Communicator>(std::move(store), index, ways, urgent, timeout);
  }
  std::string version() const override {
    const char* const given = std::getenv("SIM_NCCL_VERSION");
    return given == nullptr ? "simulated NCCL" : std::string("NCCL ") + given;
  }
  bool joins_threads() const override { return true; }
  bool connects_pairs() const override { return std::getenv("SIM_NCCL_UNCONNECTED") == nullptr; }
};

class Carrier final : public nccl::NcclCarrier {
 public:
  Carrier() : NcclCarrier(library(), rendezvous()) {}

 private:
  static const nccl::Library& library() {
    static const Simulated one;
    return one;
  }
};

}  // namespace
}  // namespace mw::sim_nccl

MESHWRIGHT_PLUGIN("sim_nccl", "1.0.0", "simulated devices, connected by NCCL's rules",
                  mw::communicator<mw::sim_nccl::Carrier>())
