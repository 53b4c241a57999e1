// How the engine reaches other processes: those of its machine by shared memory, all others by MPI.
// Used by the engine's thread alone, the only one that calls MPI: no thread level is needed that
// some MPI lacks.
#pragma once

#include <mpi.h>

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "meshwright/process_link.h"
#include "rings.h"

namespace mpi {

using mw::transport::StreamKind;
using mw::transport::Traffic;

// Reports the death of a process of this machine at once. Costs no time until then: its thread
// sleeps until the system says that a process has ended.
class Deaths {
 public:
  // `watched`: number and pid of each process. `died` is called by a thread of this object, once
  // for each process that ends.
  Deaths(const std::vector<std::pair<int, int>>& watched, std::function<void(int)> died);
  ~Deaths();
  Deaths(const Deaths&) = delete;
  Deaths& operator=(const Deaths&) = delete;

 private:
  int stop_ = -1;  // an eventfd that ends the thread
  std::jthread thread_;
};

struct Process {
  int pid = 0;
  int machine = 0;  // equal for processes that share memory
  std::string host;
};

class MpiLink final : public mw::transport::Link {
 public:
  MpiLink();  // joins the processes that were started together; throws Error (environment)
  ~MpiLink() override;
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  int processes() const override { return static_cast<int>(all_.size()); }
  int process() const override { return process_; }
  std::string name_of(int process) const override;
  bool together(int a, int b) const override { return at(a).machine == at(b).machine; }
  bool is_polled() const override { return any_far_; }
  bool outlasts_runs() const override { return true; }
  Doorbell& bell() override { return area_ ? area_->doorbell(place_) : *own_bell_; }
  void watch(const std::function<void(int)>& died) override;

  void send(int to, std::string bytes) override;
  bool receive(const Receiver& receiver) override;
  bool receive_last(int from, const Receiver& receiver) override;
  bool pump(std::span<Traffic* const> all, const Receiver& receiver) override;
  bool all_sent() const override;
  void forget(int process) override;
  bool in_flight(const Traffic& traffic) const override;
  void finalize() override;

 private:
  struct Sending {
    std::string bytes;
    MPI_Request request;
  };
  const Process& at(int process) const { return all_[static_cast<std::size_t>(process)]; }
  bool near(int other) const { return area_ && together(other, process_); }
  void join_machine();
  bool receive_near(int from, const Receiver& receiver);
  bool pump_near(int to, std::span<Traffic* const> all);
  bool pump_far(Traffic& traffic, Traffic::Peer& peer, const Receiver& receiver);
  int tag_of(std::uint32_t handle, StreamKind kind) const;
  bool tested(MPI_Request& request, int process, const Receiver& receiver);
  int place_of(int process) const { return places_[static_cast<std::size_t>(process)]; }

  MPI_Comm world_ = MPI_COMM_NULL;
  int process_ = 0, place_ = 0, most_tag_ = 32767;
  bool any_far_ = false;
  std::vector<Process> all_;
  std::vector<int> places_;  // by process: its place in the shared memory
  std::unique_ptr<SharedArea> area_;
  std::unique_ptr<Doorbell> own_bell_ = std::make_unique<Doorbell>();
  std::unique_ptr<Deaths> deaths_;
  // by process of this machine: messages to be written
  std::vector<std::deque<std::string>> outbox_;
  std::vector<std::size_t> written_;  // bytes written of each outbox's first message
  std::vector<std::string> partial_;  // by process: the parts that have come of a message
  std::list<Sending> sending_;        // messages that MPI is sending to other machines
  // The transfers with other machines that MPI has under way, for a stream's pieces from
  // Stream::done on.
  std::map<const mw::transport::Stream*, std::deque<MPI_Request>> requests_;
  std::vector<char> gone_;
};

}  // namespace mpi
