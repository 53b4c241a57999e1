// The ranks of one run: which process has which, the groups that were asked for, and how all of
// them end when one fails.
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

namespace c10d {
class ProcessGroupNCCL;
}

namespace nccl {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;

class Source final : public mw::CommunicatorSource {
 public:
  // `run`: a name that no other run of these processes has.
  Source(mw::StoreLink& link, const std::string& run, const std::vector<std::vector<int>>& ranks,
         const mw::Platform& platform, std::chrono::milliseconds timeout);
  ~Source() override;

  const char* name() const override { return "nccl"; }
  int ranks() const override { return static_cast<int>(process_of_.size()); }
  // The backend of a group whose members are all in this process is the threads' own, which shares
  // a GPU where they do. In any other group, each member has a GPU of its own.
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
  // Makes a call of NCCL's for `what`; what it throws becomes Error (run), or Aborted.
  template <class Call>
  void called(const std::string& what, const Call& call) const {
    check();
    try {
      call();
    } catch (const std::exception& error) {
      check();  // that another rank has failed comes first
      refuse(what, error.what());
    }
  }
  std::chrono::milliseconds timeout() const { return timeout_; }
  // Throws Aborted if a rank has failed.
  void check() const;

 private:
  bool is_here(const std::vector<int>& group, int index) const;
  [[noreturn]] static void refuse(const std::string& what, const std::string& text);
  void take_stream(at::Device device);
  void watch();
  void stop(const std::string& reason);
  void fail(const std::string& reason);

  mw::StoreLink& link_;
  const std::string run_;
  const mw::Platform& platform_;
  const std::chrono::milliseconds timeout_;
  std::vector<int> process_of_;                      // by rank
  std::unique_ptr<mw::CommunicatorSource> threads_;  // of this process
  c10::intrusive_ptr<c10d::Store> news_, devices_;   // of the watching thread; of ranks

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::optional<std::string> stopped_;
  // By name, and the member's place.
  using Groups = std::map<std::pair<std::string, int>, GroupPtr>;
  Groups groups_;
  std::map<at::DeviceIndex, int> urgent_streams_;             // that pairs and lines take
  std::map<std::pair<int, std::string>, c10::Stream> lines_;  // by rank and stream of a program
  bool over_ = false;
  std::jthread watching_;
};

}  // namespace nccl
