// How the engine reaches the other processes: by MPI, and by shared memory those of its machine.
// Used by the engine's thread alone, the only one that calls MPI: no thread level is needed that
// some MPI lacks.
#pragma once

#include <mpi.h>

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "rings.h"
#include "round.h"

namespace mpi {

struct Process {
  int pid = 0;
  int machine = 0;  // the same number: they share memory
  std::string host;
};

class Link {
 public:
  // Joins the processes that were started together. Throws Error (environment).
  Link();
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int processes() const { return static_cast<int>(all_.size()); }
  int process() const { return process_; }
  const Process& at(int process) const { return all_[static_cast<std::size_t>(process)]; }
  bool near(int other) const { return area_ && at(other).machine == at(process_).machine; }
  bool any_far() const { return any_far_; }
  Doorbell& bell() const { return area_ ? area_->doorbell(place_) : *own_bell_; }

  // A message for another process; goes by pump().
  void send(int to, std::string bytes);
  // What the engine does with what comes.
  struct Receiver {
    std::function<void(int from, const std::string& bytes)> message;
    std::function<Round*(std::uint32_t handle)> round;
    std::function<void(Round&, Round::Peer&, StreamKind)> came;  // a whole piece
    std::function<void(int process, const std::string& why)> lost;
  };
  // Each true if anything moved.
  bool receive(const Receiver& receiver);
  bool receive_near(int from, const Receiver& receiver);
  bool pump(const std::vector<std::shared_ptr<Round>>& rounds, const Receiver& receiver);
  bool all_sent() const;
  void forget(int process);  // it is gone: what was to be sent to it is dropped

  void finalize();  // MPI's, which waits for all processes

 private:
  struct Sending {
    std::string bytes;
    MPI_Request request;
  };
  void join_machine();
  bool pump_near(int to, const std::vector<std::shared_ptr<Round>>& rounds);
  bool pump_far(Round& round, Round::Peer& peer, const Receiver& receiver);
  void take_data(int from, const FrameHead& head, const Receiver& receiver);
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
  std::vector<std::deque<std::string>> outbox_;  // near: to be written
  std::vector<std::size_t> written_;             // bytes of the first of these
  std::vector<std::string> partial_;             // of a message that comes in parts
  std::list<Sending> sending_;                   // far
  std::vector<char> gone_;
};

}  // namespace mpi
