// A checkpoint that is there: its index, and its tensors, of which any slice can be read, whatever
// the mix that wrote them.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"

namespace mw {

// Names of tensors in a checkpoint. Parameters are there in the optimizer's dtype: where it keeps
// masters, these.
std::string parameter_tensor(const std::string& parameter);
std::string state_tensor(const std::string& state, const std::string& parameter);

class Checkpoint {
 public:
  // Reads the index alone. Throws Error (options, checkpoint.broken) if that cannot be read, or a
  // file is missing or has another size than it says.
  explicit Checkpoint(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointIndex& index() const { return index_; }

  // Reads every file and compares checksums; throws Error (options, checkpoint.broken) naming the
  // first that is wrong.
  void verify() const;

  bool has(const std::string& tensor) const { return index_.tensors.count(tensor) > 0; }
  // Copies a slice of a tensor into `flat`, of slice.count elements, converting to its dtype. Maps
  // the files that hold a part of it. From any thread. Throws Error (run) if the checkpoint has no
  // such tensor, one of another shape, or was changed while it was read.
  void read(const std::string& tensor, const std::vector<std::int64_t>& shape, const Slice& slice,
            const at::Tensor& flat) const;
  // The whole of a tensor, in the dtype in which it is there. A model's parameter by its name:
  // read_whole(parameter_tensor("layers.0.attention.q")).
  at::Tensor read_whole(const std::string& tensor) const;
  // What a rank keeps for itself, as its file has it; undefined if there is no such thing.
  at::Tensor read_own(int rank, const std::string& name) const;

 private:
  // A tensor's slices, and where they lie.
  struct Source {
    int rank = 0;
    std::int64_t count = 0;
    std::vector<BoxAt> boxes;
  };
  // What a file has of a tensor, flat: as many elements as the index says.
  at::Tensor slice_in(const Source& source, const std::string& tensor) const;
  const SafetensorsFile& file(int rank) const;
  const std::vector<Source>& sources(const std::string& tensor) const;

  std::filesystem::path folder_;
  CheckpointIndex index_;
  mutable std::mutex mutex_;  // of what is opened
  mutable std::map<int, std::unique_ptr<SafetensorsFile>> files_;
  mutable std::map<std::string, std::vector<Source>> sources_;
};

}  // namespace mw
