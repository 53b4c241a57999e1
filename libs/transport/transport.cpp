// Sorts the messages that a transport brings: words between processes, parts of collectives, and
// what there is to say of ranks that fail or end.
#include "meshwright/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "meshwright/engine/pack.h"
#include "meshwright/error.h"
#include "transport/transport_state.h"

namespace mw::comm {

// Their devices are CPUs.
template <class Pack>
void members(Pack& pack, Call& call) {
  pack(call.op, call.dtype, call.elements, call.combine, call.root, call.in_splits, call.out_splits,
       call.label, call.phase);
}

template <class Pack>
void members(Pack& pack, MessageHead& head) {
  pack(head.sort, head.run, head.rank, head.text, head.call);
}

namespace {

// Where a message's bytes begin: numbers are read where they lie.
constexpr std::size_t alignment = 16;

std::size_t begin_of(std::size_t head) {
  return (sizeof(std::uint64_t) + head + alignment - 1) / alignment * alignment;
}

Received opened(std::string message) {
  Received received;
  std::uint64_t head = 0;
  Unpacker unpack_length(message);
  unpack_length(head);
  received.begin = begin_of(head);
  if (received.begin > message.size()) {
    throw Error(Stage::run, "process.message", "",
                "a message of another process is shorter than what it says",
                "all processes must be of one build");
  }
  received.head =
      unpack<MessageHead>(std::string_view(message).substr(sizeof(std::uint64_t), head));
  received.message = std::move(message);
  return received;
}

}  // namespace

std::string message_of(const MessageHead& head, std::string_view bytes) {
  const std::string packed = pack(head);
  std::string message = pack(static_cast<std::uint64_t>(packed.size()));
  message.reserve(begin_of(packed.size()) + bytes.size());
  message += packed;
  message.resize(begin_of(packed.size()));
  return message.append(bytes);
}

TransportState::TransportState(int processes)
    : words_(static_cast<std::size_t>(processes)), gone_(static_cast<std::size_t>(processes)) {}

void TransportState::arrived(int from, std::string message) {
  Received received = opened(std::move(message));
  const MessageHead& head = received.head;
  const std::lock_guard lock(mutex_);
  if (head.sort == MessageHead::Sort::word) {
    words_.at(static_cast<std::size_t>(from)).emplace_back(received.bytes());
  } else if (head.run >= run_) {  // of an earlier run nobody waits for anything
    if (head.sort == MessageHead::Sort::aborted) stop_locked(head.run, head.rank, head.text);
    if (head.sort == MessageHead::Sort::ended) ended_.emplace(head.run, head.rank);
    if (head.sort == MessageHead::Sort::part) {
      std::pair key(head.run, head.text);
      parts_.emplace(std::move(key), std::move(received));
    }
  }
  changed_.notify_all();
}

void TransportState::gone(int process, const std::string& why) {
  const std::lock_guard lock(mutex_);
  auto& known = gone_.at(static_cast<std::size_t>(process));
  if (known) return;
  known = why;
  if (threads_ != nullptr) lose_ranks(process);
  changed_.notify_all();
}

// Whose ranks have all ended is not missed.
void TransportState::lose_ranks(int process) {
  for (std::size_t rank = 0; rank < process_of_.size(); ++rank) {
    const int number = static_cast<int>(rank);
    if (process_of_[rank] != process || ended_.contains({run_, number})) continue;
    stop_locked(
        run_, number,
        fmt::format("process {} is gone: {}", process, *gone_[static_cast<std::size_t>(process)]));
    return;
  }
}

std::optional<std::string> TransportState::word(int from, std::chrono::milliseconds timeout) {
  const auto at = static_cast<std::size_t>(from);
  std::unique_lock lock(mutex_);
  Patience patience(timeout);
  do {
    changed_.wait_until(lock, patience.next(), [&] { return !words_.at(at).empty() || gone_[at]; });
  } while (words_.at(at).empty() && !gone_[at] && !patience.over());
  if (words_[at].empty() && gone_[at]) {
    throw Error(Stage::run, "process.lost", "",
                fmt::format("process {} is gone: {}", from, *gone_[at]));
  }
  if (words_[at].empty()) return std::nullopt;
  std::string word = std::move(words_[at].front());
  words_[at].pop_front();
  return word;
}

std::int64_t TransportState::begin(const std::vector<int>& process_of,
                                   CommunicatorSource* threads) {
  const std::lock_guard lock(mutex_);
  process_of_ = process_of;
  threads_ = threads;
  if (const auto stop = stopped_.find(run_); stop != stopped_.end())
    threads_->abort(stop->second.rank, stop->second.reason);
  for (std::size_t p = 0; p < gone_.size(); ++p)
    if (gone_[p]) lose_ranks(static_cast<int>(p));
  return run_;
}

void TransportState::over() {
  const std::lock_guard lock(mutex_);
  threads_ = nullptr;
  ++run_;
  std::erase_if(parts_, [&](const auto& part) { return part.first.first < run_; });
  std::erase_if(stopped_, [&](const auto& stop) { return stop.first < run_; });
  std::erase_if(ended_, [&](const auto& end) { return end.first < run_; });
}

bool TransportState::stop(int rank, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (stopped_.contains(run_)) return false;
  stop_locked(run_, rank, reason);
  return true;
}

void TransportState::stop_locked(std::int64_t run, int rank, const std::string& reason) {
  if (!stopped_.try_emplace(run, Stop{rank, reason}).second) return;
  if (run == run_ && threads_ != nullptr) threads_->abort(rank, reason);
  changed_.notify_all();
}

void TransportState::rank_ended(int rank) {
  const std::lock_guard lock(mutex_);
  ended_.emplace(run_, rank);
  changed_.notify_all();
}

void TransportState::check_locked() const {
  const auto stop = stopped_.find(run_);
  if (stop == stopped_.end()) return;
  throw Aborted(
      fmt::format("Stopped because rank {} failed: {}", stop->second.rank, stop->second.reason));
}

void TransportState::check() const {
  const std::lock_guard lock(mutex_);
  check_locked();
}

bool TransportState::is_there(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return parts_.contains({run_, name});
}

std::optional<Received> TransportState::part(const std::string& name, int from, Patience& patience,
                                             const std::string& told) {
  std::unique_lock lock(mutex_);
  for (;;) {
    check_locked();
    if (auto found = parts_.extract({run_, name}); !found.empty()) return std::move(found.mapped());
    if (ended_.contains({run_, from})) {
      throw Error(Stage::run, "collective.mismatch", "",
                  fmt::format("Rank {} has ended, but {} still needs it.", from, told),
                  "All ranks of an axis must make the same calls in the same order.");
    }
    if (patience.over()) return std::nullopt;
    changed_.wait_until(lock, patience.next());
  }
}

}  // namespace mw::comm

namespace mw {

TransportCarrier::TransportCarrier(std::string name, int processes, int process)
    : name_(std::move(name)),
      processes_(processes),
      process_(process),
      state_(std::make_unique<comm::TransportState>(processes)) {}

TransportCarrier::~TransportCarrier() = default;

std::unique_ptr<CommunicatorSource> TransportCarrier::connect(
    const std::vector<std::vector<int>>& ranks, at::DeviceType device,
    std::chrono::milliseconds timeout) {
  if (device != at::kCPU) {
    throw Error(Stage::options, "device.transport", "device",
                fmt::format("device: {} connects ranks on CPUs, and the ranks are on {}", name_,
                            c10::DeviceTypeName(device, /*lower_case=*/true)),
                "device = \"cpu\"; GPUs of several processes are connected by nccl");
  }
  return std::make_unique<comm::TransportSource>(*this, name_, *state_, ranks, timeout);
}

void TransportCarrier::post(int to, std::string bytes) {
  std::string message = comm::message_of({}, bytes);
  if (to == process_) {
    state_->arrived(to, std::move(message));
  } else {
    send(to, message);
  }
}

std::optional<std::string> TransportCarrier::take(int from, std::chrono::milliseconds timeout) {
  return state_->word(from, timeout);
}

// Called by the author's threads: nothing may be thrown there.
void TransportCarrier::arrived(int from, std::string message) {
  try {
    state_->arrived(from, std::move(message));
  } catch (const std::exception& error) {
    state_->gone(from, fmt::format("what it sends cannot be read: {}", error.what()));
  }
}

void TransportCarrier::gone(int process, const std::string& why) {
  state_->gone(process, why);
}

}  // namespace mw
