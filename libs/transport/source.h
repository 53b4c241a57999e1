// The ranks of one run in this process: where they meet, what each is about, and how they reach
// those of other processes.
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

// A group as the process has it. Collectives are matched by their order on each rank; a send meets
// the recv of the same pair and tag, first to first.
struct Group {
  std::shared_ptr<const Members> members;
  bool far = false;
  std::vector<std::uint64_t> next;  // by index: number of the next collective
  // Sends and recvs so far: by sender, receiver, tag and whether they are sends.
  std::map<std::tuple<int, int, int, bool>, std::uint64_t> pairs;
};

class Source final : public CommunicatorSource, public Host {
 public:
  Source(Engine& engine, std::string name, const std::vector<std::vector<int>>& ranks,
         std::chrono::milliseconds timeout);
  ~Source() override;

  const char* name() const override { return name_.c_str(); }
  int ranks() const override { return static_cast<int>(process_of_.size()); }
  c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) override;
  void abort(int rank, const std::string& reason) override;
  void ended(int rank) override;

  // A rank's call becomes part of a round. Throws if the run is over, or the round has failed.
  std::shared_ptr<Round> join(Group& group, int index, Arrival arrival);
  std::shared_ptr<Round> join_pair(Group& group, int index, int peer, int tag, Arrival arrival);
  Engine& engine() { return engine_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  void begins_to_wait(int rank, std::shared_ptr<Round> round);
  void ends_waiting(int rank, bool completed);

  // Host, for the engine.
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
  void check_running() const;               // throws Aborted; under the lock
  void check_ended(Round& round);           // under the lock
  std::string whereabouts(int rank) const;  // under the lock
  // The same, under the lock, for a group whose ranks are all of this process: what the rank did in
  // such groups comes first.
  std::string whereabouts_in_group(int rank) const;

  Engine& engine_;
  const std::string name_;
  const std::chrono::milliseconds timeout_;
  std::vector<int> process_of_;                  // by rank
  std::unique_ptr<comm::ThreadSource> threads_;  // groups that live here as a whole

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
