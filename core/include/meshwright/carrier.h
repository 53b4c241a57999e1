// A carrier connects the processes of a run: it gives their ranks backends for collectives, and
// passes messages between the processes. A run whose ranks are threads of one process needs none.
// MPI and NCCL are plugins:
//
//   class MpiCarrier : public mw::Carrier {
//    public:
//     explicit MpiCarrier(const mw::Values& values);   // joins the processes that were started
//     …
//   };
//   MESHWRIGHT_PLUGIN("mpi", "1.0.0", "processes that mpirun or srun started",
//                     mw::communicator<MpiCarrier>())
//
// Each process makes one carrier, in the main thread, before the script is read. The launcher's
// environment decides whether a carrier is made, and which one (libs/transport). A carrier knows no
// experiment and no plan. What the processes say to each other, and when, is defined in
// engine/processes.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/platform.h"
#include "meshwright/registration.h"
#include "meshwright/world.h"

namespace mw {

class Carrier : public Registered {
 public:
  // Closes the connection. Waits for other processes only if end(true) was called.
  ~Carrier() override = default;

  virtual int processes() const = 0;
  virtual int process() const = 0;  // 0 … processes() - 1
  // The name and version of the library that carries; empty: not known. A run whose
  // processes have different ones is refused.
  virtual std::string library_version() const { return ""; }

  // Connects the ranks of a run: process p carries ranks[p] (ascending), each in a thread. Every
  // process calls connect() with the same arguments, in its main thread, and never while an earlier
  // source lives. Backends of the source connect ranks of any processes; its abort() and ended()
  // reach all processes. If a process dies, every wait for its ranks fails as after abort(), with a
  // message that names these ranks. `platform`: the devices of all ranks; it outlives the source.
  // `timeout`: how long a collective waits for a rank (WaitedInVain). After a failure the source
  // may be destroyed while other processes still use theirs.
  virtual std::unique_ptr<CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                                      const Platform& platform,
                                                      std::chrono::milliseconds timeout) = 0;

  // Messages between processes are independent of what ranks send, and abort() does not stop them.
  // Messages from one process to another, or to itself, arrive in the order in which they were
  // posted. post() and take() are called by one thread of a process at a time, not always the same
  // one, also while ranks communicate.
  static constexpr std::size_t most_bytes = std::size_t{1} << 26;  // largest size of a message
  // Sends a message and returns at once, whether or not the receiver waits for it. Posting to a
  // process that is gone does nothing.
  virtual void post(int to, std::string bytes) = 0;
  // Returns the next message of process `from`; nothing if none comes in time. Throws Error (run,
  // "process.lost") if that process is known to be gone and has left no message behind.
  virtual std::optional<std::string> take(int from, std::chrono::milliseconds timeout) = 0;

  // The last call, before this process ends. `well`: whether all processes succeeded. Only then may
  // end() wait for the other processes (MPI_Finalize).
  virtual void end(bool well) noexcept = 0;
};

// The purpose of the collective that this thread is about to issue, for a backend's error messages:
// the calls of c10d carry no label. Null outside of Communicator's calls; valid until the backend's
// call returns.
const Purpose* current_purpose();

// A carrier's constructor takes (const Values&), or nothing. It throws Error (environment) if it
// cannot connect to the other processes.
template <>
struct KindOf<Carrier> {
  static constexpr Kind kind = Kind::communicator;
  using Make = std::unique_ptr<Carrier>(const Values& values);
};

// The command that starts processes for a carrier, for `plugins test`, as one would type it before
// the program's own command line. A carrier that reads WORLD_SIZE, RANK, MASTER_ADDR and
// MASTER_PORT, as torchrun sets them, needs no launcher. Any other carrier class declares one:
//
//   static std::string launcher(int processes);   // "mpirun -n 2"
using Launcher = std::string(int processes);
struct CarrierMaker {
  Maker<Carrier> maker;
  Launcher* launcher;  // null: none
};
template <class Class>
constexpr Launcher* launcher_of_class() {
  if constexpr (requires { Class::launcher(1); }) return &Class::launcher;
  return nullptr;
}
template <class Class>
inline constexpr CarrierMaker carrier_maker_of = {{&make_one<Carrier, Class>},
                                                  launcher_of_class<Class>()};

template <class Class>
constexpr Registration communicator(const char* name = nullptr, const char* doc = nullptr) {
  Registration one = registration<Carrier, Class>(name, doc);
  one.maker = &carrier_maker_of<Class>;
  return one;
}
// The launcher that a registered communicator asks for; empty: none.
inline std::string launcher_of(const Registration& communicator, int processes) {
  Launcher* const launcher = static_cast<const CarrierMaker*>(communicator.maker)->launcher;
  return launcher == nullptr ? "" : launcher(processes);
}

}  // namespace mw
