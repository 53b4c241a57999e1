// The data that a run gives to a model, by name: tokens, labels and positions, and the inputs that
// a model declares beside them, such as the patches of an image or the tokens of a source text. A
// run loads inputs from its data source.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mw {

// What a run brings for a data value, by the value's name. Every run has "tokens" and "labels",
// indices of (batch, seq), and "positions", indices of (seq); "positions of DIM" are indices of
// another dim. "starts" (batch, seq) is, for each token, the place in its row at which its document
// begins, and "places of tokens" (batch, seq) are their own, where tokens lie in another order
// (Draft::part_documents). "numbers of tokens" (batch, seq) are those by which ops draw at random
// (draw_number). Names of a LossDivisor are data values of every run too. All other names are
// inputs (DataInput), of any dims that begin with batch.
enum class DataValue : std::uint8_t {
  tokens,
  labels,
  positions,
  starts,
  places,
  draws,
  loss_divisors,
  input
};
inline constexpr const char* places_of_tokens = "places of tokens";
inline constexpr const char* numbers_of_tokens = "numbers of tokens";
// A token's number in the run: seed_bits bits of the seed, then sample * sequence + place.
inline constexpr int seed_bits = 15;
inline std::int64_t draw_number(std::int64_t seed, std::int64_t sample, std::int64_t sequence,
                                std::int64_t place) {
  return ((seed & ((1 << seed_bits) - 1)) << (63 - seed_bits)) + sample * sequence + place;
}
DataValue data_value_of(std::string_view name);
// Whether a rank loads a value of this kind by reading whole rows of it, of its samples.
bool is_read_in_rows(DataValue kind);

// By how many the loss of each label is divided where not all labels count: indices of (batch,
// seq), 0 for a label that counts nothing.
struct LossDivisor {
  // 0: the loss is the mean over all labels of a step that count. n: each n sequences of the step,
  // one after the other, have a mean of their own, and the loss is the mean over these means.
  // Sequences without a label that counts have none.
  std::int64_t sequences = 0;
  std::int64_t shift = 0;  // the label is that of the token so many places further on

  std::string name() const;  // the data value's
  static std::optional<LossDivisor> of(std::string_view name);
};

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
