// A communicator out of one thing: messages from process to process. Who has sockets, RDMA or
// anything else that takes bytes from one process to another writes that, and has all collectives,
// their checks and the ways in which runs end:
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
// Ranks are on CPUs. The processes sum up a part each and tell the others: an all-reduce of n
// processes sends 2 (n - 1) / n times the tensor, as a ring does. Sums are in the order of the
// ranks: equal bits everywhere. Ranks of one process use its memory.
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
  // `name`: of the communicator, for messages; `process`: 0 … processes - 1.
  TransportCarrier(std::string name, int processes, int process);
  ~TransportCarrier() override;

  // Sends a message to another process, of any size. Called by any thread, several at once. Those
  // that one thread sends to one process arrive in that order. Returns when the bytes are taken
  // care of; it may wait for room on the way, but not for the other process to ask for anything:
  // that one's arrived() must be called whatever its ranks are about. Does nothing where the
  // process is gone.
  virtual void send(int to, const std::string& message) = 0;

  // Throws Error (options, "device.transport") for ranks that are on no CPU.
  std::unique_ptr<CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                              const Platform& platform,
                                              std::chrono::milliseconds timeout) final;
  void post(int to, std::string bytes) final;
  void end(bool /*well*/) noexcept override {}

 protected:
  // A message of that process has come, whole. Called by the author's own threads, for one process
  // by one at a time; they are over when the author's destructor is.
  void arrived(int from, std::string message);
  // That process sends nothing more: "its socket was closed". What came before stays; who waits for
  // more fails and names the process and its ranks. Also where it ended well, and more than once.
  void gone(int process, const std::string& why);

 private:
  transport::MessageLink& messages();
};

}  // namespace mw
