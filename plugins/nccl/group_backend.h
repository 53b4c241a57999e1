// A rank's backend in a group over several processes: ProcessGroupNCCL, behind the checks and the
// pairing of sends that Communicator promises.
#pragma once

#include <c10/core/Stream.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "meshwright/backend.h"
#include "source.h"

namespace nccl {

class GroupBackend final : public mw::comm::CheckedBackend {
 public:
  // The backend is for the GPU that is the calling thread's now. `stream`: the name of a program's
  // stream, and the device's stream that the rank's groups on it share; {}: none.
  GroupBackend(Source& source, const std::string& axis, const std::vector<int>& group, int index,
               std::chrono::milliseconds timeout,
               const std::pair<std::string, std::optional<c10::Stream>>& stream = {});
  const std::string getBackendName() const override { return "nccl"; }

 protected:
  WorkPtr issue(Issue issue) override;
  WorkPtr issue_pair(Issue issue, int peer, int tag) override;

 private:
  WorkPtr called(const Issue& issue);
  template <class Call>
  WorkPtr in_line(const Call& call);
  GroupPtr& all();
  GroupPtr& pair(int from, int to, int tag);
  WorkPtr followed(WorkPtr work, Issue issue);

  Source& source_;
  const std::vector<int> members_;
  const int index_, device_;
  const std::string name_;
  // NCCL has a stream for each communicator. What goes on a program's stream begins where this one
  // stands, and this one waits for its end.
  const std::optional<c10::Stream> line_;
  GroupPtr group_;
  // NCCL takes what two ranks send to each other in the order in which it is issued, and a send
  // before a recv on one communicator waits for the other side's recv. So each direction and tag
  // has a communicator of its own.
  std::map<std::tuple<int, int, int>, GroupPtr> pairs_;
};

}  // namespace nccl
