// The part of `meshwright chaos` that is inside a run: makes a rank throw, sleep, lose a call or
// compute with a changed number when it calls a collective. It stands between the ranks and what
// connects them, and hears of each step. The conductor (python/src/meshwright_chaos) adds it to the
// run's observers, and tells it what to do by files of a folder.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "meshwright/backend.h"
#include "meshwright/carrier.h"
#include "meshwright/communicator.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/observer.h"
#include "meshwright/plugin.h"
#include "meshwright/threads.h"
#include "meshwright/world.h"

namespace mw::chaos {
namespace {

constexpr std::chrono::milliseconds between_looks{10}, nap{20};

// Looks for orders in the folder (order.json) every few milliseconds, in a thread of its own.
// Writes there which order a rank has carried out (taken.json) and from which files the run takes
// its tokens (files.json). Rank 0 writes a line into the folder's pipe ("steps") when it begins
// ("start") and after each step: the step's number and its loss in hexadecimal. A process has at
// most one agent.
class Agent final : public RunObserver {
 public:
  static Options options() {
    return Options().text("folder",
                          "where the conductor writes orders, and reads what came of them");
  }
  Agent(const Values& values, const ObservedRun& run);
  ~Agent() override;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  void begin(RankRun& rank) override;
  void step(RankRun& rank, StepEnd& end) override;

  // What the agent decides about a call that a rank is about to make.
  struct Meeting {
    bool lost = false;   // the call is not made
    double seconds = 0;  // time after which the wait for a lost call gives up
  };
  // Carries out the rank's order, if there is one. Called by the rank's thread, which may sleep
  // here. `input`: the call's input, which may be changed; undefined: none. Throws
  // std::runtime_error if the rank is to fail.
  Meeting meets(int rank, const std::string& axis, Collective op, const at::Tensor& input);

 private:
  struct Order {
    std::int64_t id = 0;  // from 1, counted by the conductor
    std::string fault;    // "error", "delay", "slow", "lost", "nan" or "flip-gradient"
    int rank = 0;
    double seconds = 0;      // duration of the faults delay, slow and lost
    std::uint64_t draw = 0;  // random number that chooses the element or bit
  };
  void start();
  std::optional<Order> order_in_folder() const;
  std::optional<Order> take(int rank, const std::string& axis, Collective op,
                            const at::Tensor& input);
  void look();
  void tell(const std::string& line) const;

  const std::filesystem::path folder_;
  const std::vector<SourceFile> files_;
  int pipe_ = -1;
  std::atomic<int> rank_ = -1;       // the rank that order_ is for; -1: no order
  std::atomic<int> slow_rank_ = -1;  // the rank that is slow; -1: none
  std::atomic<double> slow_until_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Order> order_;
  std::int64_t last_ = 0;             // the last order that was taken
  std::map<int, std::int64_t> next_;  // by rank of this process: its next step
  bool over_ = false;
  std::jthread looks_;  // the last member: its thread uses all others
};

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

RankPlace::Call call_of(const std::string& axis, Collective op) {
  RankPlace::Call call{axis, name_of(op), "", ""};
  if (const Purpose* purpose = current_purpose(); purpose != nullptr) {
    if (purpose->label != nullptr) call.label = *purpose->label;
    call.phase = purpose->phase;
  }
  return call;
}

// Whether a fault of this kind can happen at this call.
bool fits(const std::string& fault, Collective op, const at::Tensor& input,
          const std::string& phase) {
  if (fault == "lost") return op != Collective::recv;
  const bool numbers =
      input.defined() && input.numel() > 0 && input.is_floating_point() && input.is_contiguous();
  if (fault == "nan") return numbers && phase != "report";
  if (fault == "flip-gradient") return numbers && (phase == "gradients" || phase == "backward");
  return true;
}

// Null where there is no such file, or it is no JSON.
Json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return file ? Json::parse(file, nullptr, /*allow_exceptions=*/false) : Json();
}

// Replaces a file of the folder as a whole, so that nobody reads half of it.
void put_json(const std::filesystem::path& path, const Json& json) {
  if (const int failed = replace_whole(path, json.dump()); failed != 0)
    throw Error(Stage::run, "file.write", "",
                fmt::format("{} cannot be written: {}", path.string(),
                            std::generic_category().message(failed)));
}

// Flips a bit of a tensor by ops, as the tensor may lie on a device: they run on the rank's stream,
// before the call that sends it.
void flip_bit(const at::Tensor& tensor, std::uint64_t draw) {
  const at::Tensor bytes = tensor.view(-1).view(at::kByte);
  const std::uint64_t bit = draw % (8 * static_cast<std::uint64_t>(bytes.numel()));
  bytes[static_cast<std::int64_t>(bit / 8)].bitwise_xor_(std::int64_t{1} << (bit % 8));
}

void put_nan(const at::Tensor& tensor, std::uint64_t draw) {
  const auto element = draw % static_cast<std::uint64_t>(tensor.numel());
  tensor.view(-1)[static_cast<std::int64_t>(element)] = std::nan("");
}

// Wakes the waits for lost calls when a rank of the communicator source fails, as nothing else
// does.
struct AbortNote {
  std::mutex mutex;
  std::condition_variable changed;
  std::string message;  // empty: no rank has failed
};

// The work of a call that was never made. To the rank a send looks complete; any other call never
// completes.
class LostWork final : public c10d::Work {
 public:
  LostWork(std::string what, bool sent, double seconds, std::shared_ptr<AbortNote> note)
      : what_(std::move(what)), sent_(sent), seconds_(seconds), note_(std::move(note)) {}
  bool isCompleted() override { return sent_; }
  bool wait(std::chrono::milliseconds) override {
    if (sent_) return true;
    std::unique_lock lock(note_->mutex);
    note_->changed.wait_for(lock, std::chrono::duration<double>(seconds_),
                            [this] { return !note_->message.empty(); });
    if (!note_->message.empty()) throw Aborted(note_->message);
    throw WaitedInVain(Stage::run, "collective.timeout", "",
                       fmt::format("{} has come to no end in {:.0f} s.", what_, seconds_));
  }

 private:
  const std::string what_;
  const bool sent_;
  const double seconds_;
  const std::shared_ptr<AbortNote> note_;
};

// A backend that hands all calls to another one, except those that meet a fault.
class DisturbedBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  DisturbedBackend(Agent& agent, c10::intrusive_ptr<c10d::Backend> inner, std::string axis,
                   int rank, std::shared_ptr<AbortNote> note)
      : Backend(inner->getRank(), inner->getSize()),
        agent_(agent),
        inner_(std::move(inner)),
        axis_(std::move(axis)),
        global_(rank),
        note_(std::move(note)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }

  WorkPtr allreduce(std::vector<at::Tensor>& t, const c10d::AllreduceOptions& o) override {
    return call(Collective::all_reduce, t.at(0), [&] { return inner_->allreduce(t, o); });
  }
  WorkPtr broadcast(std::vector<at::Tensor>& t, const c10d::BroadcastOptions& o) override {
    return call(Collective::broadcast, t.at(0), [&] { return inner_->broadcast(t, o); });
  }
  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& out, std::vector<at::Tensor>& in,
                    const c10d::AllgatherOptions& o) override {
    return call(Collective::all_gather, in.at(0), [&] { return inner_->allgather(out, in, o); });
  }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& o) override {
    return call(Collective::all_gather, in, [&] { return inner_->_allgather_base(out, in, o); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& o) override {
    return call(Collective::reduce_scatter, in,
                [&] { return inner_->_reduce_scatter_base(out, in, o); });
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<std::int64_t>& out_splits,
                        std::vector<std::int64_t>& in_splits,
                        const c10d::AllToAllOptions& o) override {
    return call(Collective::all_to_all, in,
                [&] { return inner_->alltoall_base(out, in, out_splits, in_splits, o); });
  }
  WorkPtr send(std::vector<at::Tensor>& t, int to, int tag) override {
    return call(Collective::send, t.at(0), [&] { return inner_->send(t, to, tag); });
  }
  WorkPtr recv(std::vector<at::Tensor>& t, int from, int tag) override {
    return call(Collective::recv, at::Tensor(), [&] { return inner_->recv(t, from, tag); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    return call(Collective::barrier, at::Tensor(), [&] { return inner_->barrier(o); });
  }

 private:
  template <class Make>
  WorkPtr call(Collective op, const at::Tensor& input, const Make& make) {
    const Agent::Meeting meeting = agent_.meets(global_, axis_, op, input);
    if (!meeting.lost) return make();
    return c10::make_intrusive<LostWork>(call_of(axis_, op).text(), op == Collective::send,
                                         meeting.seconds, note_);
  }

  Agent& agent_;
  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::string axis_;
  const int global_;
  const std::shared_ptr<AbortNote> note_;
};

class DisturbedSource final : public CommunicatorSource {
 public:
  DisturbedSource(Agent& agent, std::unique_ptr<CommunicatorSource> inner)
      : agent_(agent), inner_(std::move(inner)) {}

  const char* name() const override { return inner_->name(); }
  int ranks() const override { return inner_->ranks(); }
  c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) override {
    return c10::make_intrusive<DisturbedBackend>(
        agent_, inner_->backend(connection, index), connection.axis,
        connection.ranks.at(static_cast<std::size_t>(index)), note_);
  }
  void abort(int rank, const std::string& reason) override {
    inner_->abort(rank, reason);
    const std::lock_guard lock(note_->mutex);
    if (note_->message.empty())
      note_->message = fmt::format("Stopped because rank {} failed: {}", rank, reason);
    note_->changed.notify_all();
  }
  void ended(int rank) override { inner_->ended(rank); }

 private:
  Agent& agent_;
  const std::unique_ptr<CommunicatorSource> inner_;
  const std::shared_ptr<AbortNote> note_ = std::make_shared<AbortNote>();
};

Agent::Agent(const Values& values, const ObservedRun& run)
    : folder_(values.text("folder")), files_(run.files) {
  comm::stand_between_ranks([this](std::unique_ptr<CommunicatorSource> source) {
    return std::make_unique<DisturbedSource>(*this, std::move(source));
  });
}

void Agent::start() {
  const std::lock_guard lock(mutex_);
  if (looks_.joinable()) return;
  pipe_ = ::open((folder_ / "steps").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (const Json taken = read_json(folder_ / "taken.json"); taken.is_object()) last_ = taken["id"];
  looks_ = start_thread([this] { look(); });
}

Agent::~Agent() {
  comm::stand_between_ranks(nullptr);
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  if (looks_.joinable()) looks_.join();
  if (pipe_ >= 0) ::close(pipe_);
}

std::optional<Agent::Order> Agent::order_in_folder() const {
  const Json json = read_json(folder_ / "order.json");
  if (!json.is_object()) return std::nullopt;
  return Order{json["id"], json["fault"], json["rank"], json["seconds"], json["draw"]};
}

void Agent::look() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, between_looks, [this] { return over_; })) {
    lock.unlock();
    auto found = order_in_folder();
    lock.lock();
    if (found && found->id <= last_) found.reset();
    rank_ = found ? found->rank : -1;
    order_ = std::move(found);
  }
}

// Writes a line to the conductor. A line is so short that a pipe takes it in one piece. If the
// conductor has died, nobody reads it.
void Agent::tell(const std::string& line) const {
  if (pipe_ >= 0) write_whole(pipe_, line.data(), line.size());
}

void Agent::begin(RankRun& rank) {
  start();
  if (rank.rank() != 0) return;
  Json files = Json::array();
  for (const SourceFile& file : files_)
    files.push_back(
        {{"path", std::filesystem::absolute(file.path).string()}, {"implied", file.implied}});
  put_json(folder_ / "files.json", files);
  tell("start\n");
}

void Agent::step(RankRun& rank, StepEnd& end) {
  {
    const std::lock_guard lock(mutex_);
    next_[rank.rank()] = end.step + 1;
  }
  if (rank.rank() == 0) tell(fmt::format("{} {:a}\n", end.step, end.report->loss));
}

std::optional<Agent::Order> Agent::take(int rank, const std::string& axis, Collective op,
                                        const at::Tensor& input) {
  const std::lock_guard lock(mutex_);
  const RankPlace::Call call = call_of(axis, op);
  if (!order_ || order_->rank != rank || !fits(order_->fault, op, input, call.phase))
    return std::nullopt;
  auto taken = std::exchange(order_, std::nullopt);
  rank_ = -1;
  last_ = taken->id;
  const auto next = next_.find(rank);
  const Json named = {
      {"axis", call.axis}, {"op", call.op}, {"label", call.label}, {"phase", call.phase}};
  put_json(folder_ / "taken.json", {{"id", taken->id},
                                    {"step", next == next_.end() ? -1 : next->second},
                                    {"rank", rank},
                                    {"text", call.text()},
                                    {"call", named}});
  return taken;
}

Agent::Meeting Agent::meets(int rank, const std::string& axis, Collective op,
                            const at::Tensor& input) {
  if (slow_rank_.load(std::memory_order_relaxed) == rank && seconds_now() < slow_until_)
    std::this_thread::sleep_for(nap);
  if (rank_.load(std::memory_order_relaxed) != rank) return {};
  const auto order = take(rank, axis, op, input);
  if (!order) return {};
  const at::NoGradGuard no_grad;
  const std::string& fault = order->fault;
  if (fault == "error")
    throw std::runtime_error(fmt::format("chaos: fault {} was asked for", order->id));
  if (fault == "delay") sleep_for(order->seconds);
  if (fault == "slow") {
    slow_until_ = seconds_now() + order->seconds;
    slow_rank_ = rank;
  }
  if (fault == "nan") put_nan(input, order->draw);
  if (fault == "flip-gradient") flip_bit(input, order->draw);
  return {fault == "lost", order->seconds};
}

}  // namespace
}  // namespace mw::chaos

MESHWRIGHT_PLUGIN("chaos", "1.0.0", "makes faults happen inside a run, for meshwright chaos",
                  mw::observer<mw::chaos::Agent>())
