// The carrier over MPI: the processes that mpirun or srun started.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine.h"
#include "meshwright/carrier.h"

namespace mpi {

class MpiCarrier final : public mw::Carrier {
 public:
  // Open MPI's words. Root is asked by it whether it means it.
  static std::string launcher(int processes);

  int processes() const override { return engine_.processes(); }
  int process() const override { return engine_.process(); }
  std::unique_ptr<mw::CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                                  at::DeviceType device,
                                                  std::chrono::milliseconds timeout) override;
  void post(int to, std::string bytes) override { engine_.post(to, std::move(bytes)); }
  std::optional<std::string> take(int from, std::chrono::milliseconds timeout) override {
    return engine_.take(from, timeout);
  }
  void end(bool well) noexcept override { engine_.end(well); }

 private:
  Engine engine_;
};

}  // namespace mpi
