// Where tokens come from: a source with its options, opened once per run, that all ranks share.
// What a source yields is a function of (seed, step) alone, never of the mix, so that a run resumes
// by its step number and every mix sees the same tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/registration.h"

namespace mw {

// A file that a source reads.
struct SourceFile {
  std::filesystem::path path;
  // The source finds it by the name of the file before it in the list, as an index beside its
  // tokens: it needs a copy in the same folder, and no mention among the source's options.
  bool implied = false;
};

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
  void sample_rows(std::int64_t first, const at::Tensor& inputs, const at::Tensor& labels) const {
    TORCH_INTERNAL_ASSERT(inputs.dim() == 2 && inputs.sizes() == labels.sizes() &&
                          inputs.is_contiguous() && labels.is_contiguous());
    const std::int64_t rows = inputs.size(0), sequence = inputs.size(1);
    auto* input = inputs.data_ptr<std::int64_t>();
    auto* label = labels.data_ptr<std::int64_t>();
    for (std::int64_t row = 0; row < rows; ++row)
      sample(first + row, sequence, input + row * sequence, label + row * sequence);
  }

  // Tells contents of one size apart: a digest of what it reads, for the experiment's hash. Empty
  // where its options say all.
  virtual std::string content() const { return {}; }

  // The files that it reads, in their order. A source of the same options, but with the paths of
  // those that are not implied as its `path` (a list), yields the same tokens. Empty: it reads no
  // files, or has no such option.
  virtual std::vector<SourceFile> files() const { return {}; }
};

// What a source may depend on beside its own options.
struct DataContext {
  std::int64_t seed = 0;
  std::int64_t sequence = 0;  // tokens of one sample
  std::int64_t vocab = 0;     // ids the model knows
  // Folders in which a relative path is looked for, in this order. Empty: the working directory.
  std::vector<std::filesystem::path> roots;
};

// A source is made by a constructor (const Values&, const DataContext&). It throws Error (options)
// for a missing file or too few tokens; that its ids are the model's is checked by who calls it. An
// option `sequence`, if it has one, stands in for the experiment's key of that name.
template <>
struct KindOf<TokenSource> {
  static constexpr Kind kind = Kind::data;
  using Make = std::unique_ptr<TokenSource>(const Values& values, const DataContext& context);
};
template <class Class>
constexpr Registration data(const char* name = nullptr, const char* doc = nullptr) {
  return registration<TokenSource, Class>(name, doc);
}

}  // namespace mw
