// LinkedCarrier, and what Doorbell, Traffic and Link do for all links.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "meshwright/process_link.h"
#include "transport/engine.h"
#include "transport/source.h"

namespace mw {
namespace transport {
namespace {

// Not FUTEX_PRIVATE: sleeper and waker may be of two processes.
void futex(std::atomic<std::uint32_t>& word, int op, std::uint32_t value, const timespec* most) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), op, value, most, nullptr, 0);
}

}  // namespace

void Doorbell::ring() {
  rung_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) != 0) futex(rung_, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::sleep(std::uint32_t seen, std::chrono::nanoseconds most) {
  const timespec time{static_cast<time_t>(most.count() / 1'000'000'000),
                      static_cast<long>(most.count() % 1'000'000'000)};
  futex(rung_, FUTEX_WAIT, seen, &time);
  cancel();
}

Traffic::Peer* Traffic::peer_of(int process) {
  const auto peer = std::find_if(peers.begin(), peers.end(),
                                 [&](const Peer& one) { return one.process == process; });
  return peer == peers.end() ? nullptr : &*peer;
}

void Link::take(Traffic& traffic, int from, StreamKind kind, std::int64_t bytes, const Copy& copy,
                const Receiver& receiver) {
  Traffic::Peer& peer = *traffic.peer_of(from);
  Stream& stream = peer.in[kind];
  for (std::int64_t taken = 0; taken < bytes && !stream.through();) {
    const Piece& piece = stream.pieces[stream.done];
    const auto count = std::min(bytes - taken, piece.bytes - stream.offset);
    copy(taken, piece.at + stream.offset, count);
    taken += count;
    stream.offset += count;
    if (stream.offset == piece.bytes) receiver.came(traffic, peer, kind);
  }
}

}  // namespace transport

LinkedCarrier::LinkedCarrier(std::string name,
                             const std::function<std::unique_ptr<transport::Link>()>& join)
    : name_(std::move(name)), engine_(std::make_unique<transport::Engine>(join)) {}

LinkedCarrier::~LinkedCarrier() = default;

int LinkedCarrier::processes() const {
  return engine_->processes();
}

int LinkedCarrier::process() const {
  return engine_->process();
}

transport::Link& LinkedCarrier::link() const {
  return engine_->link();
}

std::unique_ptr<CommunicatorSource> LinkedCarrier::connect(
    const std::vector<std::vector<int>>& ranks, const Platform& /*platform*/,
    std::chrono::milliseconds timeout) {
  return std::make_unique<transport::LinkedSource>(*engine_, name_, ranks, timeout);
}

void LinkedCarrier::post(int to, std::string bytes) {
  engine_->post(to, std::move(bytes));
}

std::optional<std::string> LinkedCarrier::take(int from, std::chrono::milliseconds timeout) {
  return engine_->take(from, timeout);
}

void LinkedCarrier::end(bool well) noexcept {
  engine_->end(well);
}

}  // namespace mw
