// The ranks of one run in this process: where they meet for collectives, what each of them waits
// for, and how they reach ranks of other processes.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "meshwright/backend.h"
#include "meshwright/world.h"
#include "transport/engine.h"
#include "transport/round.h"

namespace mw::transport {

// A group as this process knows it. Collectives are matched by their order on each rank; a send is
// matched with the recv of the same pair and tag, in order.
struct Group {
  std::shared_ptr<const Members> members;
  bool far = false;
  std::vector<std::uint64_t> next;  // by index in the group: number of the member's next collective
  // Number of sends and recvs so far, by sender, receiver, tag and whether it counts the sends.
  std::map<std::tuple<int, int, int, bool>, std::uint64_t> pairs;
};

class LinkedSource final : public CommunicatorSource, public Host {
 public:
  LinkedSource(Engine& engine, std::string name, const std::vector<std::vector<int>>& ranks,
               std::chrono::milliseconds timeout);
  ~LinkedSource() override;

  const char* name() const override { return name_.c_str(); }
  int ranks() const override { return static_cast<int>(process_of_.size()); }
  c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) override;
  void abort(int rank, const std::string& reason) override;
  void ended(int rank) override;

  // Makes a rank's call part of a round. Throws if the run is over, or the round has failed.
  std::shared_ptr<Round> join(Group& group, int index, Arrival arrival);
  std::shared_ptr<Round> join_pair(Group& group, int index, int peer, int tag, Arrival arrival);
  Engine& engine() { return engine_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  void begins_to_wait(int rank, std::shared_ptr<Round> round);
  void ends_waiting(int rank, bool completed);

  // Implements Host, which the engine calls.
  void rank_failed(int rank, const std::string& reason) override;
  void rank_ended(int rank) override;
  bool has_ended(int rank) const override;
  std::vector<int> ranks_of(int process) const override;
  std::optional<std::string> stopped() const override;
  std::vector<Whereabouts> where(std::uint64_t round, const std::vector<int>& ranks) override;
  std::vector<comm::IdleRank> idle() override;

 private:
  std::shared_ptr<Round> seat(std::uint64_t id, const std::shared_ptr<const Members>& members,
                              const std::string& name, bool far, int index, Arrival arrival);
  void check_running() const;               // throws Aborted after a failure; needs lock_
  void check_ended(Round& round);           // needs lock_
  std::string whereabouts(int rank) const;  // needs lock_
  // Like whereabouts(), for messages of groups whose ranks are all in this process: what the rank
  // did in such groups comes first. Needs lock_.
  std::string whereabouts_in_group(int rank) const;

  Engine& engine_;
  const std::string name_;
  const std::chrono::milliseconds timeout_;
  std::vector<int> process_of_;  // by rank: the process that carries it
  // connects groups whose ranks are all in this process
  std::unique_ptr<comm::ThreadSource> threads_;

  struct Status {
    std::shared_ptr<Round> now, last;
  };
  mutable std::mutex lock_;
  std::uint32_t run_ = 0;
  std::optional<Failure> failed_;
  std::vector<char> ended_;
  std::vector<Status> status_;
  std::map<std::pair<std::string, std::vector<int>>, std::unique_ptr<Group>> groups_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Round>> gathering_;
};

}  // namespace mw::transport
