// Reads a checkpoint: its index, and any slice of its tensors, whatever plan wrote them.
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

// Names of tensors in a checkpoint. Parameters are stored in the optimizer's dtype: the masters,
// where there are any.
std::string parameter_tensor(const std::string& parameter);
std::string state_tensor(const std::string& state, const std::string& parameter);
// The tensor of a replica, where replicas differ: the first one's has the plain name.
std::string of_replica(int replica, const std::string& tensor);

class Checkpoint {
 public:
  // Reads the index alone. Throws Error (options, checkpoint.broken) if it cannot be read, or if a
  // file is missing or has another size than the index says.
  explicit Checkpoint(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointIndex& index() const { return index_; }

  // Reads every file and compares checksums; throws Error (options, checkpoint.broken) naming the
  // first that is wrong.
  void verify() const;

  bool has(const std::string& tensor) const { return index_.tensors.count(tensor) > 0; }
  // Copies a slice of a tensor into `flat`, of slice.count elements, converting to the dtype of
  // `flat`. Maps the files that hold parts of the slice. Any thread may call it. Throws Error (run)
  // if the checkpoint has no such tensor, or one of another shape, or was changed during the call.
  void read(const std::string& tensor, const std::vector<std::int64_t>& shape, const Slice& slice,
            const at::Tensor& flat) const;
  // A whole tensor, in the dtype in which it is stored. For a model's parameter:
  // read_whole(parameter_tensor("layers.0.attention.q")).
  at::Tensor read_whole(const std::string& tensor) const;
  // A tensor that is a rank's own (CheckpointIndex::own), as its file has it; undefined: the file
  // has none of that name.
  at::Tensor read_own(int rank, const std::string& name) const;

 private:
  // A slice of a tensor that lies in one rank's file.
  struct Source {
    int rank = 0;
    std::int64_t count = 0;
    std::vector<BoxAt> boxes;
  };
  // The slice of a tensor in a rank's file, flat. It has as many elements as the index says.
  at::Tensor slice_in(const Source& source, const std::string& tensor) const;
  const SafetensorsFile& file(int rank) const;
  const std::vector<Source>& sources(const std::string& tensor) const;

  std::filesystem::path folder_;
  CheckpointIndex index_;
  mutable std::mutex mutex_;  // guards files_ and sources_
  mutable std::map<int, std::unique_ptr<SafetensorsFile>> files_;
  mutable std::map<std::string, std::vector<Source>> sources_;
};

}  // namespace mw
