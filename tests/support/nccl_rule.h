// NCCL's rules for any source of communicators, so that what would hang or mix up tensors on GPUs
// fails on CPUs, by name:
// - A communicator is made by a call that waits until all members make it. The members that come to
//   different ones wait for each other.
// - It has no tags: what one rank sends to another is received in the order in which it is sent.
//   A message that meets another receive than is meant ends the run.
// - Its transfers go in the order in which a rank begins them, and so do those of a program's
//   stream: who waits for one waits for all before it, and one begins once those before it are
//   over.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "meshwright/carrier.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/world.h"

namespace mw::test {

// What a rank has begun on one communicator or stream, in order. Of the rank's thread.
using Begun = std::deque<c10::intrusive_ptr<c10d::Work>>;

// What goes before each message: its tag, and what it is for. It lies outside of the allocator, as
// a rank's ledger would count it.
struct Envelope {
  std::int64_t tag = 0;
  std::array<char, 56> label = {};

  at::Tensor tensor() { return at::from_blob(this, {sizeof *this}, at::kByte); }
};

class NcclRuleWork final : public c10d::Work {
 public:
  NcclRuleWork(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<Begun> begun,
               std::function<void()> arrived = nullptr)
      : work_(std::move(work)), begun_(std::move(begun)), arrived_(std::move(arrived)) {
    begun_->push_back(work_);
  }
  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (std::exchange(over_, true)) return true;
    if (arrived_) arrived_();
    while (!work_of_line_is_over()) {
      begun_->front()->wait(timeout);
      begun_->pop_front();
    }
    return true;
  }

 private:
  bool work_of_line_is_over() const {
    return std::find(begun_->begin(), begun_->end(), work_) == begun_->end();
  }

  const c10::intrusive_ptr<c10d::Work> work_;
  const std::shared_ptr<Begun> begun_;
  const std::function<void()> arrived_;
  bool over_ = false;
};

class NcclRuleBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  // `line`: of a program's stream, which several communicators share; null: none.
  NcclRuleBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string name, std::vector<int> ranks,
                  std::shared_ptr<Begun> line)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        name_(std::move(name)),
        ranks_(std::move(ranks)),
        line_(std::move(line)) {}

  const std::string getBackendName() const override { return "nccl's rule"; }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }

  WorkPtr allreduce(std::vector<at::Tensor>& t, const c10d::AllreduceOptions& o) override {
    return begin([&] { return inner_->allreduce(t, o); });
  }
  WorkPtr broadcast(std::vector<at::Tensor>& t, const c10d::BroadcastOptions& o) override {
    return begin([&] { return inner_->broadcast(t, o); });
  }
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& out, std::vector<at::Tensor>& in,
                    const c10d::AllgatherOptions& o) override {
    return begin([&] { return inner_->allgather(out, in, o); });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& o) override {
    return begin([&] { return inner_->_allgather_base(out, in, o); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& o) override {
    return begin([&] { return inner_->_reduce_scatter_base(out, in, o); });
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_splits,
                        std::vector<std::int64_t>& in_splits,
                        const c10d::AllToAllOptions& o) override {
    return begin([&] { return inner_->alltoall_base(out, in, out_splits, in_splits, o); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    return begin([&] { return inner_->barrier(o); });
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    const int number = next(true);
    auto envelope = std::make_shared<Envelope>(addressed(tag));
    std::vector<at::Tensor> about{envelope->tensor()};
    const WorkPtr said = inner_->send(about, to, 2 * number);
    return begin([&] { return inner_->send(tensors, to, 2 * number + 1); },
                 [said, envelope] { said->wait(kNoTimeout); });
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    const int number = next(false);
    auto envelope = std::make_shared<Envelope>();
    std::vector<at::Tensor> about{envelope->tensor()};
    const WorkPtr said = inner_->recv(about, from, 2 * number);
    const Envelope expected = addressed(tag);
    return begin([&] { return inner_->recv(tensors, from, 2 * number + 1); },
                 [this, said, envelope, expected, from, number] {
                   said->wait(kNoTimeout);
                   compare(*envelope, expected, from, number);
                 });
  }

 private:
  // The number of the next message. A send that waits for its receive would hold up the receives
  // behind it.
  int next(bool sends) {
    if (number_ > 0 && sends_ != sends)
      throw Error(Stage::run, "nccl.direction", "",
                  fmt::format("rank {} both sends and receives on the communicator '{}'",
                              ranks_.at(static_cast<std::size_t>(getRank())), name_));
    sends_ = sends;
    return number_++;
  }

  static Envelope addressed(int tag) {
    Envelope envelope;
    envelope.tag = tag;
    const Purpose* const purpose = current_purpose();
    if (purpose != nullptr && purpose->label != nullptr)
      purpose->label->copy(envelope.label.data(), envelope.label.size() - 1);
    return envelope;
  }

  void compare(const Envelope& sent, const Envelope& expected, int from, int number) const {
    if (sent.tag == expected.tag) return;
    throw Error(
        Stage::run, "nccl.order", "",
        fmt::format("message {} that rank {} sends to rank {} on '{}' is '{}' (tag {}), and "
                    "rank {} receives '{}' (tag {}) there",
                    number, ranks_.at(static_cast<std::size_t>(from)),
                    ranks_.at(static_cast<std::size_t>(getRank())), name_, sent.label.data(),
                    sent.tag, ranks_.at(static_cast<std::size_t>(getRank())), expected.label.data(),
                    expected.tag));
  }

  template <class Call>
  WorkPtr begin(const Call& call, std::function<void()> arrived = nullptr) {
    for (; line_ && !line_->empty(); line_->pop_front()) line_->front()->wait(kNoTimeout);
    return c10::make_intrusive<NcclRuleWork>(call(), line_ ? line_ : own_, std::move(arrived));
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::string name_;
  const std::vector<int> ranks_;
  const std::shared_ptr<Begun> line_, own_ = std::make_shared<Begun>();
  bool sends_ = false;
  int number_ = 0;  // of messages, all of which go one way
};

class NcclRuleSource final : public CommunicatorSource {
 public:
  explicit NcclRuleSource(std::unique_ptr<CommunicatorSource> inner) : inner_(std::move(inner)) {}
  const char* name() const override { return inner_->name(); }
  int ranks() const override { return inner_->ranks(); }
  c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) override {
    const std::vector<int>& ranks = connection.ranks;
    if (connection.pair)
      return made(fmt::format("{} {} -> {}", connection.axis, ranks[0], ranks[1]), ranks, index,
                  nullptr);
    if (connection.stream.empty()) return made(connection.axis, ranks, index, nullptr);
    auto& line = of_rank(ranks.at(static_cast<std::size_t>(index))).lines[connection.stream];
    if (!line) line = std::make_shared<Begun>();
    return made(connection.name(), ranks, index, line);
  }
  void abort(int rank, const std::string& reason) override { inner_->abort(rank, reason); }
  void ended(int rank) override { inner_->ended(rank); }

 private:
  // The communicator of a group is there once all members have come.
  c10::intrusive_ptr<c10d::Backend> made(const std::string& name, const std::vector<int>& group,
                                         int index, std::shared_ptr<Begun> line) {
    const std::string communicator =
        fmt::format("communicator {} of ranks {}", name, fmt::join(group, ", "));
    auto inner = inner_->backend({communicator, group}, index);
    auto& backend = of_rank(group.at(static_cast<std::size_t>(index))).backends[communicator];
    if (!backend) {
      inner->barrier({})->wait(kNoTimeout);
      backend =
          c10::make_intrusive<NcclRuleBackend>(std::move(inner), name, group, std::move(line));
    }
    return backend;
  }

  // What a rank's thread has made.
  struct OfRank {
    std::map<std::string, c10::intrusive_ptr<c10d::Backend>> backends;
    std::map<std::string, std::shared_ptr<Begun>> lines;  // of streams
  };
  OfRank& of_rank(int rank) {
    const std::lock_guard lock(mutex_);
    return made_[rank];
  }

  const std::unique_ptr<CommunicatorSource> inner_;
  std::mutex mutex_;
  std::map<int, OfRank> made_;
};

// Runs of this process follow the rule as long as this lives.
class NcclRule {
 public:
  NcclRule() {
    comm::stand_between_ranks([](std::unique_ptr<CommunicatorSource> source) {
      return std::make_unique<NcclRuleSource>(std::move(source));
    });
  }
  ~NcclRule() { comm::stand_between_ranks(nullptr); }
  NcclRule(const NcclRule&) = delete;
  NcclRule& operator=(const NcclRule&) = delete;
};

}  // namespace mw::test
