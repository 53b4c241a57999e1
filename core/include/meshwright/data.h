// Where tokens come from: a kind with its options, opened once per run into a source that all ranks
// share. What a source yields is a function of (seed, step) alone, never of the mix, so that a run
// resumes by its step number and every mix sees the same tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"

namespace mw {

// Thread-safe after it has been made: every rank's thread samples from the same object.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t vocab() const = 0;   // ids are in [0, vocab)
  virtual std::int64_t tokens() const = 0;  // how many there are; 0: no end

  // Sample `k`, counted over all steps, which is the numbering that every mix shares. Writes its
  // sequence tokens to `inputs` and the tokens one further on to `labels`;
  // both hold `sequence` elements.
  virtual void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                      std::int64_t* labels) const = 0;

  // Samples [first, first + inputs.size(0)). `inputs` and `labels`: int64, contiguous, on the CPU,
  // (rows, sequence).
  void sample_rows(std::int64_t first, const at::Tensor& inputs, const at::Tensor& labels) const;
};

// What a source may depend on beside its own options.
struct DataContext {
  std::int64_t seed = 0;
  std::int64_t sequence = 0;  // tokens of one sample
  std::int64_t vocab = 0;     // ids the model knows
  // Folders in which a relative path is looked for, in this order. Empty: the working directory.
  std::vector<std::filesystem::path> roots;
};

class DataKind {
 public:
  virtual ~DataKind() = default;
  virtual std::string name() const = 0;  // "text": the function in Lua
  virtual std::string doc() const = 0;
  // Every kind has an optional `sequence`, which stands in for the experiment's key of that name.
  virtual const Options& options() const = 0;
  // Opens the source. What is wrong (a missing file, too few tokens, ids beyond the model's vocab)
  // becomes Problems (options) that start with `path`, the key path; the result is null then.
  virtual std::shared_ptr<const TokenSource> open(const Values& values, const std::string& path,
                                                  const DataContext& context,
                                                  Problems& problems) const = 0;
};

// The built-in kinds: text, synthetic.
const std::vector<const DataKind*>& data_kinds();
const DataKind* find_data_kind(const std::string& name);  // nullptr if there is none

}  // namespace mw
