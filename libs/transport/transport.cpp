// A Link over a TransportCarrier: messages that the author's threads bring are queued for the
// engine; each piece, and each engine's message, goes out as one message.
#include "meshwright/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "meshwright/engine/pack.h"
#include "meshwright/error.h"
#include "transport/engine.h"

namespace mw {
namespace transport {

// The header of each message.
struct MessageHead {
  bool is_word = true;  // a message between engines; false: bytes of a stream
  std::uint32_t handle = 0;
  StreamKind kind = plain;
  std::int64_t bytes = 0;
};

template <class Pack>
void members(Pack& pack, MessageHead& head) {
  pack(head.is_word, head.handle, head.kind, head.bytes);
}

class MessageLink final : public Link {
 public:
  MessageLink(TransportCarrier& carrier, std::string name, int processes, int process)
      : carrier_(carrier),
        name_(std::move(name)),
        processes_(processes),
        process_(process),
        gone_(static_cast<std::size_t>(processes), 0) {}

  // Queues a message, or the reason why no more come. Called by the author's threads.
  void came(int from, std::string message, bool gone) {
    {
      const std::lock_guard lock(mutex_);
      line_.push_back({from, std::move(message), gone});
    }
    bell_.ring();
  }
  // Sends without the engine. Any thread may call it.
  void send_now(int to, const std::string& word) {
    const auto bytes = static_cast<std::int64_t>(word.size());
    carrier_.send(to, pack(MessageHead{.bytes = bytes}) + word);
  }

  const std::string& name() const { return name_; }
  int processes() const override { return processes_; }
  int process() const override { return process_; }
  std::string name_of(int process) const override { return fmt::format("process {}", process); }
  bool together(int a, int b) const override { return a == b; }
  bool is_polled() const override { return false; }
  bool outlasts_runs() const override { return false; }
  Doorbell& bell() override { return bell_; }
  void watch(const std::function<void(int)>& /*died*/) override {}  // the author says who is gone

  // Errors are ignored: a process that misses the message times out, and says so.
  void send(int to, std::string word) override {
    if (gone_[static_cast<std::size_t>(to)] != 0) return;
    try {
      send_now(to, word);
    } catch (const std::exception&) {
    }
  }

  bool receive(const Receiver& receiver) override {
    std::vector<Entry> now;
    {
      const std::lock_guard lock(mutex_);
      now.swap(line_);
    }
    for (const Entry& entry : now) take_entry(entry, receiver);
    return !now.empty();
  }
  bool receive_last(int /*from*/, const Receiver& /*receiver*/) override { return false; }

  bool pump(std::span<Traffic* const> all, const Receiver& receiver) override {
    bool moved = false;
    for (Traffic* const traffic : all) {
      for (Traffic::Peer& peer : traffic->peers) {
        for (const StreamKind kind : {parts, plain}) {
          Stream& out = peer.out[kind];
          while (peer.arrived && out.done < out.allowed) {
            moved = true;
            if (!send_piece(peer, kind, out.pieces[out.done++], receiver)) return true;
          }
        }
      }
    }
    return moved;
  }
  bool all_sent() const override { return true; }
  void forget(int process) override { gone_[static_cast<std::size_t>(process)] = 1; }
  bool in_flight(const Traffic& /*traffic*/) const override { return false; }
  void finalize() override {}

 private:
  struct Entry {
    int from;
    std::string message;
    bool gone;
  };

  bool send_piece(const Traffic::Peer& peer, StreamKind kind, const Piece& piece,
                  const Receiver& receiver) {
    if (gone_[static_cast<std::size_t>(peer.process)] != 0) return true;
    std::string message = pack(MessageHead{false, peer.handle, kind, piece.bytes});
    message.append(reinterpret_cast<const char*>(piece.at), static_cast<std::size_t>(piece.bytes));
    try {
      carrier_.send(peer.process, message);
      return true;
    } catch (const std::exception& error) {
      receiver.lost(peer.process, error.what());
      return false;
    }
  }

  void take_entry(const Entry& entry, const Receiver& receiver) const {
    if (gone_[static_cast<std::size_t>(entry.from)] != 0) return;
    if (entry.gone) return receiver.lost(entry.from, entry.message);
    static const std::size_t head_size = pack(MessageHead()).size();
    MessageHead head;
    try {
      head = unpack<MessageHead>(entry.message);
    } catch (const Error& error) {
      return receiver.lost(entry.from,
                           fmt::format("what it sends cannot be read: {}", error.what()));
    }
    const std::string_view bytes = std::string_view(entry.message).substr(head_size);
    const bool whole = static_cast<std::int64_t>(bytes.size()) == head.bytes;
    if (head.is_word && whole) return receiver.message(entry.from, bytes);
    if (head.is_word) return receiver.lost(entry.from, cut_off(entry.from, bytes, head));
    Traffic* const traffic = receiver.traffic(head.handle);
    if (traffic == nullptr || traffic->peer_of(entry.from) == nullptr || head.kind > parts) return;
    if (!whole) {
      // The transport has cut the message off: nothing may be read beyond its end.
      return receiver.spoiled(*traffic,
                              {Stage::run, "process.message", "", cut_off(entry.from, bytes, head),
                               "send() and arrived() must have the same bytes"});
    }
    const auto copy = [&](std::int64_t offset, std::byte* to, std::int64_t count) {
      std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()) + offset, count, to);
    };
    take(*traffic, entry.from, head.kind, head.bytes, copy, receiver);
  }

  std::string cut_off(int from, std::string_view bytes, const MessageHead& head) const {
    return fmt::format("{} delivered {} bytes from process {}, which sent {}", name_, bytes.size(),
                       from, head.bytes);
  }

  TransportCarrier& carrier_;
  const std::string name_;
  const int processes_, process_;
  std::vector<char> gone_;
  Doorbell bell_;
  std::mutex mutex_;
  std::vector<Entry> line_;
};

}  // namespace transport

TransportCarrier::TransportCarrier(std::string name, int processes, int process)
    : LinkedCarrier(name, [&] {
        return std::make_unique<transport::MessageLink>(*this, name, processes, process);
      }) {}

TransportCarrier::~TransportCarrier() = default;

transport::MessageLink& TransportCarrier::messages() {
  return static_cast<transport::MessageLink&>(link());
}

std::unique_ptr<CommunicatorSource> TransportCarrier::connect(
    const std::vector<std::vector<int>>& ranks, const Platform& platform,
    std::chrono::milliseconds timeout) {
  if (platform.type() != at::kCPU) {
    throw Error(Stage::options, "device.transport", "device",
                fmt::format("device: {} connects ranks on CPUs, and the ranks are on {}",
                            messages().name(), platform.name()),
                "device = \"cpu\"; GPUs of several processes are connected by nccl");
  }
  return LinkedCarrier::connect(ranks, platform, timeout);
}

void TransportCarrier::post(int to, std::string bytes) {
  if (to == process()) return LinkedCarrier::post(to, std::move(bytes));
  messages().send_now(to, transport::Engine::posted(bytes));
}

void TransportCarrier::arrived(int from, std::string message) {
  messages().came(from, std::move(message), false);
}

void TransportCarrier::gone(int process, const std::string& why) {
  messages().came(process, why, true);
}

}  // namespace mw
