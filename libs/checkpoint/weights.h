// Parameters to and from Hugging Face checkpoints: names, fused and transposed tensors, slices
// (hf_export.h writes them).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "meshwright/graph.h"

namespace mw {

// A parameter and where it lies in a checkpoint. A tensor of the file may be flatter than the
// parameter (heads and head_dim are one dim there): its shape, after transposing and taking the
// part, must come from `shape` by joining adjacent dims.
struct WeightSpec {
  std::string name;  // of the parameter
  HfName hf;
  std::vector<std::int64_t> shape;  // global
  // In a checkpoint: the width of a head joined to the heads before it. Of the part, before it is
  // transposed.
  std::vector<std::int64_t> stored_shape = {};
};
std::vector<WeightSpec> weight_specs(const Graph& graph);

// The rotary angles of a model, to which tables of them in a checkpoint are held.
struct Rotary {
  double theta = 0;        // 0: the model does not say
  std::int64_t width = 0;  // dims that are turned
};

// A safetensors file, or a folder with model.safetensors, else with model.safetensors.index.json,
// as transformers has it (or one *.safetensors file). Thread-safe once opened: ranks load their
// slices at the same time.
class Weights {
 public:
  // Throws Error (options) naming `path`: missing, not valid, an index whose files are not there or
  // have other tensors than it says, or a folder that leaves open which files are the weights.
  explicit Weights(const std::filesystem::path& path);

  // Compares the files with the parameters: tensors that are missing, that have another shape, and
  // that no parameter takes each become a Problem (options) with their names. A buffer that no
  // model learns (rotary inv_freq, GPT-2's masks) may be there if it holds what the model computes,
  // and the head of a model whose head is tied if it has the embedding's bits.
  void check(const std::vector<WeightSpec>& specs, Problems& problems,
             const Rotary& rotary = {}) const;

  // Copies the slice `ranges` (one for each dim of spec.shape) into `out`, of that slice's shape,
  // converting to its dtype. `check` must have passed. Throws Error (options) for numbers that are
  // NaN or infinite (weights.not-finite), and for numbers that become infinite in the dtype of
  // `out` or in `computed`, the dtype of the model's computation (weights.range).
  void load(const WeightSpec& spec, const std::vector<Range>& ranges, const at::Tensor& out,
            at::ScalarType computed = at::kDouble) const;

 private:
  // Tensors that no parameter takes.
  void check_others(const std::set<std::string>& used, const Rotary& rotary,
                    Problems& problems) const;
  // Holds what an index says to the tensors that its files have.
  void check_index(const std::filesystem::path& index,
                   const std::map<std::string, std::filesystem::path>& file_of) const;
  // Whether a tensor of this name is the embedding once more.
  bool is_embedding(const std::string& name, const std::set<std::string>& used) const;
  // The file's name for it, which may have, or lack, a leading "model." or "transformer.".
  const std::string* resolve(const std::string& name) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> where_;
};

// The largest number without its sign; NaN where any number is. One pass over the numbers, which
// makes no tensor of their size.
double largest_of(const at::Tensor& numbers);

// One entry of a parameter whose entries are tensors of their own (HfName::apart).
WeightSpec entry_of(const WeightSpec& spec, std::int64_t entry);

}  // namespace mw
