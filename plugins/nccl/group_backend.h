// A rank's backend in a group over several processes: NCCL, behind the checks and the
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
  // The backend is for the calling thread's current GPU. Makes the group's communicator, and waits
  // until all members have made it.
  GroupBackend(NcclSource& source, const mw::Connection& group, int index);
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

  NcclSource& source_;
  const at::Device device_;
  // The device's stream for the group's stream of a program, if it has one. NCCL has a stream for
  // each communicator: a transfer begins behind this stream's work, and this stream waits for its
  // end.
  const std::optional<c10::Stream> line_;
  const GroupPtr nccl_;
};

}  // namespace nccl
