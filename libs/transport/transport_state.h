// What has come for the ranks and the words of one process, over a transport (transport.h), until
// somebody asks for it; and how the run under way stands.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshwright/backend.h"
#include "meshwright/transport.h"

namespace mw::comm {

// What stands before a message's own bytes.
struct MessageHead {
  enum class Sort : std::uint8_t {
    word,     // Carrier::post
    part,     // of a collective: what one rank has for another one
    aborted,  // a rank cannot go on
    ended,    // a rank makes no further calls
  };
  Sort sort = Sort::word;
  std::int64_t run = 0;
  int rank = 0;      // that sends
  std::string text;  // of a part: which one; of `aborted`: why
  Call call;         // of a part
};
std::string message_of(const MessageHead& head, std::string_view bytes);

struct Received {
  MessageHead head;
  std::string message;  // whole
  std::size_t begin = 0;
  std::string_view bytes() const { return std::string_view(message).substr(begin); }
};

class TransportState {
 public:
  explicit TransportState(int processes);

  // By the author's threads.
  void arrived(int from, std::string message);
  void gone(int process, const std::string& why);

  std::optional<std::string> word(int from, std::chrono::milliseconds timeout);

  // A run's ranks are connected, and no longer. `process_of`: by rank; `threads`: those of this
  // process, aborted with the others. Returns the run's number, the same in all processes.
  std::int64_t begin(const std::vector<int>& process_of, CommunicatorSource* threads);
  void over();

  // These are about the run that has begun. stop(): whether it is the first.
  bool stop(int rank, const std::string& reason);
  void rank_ended(int rank);
  void check() const;  // throws Aborted
  // The part of this name that rank `from` sent; nothing once patience is over. Throws Aborted, or
  // Error (run, "collective.mismatch") where that rank has ended; `told` says what waits for it.
  std::optional<Received> part(const std::string& name, int from, Patience& patience,
                               const std::string& told);
  bool is_there(const std::string& name) const;

 private:
  struct Stop {
    int rank;
    std::string reason;
  };
  void stop_locked(std::int64_t run, int rank, const std::string& reason);
  void check_locked() const;
  void lose_ranks(int process);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<std::string>> words_;    // by process
  std::vector<std::optional<std::string>> gone_;  // why, by process
  // By run: other processes may have come to one that has not begun here.
  std::map<std::pair<std::int64_t, std::string>, Received> parts_;
  std::map<std::int64_t, Stop> stopped_;
  std::set<std::pair<std::int64_t, int>> ended_;
  std::int64_t run_ = 0;  // under way, or the next
  std::vector<int> process_of_;
  CommunicatorSource* threads_ = nullptr;  // while a run is under way
};

// The ranks of one run, over a carrier's messages.
class TransportSource final : public CommunicatorSource {
 public:
  TransportSource(TransportCarrier& carrier, std::string name, TransportState& state,
                  const std::vector<std::vector<int>>& ranks, std::chrono::milliseconds timeout);
  ~TransportSource() override;

  const char* name() const override { return name_.c_str(); }
  int ranks() const override { return static_cast<int>(process_of_.size()); }
  c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) override;
  void abort(int rank, const std::string& reason) override;
  void ended(int rank) override;

  // How many collectives group[index] has begun before on this group, or sends or recvs of this
  // name; backends ask.
  std::int64_t count(const std::string& name);
  void send_part(int to, const std::string& name, int from, const Call& call,
                 std::string_view bytes);
  TransportState& state() { return state_; }
  int process_of(int rank) const { return process_of_.at(static_cast<std::size_t>(rank)); }

 private:
  void tell_all(const MessageHead& head);

  TransportCarrier& carrier_;
  const std::string name_;
  TransportState& state_;
  const std::chrono::milliseconds timeout_;
  std::vector<int> process_of_;  // by rank
  std::unique_ptr<CommunicatorSource> threads_;
  std::int64_t run_ = 0;
  std::mutex mutex_;
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace mw::comm
