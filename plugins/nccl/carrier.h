// The carrier over NCCL: messages between processes go through a TCPStore, collectives and
// transfers of ranks through ProcessGroupNCCL.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/carrier.h"
#include "meshwright/store_link.h"

namespace nccl {

class NcclCarrier final : public mw::Carrier {
 public:
  NcclCarrier();

  int processes() const override { return link_.at().processes; }
  int process() const override { return link_.at().process; }
  // Throws Error (options) for ranks that are not on GPUs.
  std::unique_ptr<mw::CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                                  const mw::Platform& platform,
                                                  std::chrono::milliseconds timeout) override;
  void post(int to, std::string bytes) override { link_.post(to, std::move(bytes)); }
  std::optional<std::string> take(int from, std::chrono::milliseconds timeout) override {
    return link_.take(from, timeout);
  }
  void end(bool well) noexcept override { link_.end(well); }

 private:
  mw::StoreLink link_;
  int runs_ = 0;
};

}  // namespace nccl
