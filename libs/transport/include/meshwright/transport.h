// A communicator out of one thing: messages from process to process. An author who has sockets,
// RDMA or anything else that takes bytes from one process to another writes send(), and gets all
// collectives, their checks and the handling of failures:
//
//   class Sockets : public mw::TransportCarrier {
//    public:
//     Sockets() : Sockets(mw::rendezvous()) {}                  // store_link.h: who and where
//     explicit Sockets(const mw::Rendezvous& at)
//         : TransportCarrier("sockets", at.processes, at.process) { … connect, start readers … }
//     ~Sockets() override { … stop the readers … }
//     void send(int to, const std::string& message) override { … }
//    private:
//     void read(int from) { … arrived(from, message) …; gone(from, "its socket was closed"); }
//   };
//   MESHWRIGHT_PLUGIN("sockets", "0.1.0", "…", mw::communicator<Sockets>())
//
// Ranks are on CPUs. Each process sums up one part and sends it to the others: an all-reduce of n
// processes sends 2 (n - 1) / n times the tensor, as a ring does. Sums are taken in the order of
// the ranks, so all ranks get equal bits. Ranks of one process use its memory.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/process_link.h"

namespace mw {

namespace transport {
class MessageLink;
}

class TransportCarrier : public LinkedCarrier {
 public:
  // `name`: the communicator's name, for messages; `process`: this process' number, 0 … processes -
  // 1.
  TransportCarrier(std::string name, int processes, int process);
  ~TransportCarrier() override;

  // Sends a message of any size to another process. Called by any thread, several at once. Messages
  // from one thread to one process arrive in the order of the calls. May return once `message` is
  // no longer needed. It may wait for room on the way, but not for the other process to ask for
  // anything: the other process' arrived() must be called whatever its ranks are doing. Does
  // nothing where the process is gone.
  virtual void send(int to, const std::string& message) = 0;

  // Throws Error (options, "device.transport") for ranks that are on no CPU.
  std::unique_ptr<CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                              const Platform& platform,
                                              std::chrono::milliseconds timeout) final;
  void post(int to, std::string bytes) final;
  void end(bool /*well*/) noexcept override {}

 protected:
  // To be called with each whole message of process `from`, by the author's own threads, one at a
  // time for each process. Those threads must have ended when the author's destructor returns.
  void arrived(int from, std::string message);
  // To be called when a process sends nothing more; `why`: "its socket was closed". Messages that
  // came before stay; whoever waits for more fails and names the process and its ranks. Also where
  // it ended well, and more than once.
  void gone(int process, const std::string& why);

 private:
  transport::MessageLink& messages();
};

}  // namespace mw
