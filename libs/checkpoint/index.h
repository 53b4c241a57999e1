// The index of a checkpoint: which slice of which tensor lies in which file, and everything else
// that a run needs to resume.
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
  std::string dtype;  // the name of the dtype in safetensors: "F32"
  std::vector<std::int64_t> shape;
  std::vector<StoredSlice> slices;
};

struct StoredFile {
  std::int64_t bytes = 0;
  std::string checksum;
};

struct CheckpointIndex {
  std::int64_t step = 0;    // number of steps done, the index of the next step
  std::int64_t sample = 0;  // index of the first sample of the data that no step has used
  std::int64_t tokens = 0;  // number of tokens that the steps have used
  std::string created, version;
  std::string name, hash;  // name and hash of the experiment
  std::string
      started_by;   // the same for all starts by one `run --max-restarts`; empty: no such run
  std::string mix;  // describes the plan that wrote it; only that plan can use `own`
  int ranks = 1;
  // The planner's choices where the script left them open: the "layers" of stages, and the
  // "recompute" of each stage (Plan::description). A resumed run may choose otherwise.
  Json chosen = Json::object();
  Json settings = Json::object();  // settings that a resumed run must share (settings.h)
  LossScalerState loss_scaler;
  bool scaled = false;  // the run had a loss scale; else only loss_scaler.left_out is known
  std::map<int, StoredFile> files;  // by rank; ranks that write nothing have none
  std::map<std::string, StoredTensor> tensors;
  std::map<int, std::vector<std::string>>
      own;  // by rank: tensors in its file that are no slices (state of hooks, history)

  std::int64_t bytes() const;  // total size of all files

  // The index as JSON, with a checksum.
  std::string text() const;
  // Parses text(). Throws Error (options, checkpoint.broken) that says what is wrong: no JSON,
  // another format, a wrong checksum, slices that do not make up their tensor.
  static CheckpointIndex read(const std::string& text);
};

// "rank-00003.safetensors".
std::string file_of_rank(int rank);
inline constexpr const char* index_file = "index.json";

}  // namespace mw
