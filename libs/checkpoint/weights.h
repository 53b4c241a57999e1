// Reads parameters from Hugging Face checkpoints: names, fused and transposed tensors, slices.
// hf_export.h writes such checkpoints.
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

// A parameter, and how a checkpoint stores it. The stored tensor may have fewer dims than the
// parameter (heads and head_dim as one): after transposing it and taking the part, its shape must
// follow from `shape` by joining adjacent dims.
struct WeightSpec {
  std::string name;  // the parameter's name in the model
  HfName hf;
  std::vector<std::int64_t> shape;  // global shape of the parameter
  // The shape that an export stores, with heads and head_dim joined; of one part where several are
  // fused, and before transposing.
  std::vector<std::int64_t> stored_shape = {};
};
std::vector<WeightSpec> weight_specs(const Graph& graph);
// Refuses parameters that a checkpoint cannot hold under the names that they have there: two under
// one name, and parts of a fused tensor that are missing, given twice, or unlike.
void check_names(const std::vector<WeightSpec>& specs, Problems& problems);

// The rotary angles of a model, with which tables of angles in a checkpoint are compared.
struct Rotary {
  double theta = 0;        // 0: the model does not say
  std::int64_t width = 0;  // number of dims of a head that are rotated
};

// The weights of a safetensors file, or of a folder as transformers has it: with model.safetensors,
// else with model.safetensors.index.json, else with one *.safetensors file. Thread-safe once
// opened: ranks load their slices at the same time.
class Weights {
 public:
  // Throws Error (options) naming `path`: missing, not valid, an index whose files are not there or
  // have other tensors than it says, or a folder that leaves open which files are the weights.
  explicit Weights(const std::filesystem::path& path);

  // Compares the files with the parameters: tensors that are missing, that have another shape, and
  // that no parameter takes each become a Problem (options) with their names. A buffer that no
  // model learns (rotary inv_freq, GPT-2's masks) may be there if it holds what the model computes,
  // and a copy of the embedding or of the head: the head of a model whose head is tied, and what
  // DeepSeek's modules of multi-token prediction share with the model. A tensor that no parameter
  // takes is no problem either if its name begins with one of the prefixes `without`.
  void check(const std::vector<WeightSpec>& specs, Problems& problems, const Rotary& rotary = {},
             const std::vector<std::string>& without = {}) const;

  // Copies the slice `ranges` (one for each dim of spec.shape) into `out`, of that slice's shape,
  // converting to its dtype. `check` must have passed. Throws Error (options) for numbers that are
  // NaN or infinite (weights.not-finite), and for numbers that become infinite in the dtype of
  // `out` or in `computed`, the dtype of the model's computation (weights.range).
  void load(const WeightSpec& spec, const std::vector<Range>& ranges, const at::Tensor& out,
            at::ScalarType computed = at::kDouble) const;

 private:
  // Adds a problem for tensors that no parameter takes.
  void check_others(const std::set<std::string>& used, const Rotary& rotary,
                    const std::vector<std::string>& without, Problems& problems) const;
  // Throws Error (options) if the index and the tensors of its files differ.
  void check_index(const std::filesystem::path& index,
                   const std::map<std::string, std::filesystem::path>& file_of) const;
  // Whether the tensor of this name is an embedding or a head that has the same bits as one that a
  // parameter takes.
  bool is_copy(const std::string& name, const std::set<std::string>& used) const;
  // The name that a tensor has in the files, where it may have, or lack, a leading "model." or
  // "transformer."; null: there is no such tensor.
  const std::string* resolve(const std::string& name) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> where_;
};

// The largest absolute value of a tensor; NaN if any element is. Takes one pass, and makes no
// tensor of that size.
double largest_of(const at::Tensor& numbers);

// The spec of one entry of a parameter that a checkpoint stores as a tensor per entry
// (HfName::apart).
WeightSpec entry_of(const WeightSpec& spec, std::int64_t entry);

}  // namespace mw
