// What carries a run whose ranks are in several processes: it connects the ranks for collectives,
// and takes messages between the processes. Threads of one process need none. MPI and NCCL are
// plugins:
//
//   class MpiCarrier : public mw::Carrier {
//    public:
//     explicit MpiCarrier(const mw::Values& values);   // joins the processes that were started
//     …
//   };
//   MESHWRIGHT_PLUGIN("mpi", "1.0.0", "processes that mpirun or srun started",
//                     mw::communicator<MpiCarrier>())
//
// It is made once in each process, by the main thread, before the script is read; which one, and
// whether any, comes from the launcher's environment (libs/transport). It knows no experiment and
// no plan: what processes say to each other, and who speaks when, is another matter
// (engine/processes.h).
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
  // Ends the connection. Does not wait for other processes unless end(true) was called.
  ~Carrier() override = default;

  virtual int processes() const = 0;
  virtual int process() const = 0;  // 0 … processes() - 1

  // Connects the ranks of a run: process p carries ranks[p], ascending, each a thread there. Every
  // process calls it alike, with the same arguments, by its main thread, and never while an earlier
  // source lives. Backends of the source connect ranks of any processes; its abort() and ended()
  // reach all of them, and a process that dies fails what waits for its ranks, as abort() does,
  // naming the ranks. `platform`: what all ranks compute on; it outlives the source. `timeout`: of
  // a collective that some rank does not join (WaitedInVain). After a failure the source may be
  // destroyed while other processes still use theirs.
  virtual std::unique_ptr<CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                                      const Platform& platform,
                                                      std::chrono::milliseconds timeout) = 0;

  // Messages between processes, apart from all that ranks send, and not stopped by abort(). Each
  // pair's arrive in the order in which they were posted, those to itself too. One thread of a
  // process at a time, not always the same; while ranks communicate too.
  static constexpr std::size_t most_bytes = std::size_t{1} << 26;  // of a message
  // Takes the bytes and returns at once, whether or not anybody waits for them. Posting to a
  // process that is gone does nothing.
  virtual void post(int to, std::string bytes) = 0;
  // The next message of process `from`; nothing if none comes in time. Throws Error (run,
  // "process.lost") if that process is known to be gone and has left no message behind.
  virtual std::optional<std::string> take(int from, std::chrono::milliseconds timeout) = 0;

  // The last call: this process is about to end, all went well everywhere or not. If it did it may
  // wait for the others (MPI_Finalize); if not it must not.
  virtual void end(bool well) noexcept = 0;
};

// What the collective that this thread is about to issue is for: c10d's calls carry no label, and
// errors name it. Null outside of Communicator's calls; valid until the backend's call returns.
const Purpose* current_purpose();

// A carrier is made by a constructor (const Values&), or one without arguments. It throws Error
// (environment) if the processes cannot be joined.
template <>
struct KindOf<Carrier> {
  static constexpr Kind kind = Kind::communicator;
  using Make = std::unique_ptr<Carrier>(const Values& values);
};

// Processes that are told who they are by WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT, as
// torchrun does it, need no more. Where something else must start them the class says so, for
// `plugins test`: the words before those of the program, as one would type them.
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
