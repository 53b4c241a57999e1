// A rank's backend in a group over several processes: ProcessGroupNCCL, behind the checks and the
// pairing of sends that Communicator promises.
#pragma once

#include <c10/core/Stream.h>

#include <optional>
#include <string>
#include <vector>

#include "meshwright/backend.h"
#include "source.h"

namespace nccl {

class GroupBackend final : public mw::comm::CheckedBackend {
 public:
  // The backend is for the GPU that is the calling thread's now. Makes the group's communicator,
  // and waits until all members make it.
  GroupBackend(Source& source, const mw::Connection& group, int index);
  const std::string getBackendName() const override { return "nccl"; }

 protected:
  WorkPtr issue(Issue issue) override;
  WorkPtr issue_pair(Issue issue, int peer, int tag) override;

 private:
  WorkPtr called(const Issue& issue);
  template <class Call>
  WorkPtr in_line(const Call& call);
  void connect_pair();
  WorkPtr followed(WorkPtr work, Issue issue);

  Source& source_;
  const at::Device device_;
  // NCCL has a stream for each communicator. What goes on a program's stream begins where this one
  // stands, and this one waits for its end.
  const std::optional<c10::Stream> line_;
  const GroupPtr nccl_;
};

}  // namespace nccl
