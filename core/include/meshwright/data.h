// The interface of token sources. A source is opened once per run, and all ranks share it. Its
// samples depend on (seed, sample number) alone, never on the mix, so that a run resumes by its
// step number and every mix sees the same tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/inputs.h"
#include "meshwright/registration.h"

namespace mw {

// A file that a source reads.
struct SourceFile {
  std::filesystem::path path;
  // Whether the source finds this file by the name of the file before it in the list, as an index
  // beside its tokens. A copy of the data then needs this file in the same folder, but the source's
  // options do not name it.
  bool implied = false;
};

// All methods must be thread-safe: every rank's thread samples from the same object.
class TokenSource {
 public:
  TokenSource();
  virtual ~TokenSource();
  virtual std::int64_t vocab() const = 0;   // ids are in [0, vocab)
  virtual std::int64_t tokens() const = 0;  // number of tokens in the source; 0: endless

  // Whether samples may have labels that count nothing in a loss.
  virtual bool masks_labels() const { return false; }

  // Whether samples may hold several documents, which do not see each other. Such a source masks
  // labels: a label counts nothing if it is a token of another document. Its id is then that of the
  // document's last token, so that no model sees the other document by it.
  virtual bool has_documents() const { return false; }
  // The places in sample `k` at which documents begin, ascending, the first one 0. By default a
  // sample is one document.
  virtual std::vector<std::int64_t> documents(std::int64_t /*k*/, std::int64_t /*sequence*/) const {
    return {0};
  }

  // Names of sets of samples that take turns batch by batch (DataContext::batch): batch b is of set
  // b mod their number. Empty: the source is one set. An evaluation has a loss of each.
  virtual std::vector<std::string> sets() const { return {}; }

  // Reads sample `k`, numbered from 0 over all steps, in one order for every mix. Writes its
  // `sequence` tokens to `inputs`, and the tokens one position later to `labels`. A source that
  // masks labels writes -1 - id for a label that counts nothing in a loss. A model that reads
  // labels as tokens still reads the id.
  virtual void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                      std::int64_t* labels) const = 0;

  // Reads the samples of these numbers, one per row. `inputs` and `labels`: int64, contiguous, on
  // the CPU, (rows, sequence).
  void sample_rows(const std::vector<std::int64_t>& numbers, const at::Tensor& inputs,
                   const at::Tensor& labels) const;
  // Reads samples [first, first + inputs.size(0)).
  void sample_rows(std::int64_t first, const at::Tensor& inputs, const at::Tensor& labels) const;

  // In which order the samples of a step, from `first` on, are its rows. `groups`: how many
  // adjacent rows each microbatch has on each rank over which the batch is split. The result has
  // the number of each sample of the step once, counted from `first`; empty: they keep their order.
  virtual std::vector<std::int64_t> order_of_rows(std::int64_t /*first*/,
                                                  const std::vector<std::int64_t>& /*groups*/,
                                                  std::int64_t /*sequence*/) const {
    return {};
  }

  // The numbers of the samples that are the rows of a step, in the order of order_of_rows().
  std::vector<std::int64_t> samples_of_step(std::int64_t first,
                                            const std::vector<std::int64_t>& groups,
                                            std::int64_t sequence) const;

  // How many labels count of each of the samples [first, first + samples). Reads these samples, and
  // remembers the answers of the last few calls.
  std::shared_ptr<const std::vector<std::int64_t>> counted_labels(std::int64_t first,
                                                                  std::int64_t samples,
                                                                  std::int64_t sequence) const;

  // A digest of the data, for the experiment's hash. Empty if the options determine the data.
  virtual std::string content() const { return {}; }

  // The files of tokens that the source reads, in order. A source with the same options, but with
  // the files that are not `implied` as the list of its option `path`, must yield the same tokens.
  // Empty: the source reads no files, or has no option `path`. A source that takes its
  // samples from another source, its option `data`, names the other source's files.
  virtual std::vector<SourceFile> files() const { return {}; }

 private:
  struct Counted;
  const std::unique_ptr<Counted> counted_;
};

// The values of an input for these samples, one per row: int64 if they are indices, else fp32.
at::Tensor input_rows(const InputSource& source, const DataInput& input,
                      const std::vector<std::int64_t>& numbers);

// Removes the options that name a source's files, where their content stands for them.
inline void erase_paths(Json& options) {
  for (const char* key : {"path", "mask"}) options.erase(key);
  for (const char* key : {"documents", "lengths"})  // names of tables, or what they say themselves
    if (options.contains(key) && options[key].is_string()) options.erase(key);
  if (options.contains("data") && options["data"].is_object()) erase_paths(options["data"]);
  for (const char* key : {"sources", "sets"}) {
    if (!options.contains(key) || !options[key].is_structured()) continue;
    for (Json& entry : options[key])
      if (entry.is_object()) erase_paths(entry);
  }
}

// What a token source may depend on beside its own options.
struct DataContext {
  std::int64_t seed = 0;
  std::int64_t sequence = 0;  // tokens of one sample
  std::int64_t vocab = 0;     // number of token ids that the model knows
  std::int64_t batch = 1;     // sequences of a step, as the experiment has them
  // Folders in which relative paths are looked up, in this order. Empty: the working directory.
  std::vector<std::filesystem::path> roots;
};

// A token source's constructor takes (const Values&, const DataContext&). It throws Error (options)
// for a missing file or too few tokens. Its caller checks that the ids fit the model. If a source
// has an option `sequence`, this option replaces the experiment's key `sequence`.
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
