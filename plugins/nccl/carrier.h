// The carrier over NCCL: messages between processes go through a TCPStore, collectives and
// transfers of ranks through a library's communicators.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/carrier.h"
#include "meshwright/store_link.h"
#include "source.h"

namespace nccl {

class NcclCarrier : public mw::Carrier {
 public:
  // Joins the processes that the launcher has started. `library` lives as long as the carrier.
  NcclCarrier(const Library& library, mw::Rendezvous at)
      : library_(library), link_(std::move(at)) {}

  int processes() const override { return link_.at().processes; }
  int process() const override { return link_.at().process; }
  std::string library_version() const override { return library_.version(); }
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
  const Library& library_;
  mw::StoreLink link_;
  int runs_ = 0;
};

}  // namespace nccl
