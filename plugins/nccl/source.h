// The ranks of one run over NCCL: which process has which rank, the groups that were asked for, and
// how all of them end when one rank fails.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "meshwright/backend.h"
#include "meshwright/platform.h"
#include "meshwright/store_link.h"
#include "meshwright/world.h"

namespace nccl {

using GroupPtr = c10::intrusive_ptr<c10d::Backend>;

// What makes communicators: NCCL, or what stands for it in tests.
class Library {
 public:
  virtual ~Library() = default;
  virtual at::DeviceType type() const { return at::kCUDA; }
  // Makes the communicator of member `index` of `ways`, which find each other by the store. Returns
  // before the others have come (Backend::eagerConnectSingleDevice waits for them). `urgent`:
  // whether its stream has a high priority.
  virtual GroupPtr make(c10::intrusive_ptr<c10d::Store> store, int index, int ways, bool urgent,
                        std::chrono::milliseconds timeout) const = 0;
  virtual std::string version() const = 0;  // "NCCL 2.30.7"
  // Whether it also connects ranks of one process, in place of the backend of threads.
  virtual bool joins_threads() const { return false; }
  // Whether a pair makes its first transfer when it is made. False only in tests, which show the
  // deadlock that follows.
  virtual bool connects_pairs() const { return true; }
};

class NcclSource final : public mw::CommunicatorSource {
 public:
  // `run`: a name that is unique among the runs of these processes.
  NcclSource(const Library& library, mw::StoreLink& link, const std::string& run,
             const std::vector<std::vector<int>>& ranks, const mw::Platform& platform,
             std::chrono::milliseconds timeout);
  ~NcclSource() override;

  const char* name() const override { return "nccl"; }
  int ranks() const override { return static_cast<int>(process_of_.size()); }
  // A group whose members are all in this process gets the backend of threads, where members may
  // share a GPU. In any other group, each member needs a GPU of its own.
  c10::intrusive_ptr<c10d::Backend> backend(const mw::Connection& connection, int index) override;
  void abort(int rank, const std::string& reason) override;
  void ended(int rank) override;

  // Backends call these, by the threads of ranks. The first one makes NCCL's communicator for the
  // member ranks[index], and waits for the other members; a second call gives it again. Throws
  // Error (run): device.shared if two members have one GPU, which NCCL refuses; or Aborted.
  GroupPtr join(const mw::Connection& connection, int index, at::Device device);
  // The device's stream for a stream of a program, which all communicators of the rank share.
  std::optional<c10::Stream> line_of(const mw::Connection& connection, int index,
                                     at::Device device);
  // Calls NCCL by `call`, which does `what`; an exception becomes Error (run), or Aborted if a rank
  // has failed.
  template <class Call>
  void called(const std::string& what, const Call& call) const {
    check();
    try {
      call();
    } catch (const std::exception& error) {
      check();  // another rank's failure comes first
      refuse(what, error.what());
    }
  }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const Library& library() const { return library_; }
  // Throws Aborted if a rank has failed.
  void check() const;

 private:
  bool is_here(const std::vector<int>& group, int index) const;
  [[noreturn]] static void refuse(const std::string& what, const std::string& text);
  void take_stream(at::Device device, bool urgent);
  void watch();
  void stop(const std::string& reason);
  void fail(const std::string& reason);

  const Library& library_;
  mw::StoreLink& link_;
  const std::string run_;
  const mw::Platform& platform_;
  const std::chrono::milliseconds timeout_;
  std::vector<int> process_of_;                      // by rank: the process that carries it
  std::unique_ptr<mw::CommunicatorSource> threads_;  // connects groups within this process
  // for the watching thread; for the threads of ranks
  c10::intrusive_ptr<c10d::Store> news_, devices_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::optional<std::string> stopped_;
  // By name of the group and index of the member.
  using Groups = std::map<std::pair<std::string, int>, GroupPtr>;
  Groups groups_;
  // By GPU: streams that pairs and lines have taken, which are urgent, and those of groups.
  std::map<std::pair<at::DeviceIndex, bool>, int> streams_;
  std::map<std::pair<int, std::string>, c10::Stream> lines_;  // by rank and the program's stream
  bool over_ = false;
  std::jthread watching_;
};

}  // namespace nccl
