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
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "meshwright/backend.h"
#include "meshwright/store_link.h"
#include "meshwright/world.h"

namespace c10d {
class ProcessGroupNCCL;
}

namespace nccl {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;
using NamedGroups = std::vector<std::pair<std::string, GroupPtr>>;

class Source final : public mw::CommunicatorSource {
 public:
  // `run`: a name that no other run of these processes has.
  Source(mw::StoreLink& link, const std::string& run, const std::vector<std::vector<int>>& ranks,
         std::chrono::milliseconds timeout);
  ~Source() override;

  const char* name() const override { return "nccl"; }
  int ranks() const override { return static_cast<int>(process_of_.size()); }
  // The backend of a group whose members are all in this process is the threads' own, which shares
  // a GPU where they do. In any other group, each member has a GPU of its own.
  c10::intrusive_ptr<c10d::Backend> backend(const std::string& axis, const std::vector<int>& group,
                                            int index) override;
  c10::intrusive_ptr<c10d::Backend> backend_on(const std::string& stream, const std::string& axis,
                                               const std::vector<int>& group, int index) override;
  void abort(int rank, const std::string& reason) override;
  void ended(int rank) override;

  // Backends call it, by the thread of a rank. It joins a communicator of NCCL's under a name that
  // is only this one's, and waits for the other members. Throws Error (run), or Aborted.
  GroupPtr join(const std::string& name, int index, int size, int device);
  // Throws Error (run, device.shared) if two members of a group have one GPU, which NCCL refuses;
  // waits until all have said which they have.
  void check_devices(const std::string& axis, const std::vector<int>& group, int rank, int device);
  // Throws Aborted if a rank has failed.
  void check() const;

 private:
  bool is_here(const std::vector<int>& group, int index) const;
  void watch();
  void stop(const std::string& reason);
  void fail(const std::string& reason);

  mw::StoreLink& link_;
  const std::string run_;
  const std::chrono::milliseconds timeout_;
  std::vector<int> process_of_;                      // by rank
  std::unique_ptr<mw::CommunicatorSource> threads_;  // of this process
  c10::intrusive_ptr<c10d::Store> news_, devices_;   // of the watching thread; of ranks
  std::mutex devices_mutex_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::optional<std::string> stopped_;
  NamedGroups groups_;
  std::set<int> told_;                                        // ranks whose device is in the store
  std::map<std::pair<int, std::string>, c10::Stream> lines_;  // by rank and stream of a program
  bool over_ = false;
  std::thread watching_;
};

}  // namespace nccl
