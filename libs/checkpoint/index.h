// The index of a checkpoint: which slice of which tensor lies in which file, and all that a run
// goes on from beside its tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/slices.h"
#include "meshwright/engine/loss_scale.h"
#include "meshwright/json.h"

namespace mw {

inline constexpr const char* checkpoint_format = "meshwright.checkpoint/1";

// A slice of a tensor that lies in the file of a rank, under the tensor's own name.
struct StoredSlice {
  int rank = 0;
  Slice slice;
};

// A tensor of the whole run: "parameters/NAME", "optimizer/STATE/NAME".
struct StoredTensor {
  std::string dtype;  // as safetensors writes it
  std::vector<std::int64_t> shape;
  std::vector<StoredSlice> slices;
};

struct StoredFile {
  std::int64_t bytes = 0;
  std::string checksum;
};

struct CheckpointIndex {
  std::int64_t step = 0;    // steps that are done: the next one's number
  std::int64_t sample = 0;  // the first of the data that no step has had
  std::int64_t tokens = 0;  // that the steps have had
  std::string created, version;
  std::string name, hash;  // the experiment's
  std::string started_by;  // the same in all starts by one `run --max-restarts`; empty: by none
  std::string mix;         // that wrote it: what lies by ranks is of use to that alone
  int ranks = 1;
  // What its planner chose where the script left it open: "layers" of stages, and what "recompute"
  // each of them has (Plan::description). A resumed run chooses anew: any reads the tensors.
  Json chosen = Json::object();
  Json settings = Json::object();  // what another run must have alike (settings.h)
  LossScalerState loss_scaler;
  bool scaled = false;              // whether there was a loss scale
  std::map<int, StoredFile> files;  // by rank; those that write nothing have none
  std::map<std::string, StoredTensor> tensors;
  std::map<int, std::vector<std::string>>
      own;  // of each rank's file: what is the rank's own (hooks)

  std::int64_t bytes() const;  // of all files

  // With a checksum over all of it.
  std::string text() const;
  // Throws Error (options, checkpoint.broken) that says what is wrong with the text: no JSON,
  // another format, a wrong checksum, slices that do not make up their tensor.
  static CheckpointIndex read(const std::string& text);
};

// "rank-00003.safetensors".
std::string file_of_rank(int rank);
inline constexpr const char* index_file = "index.json";

}  // namespace mw
