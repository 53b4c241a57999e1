// Packs tensors as bytes (engine/pack.h): their elements unchanged. Unpacked ones are on the CPU.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "meshwright/engine/pack.h"

namespace mw {

template <class Pack>
void members(Pack& pack, at::Tensor& tensor) {
  bool defined = tensor.defined();
  pack(defined);
  if (!defined) {
    tensor = at::Tensor();
    return;
  }
  at::ScalarType type{};
  std::vector<std::int64_t> sizes;
  std::string bytes;
  if constexpr (std::is_same_v<Pack, Packer>) {
    const at::Tensor there = tensor.detach().to(at::kCPU).contiguous();
    type = there.scalar_type();
    sizes = there.sizes().vec();
    bytes.assign(static_cast<const char*>(there.const_data_ptr()), there.nbytes());
    pack(type, sizes, bytes);
  } else {
    pack(type, sizes, bytes);
    tensor = at::empty(sizes, type);
    if (bytes.size() != tensor.nbytes()) {
      throw Error(Stage::run, "process.message", "",
                  "a tensor of another process has not the bytes that its sizes say",
                  "all processes must be of one build");
    }
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  }
}

}  // namespace mw
