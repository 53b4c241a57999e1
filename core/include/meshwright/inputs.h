// Inputs that a model declares beside tokens and labels: the patches of an image, the tokens of a
// source text, the type of each token. A run loads them by name from its data source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mw {

struct DataInput {
  std::string name;
  std::vector<std::int64_t> shape;  // of one sample, without batch
  // Indices from 0 to below - 1; 0: real numbers.
  std::int64_t below = 0;
};

// A model whose graphs have such inputs implements this too. Each is a data value of its graphs
// whose first dim is batch.
class ModelInputs {
 public:
  virtual ~ModelInputs() = default;
  virtual std::vector<DataInput> inputs(std::int64_t sequence) const = 0;
};

// A token source (data.h) that has values for such inputs implements this too. Thread-safe, and a
// function of (seed, sample number, name) alone, as TokenSource::sample is.
class InputSource {
 public:
  virtual ~InputSource() = default;
  // Why the source has no such input, as "its files hold tokens alone"; empty: it has.
  virtual std::string lacks(const DataInput& input) const = 0;
  // Write the input of sample `k`, in the order of its dims: `reals` if below is 0, else `indices`.
  virtual void reals(const DataInput& input, std::int64_t k, float* reals) const = 0;
  virtual void indices(const DataInput& input, std::int64_t k, std::int64_t* indices) const = 0;
};

}  // namespace mw
