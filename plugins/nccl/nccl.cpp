// Registers the carrier over NCCL. This file alone needs libtorch's CUDA side.
#include <cstdlib>

#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "carrier.h"
#include "meshwright/plugin.h"

namespace nccl {
namespace {

class Nccl final : public Library {
 public:
  GroupPtr make(c10::intrusive_ptr<c10d::Store> store, int index, int ways, bool urgent,
                std::chrono::milliseconds timeout) const override {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/urgent);
    options->timeout = timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), index, ways,
                                                       std::move(options));
  }
  std::string version() const override { return "NCCL " + c10d::getNcclVersion(); }
};

const Library& library() {
  static const Nccl one;
  return one;
}

// Sets defaults of libtorch and CUDA. A communicator that fails is only to be taken down: how the
// run ends is the core's.
mw::Rendezvous ready() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  // No warning: a pair's communicator has one direction, and its stream can hold up nothing else.
  ::setenv("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false", /*overwrite=*/0);
  // The streams of a GPU share this many hardware queues, 8 by default; kernels that compute must
  // not queue behind a transfer that waits for its peer.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  return mw::rendezvous();
}

class Carrier final : public NcclCarrier {
 public:
  Carrier() : NcclCarrier(library(), ready()) {}
};

}  // namespace
}  // namespace nccl

MESHWRIGHT_PLUGIN("nccl", "1.0.0",
                  "ranks on GPUs, in processes that torchrun, srun or mpirun started",
                  mw::communicator<nccl::Carrier>())
