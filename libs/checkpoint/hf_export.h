// Writes a model as a folder that transformers loads: safetensors files of a bounded size with an
// index, and config.json.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/weights.h"
#include "common/file_lock.h"
#include "meshwright/engine/run.h"
#include "meshwright/error.h"
#include "meshwright/hf_config.h"
#include "meshwright/model.h"

namespace mw {

struct ExportSettings {
  std::filesystem::path folder;
  at::ScalarType dtype = at::kFloat;
  std::int64_t most_bytes = 5'000'000'000;  // of a file, unless one tensor has more
  bool overwrite = false;                   // another's weights in the folder may go
  std::string hash;                         // of the experiment: its own export may go too
  // The weights that the training started from: its config.json's ids of special tokens and its
  // tokenizer's files are taken along. Empty: none.
  std::filesystem::path started_from;
};

// Parameters come in any order, from several owners (the stages of a pipeline), each with files of
// its own; the folder gets its name once all are there.
class HfExport {
 public:
  // `owners[i]`: who brings specs[i]. `config`: nothing if transformers has no such model.
  HfExport(ExportSettings settings, std::vector<WeightSpec> specs, std::vector<int> owners,
           std::optional<HfConfig> config);
  ~HfExport();  // takes away what is not finished
  HfExport(const HfExport&) = delete;
  HfExport& operator=(const HfExport&) = delete;

  const std::filesystem::path& folder() const { return settings_.folder; }
  // Why there will be no config.json; empty: there will be.
  std::string lacks() const;
  // In one process, before any part is written. Throws Error (options) with the key `export`: the
  // folder holds other weights (export.taken), another run writes it (export.in-use), or it cannot
  // be written (export.folder).
  void begin();
  bool replaces() const;  // the folder has weights, or other files that an export has
  // In the process of begin(), when all parts are finished. Of what the folder holds, earlier
  // weights go, and other files stay. Throws Error (run).
  void finish();

  // The files of one owner; for one thread.
  class Part {
   public:
    Part(const HfExport& all, int owner) : all_(all), owner_(owner) {}
    bool wants(const std::string& parameter) const;
    // A whole parameter, of the spec's shape. Throws Error (run).
    void write(const std::string& parameter, const at::Tensor& whole);
    // Throws std::logic_error if a parameter is missing.
    void finish() const;

   private:
    void put(const std::string& tensor, const at::Tensor& stored);
    const HfExport& all_;
    const int owner_;
    std::map<int, std::unique_ptr<SafetensorsWriter>> open_;  // by file
    std::map<std::string, std::vector<at::Tensor>> parts_;  // of fused tensors, until all are there
    std::size_t done_ = 0;
  };

 private:
  struct File {
    std::string name;
    int owner = 0;
    std::vector<SafetensorsWriter::Entry> tensors;
    std::int64_t bytes = 0;
  };
  void add(int owner, SafetensorsWriter::Entry entry);
  std::string stored_name(const std::string& name) const;
  void name_files();
  void lock();
  void remove_earlier() const;
  void take_tokenizer() const;

  const ExportSettings settings_;
  const std::vector<WeightSpec> specs_;
  std::map<std::string, std::pair<const WeightSpec*, int>> by_name_;  // with the owner
  std::map<int, std::size_t> wanted_;                                 // parameters of each owner
  const std::optional<HfConfig> config_;
  std::vector<File> files_;
  std::map<std::string, int> file_of_;
  std::filesystem::path staging_,
      before_;     // hidden beside the folder: the new, and the earlier one
  FileLock lock_;  // from begin() to finish()
  bool begun_ = false;
};

// What transformers calls the model; nothing where its kind says nothing of it.
std::optional<HfConfig> hf_config_of(const Model& model, std::int64_t sequence);

// The config.json that belongs to weights (a file, or a folder), if there is one, whether it can be
// read or not; else empty.
std::filesystem::path config_beside(const std::filesystem::path& weights);

// The rotary angles that the keys say.
Rotary rotary_of(const HfConfig& config);

// Compares config.json with the model: each key that differs, or a model_type that is another, is a
// Problem (options, weights.config) with both values. `file` may be empty: nothing is compared.
// What cannot be read, or is no JSON table, is one (weights.config-file).
void check_hf_config(const std::filesystem::path& file, const std::string& model,
                     const HfConfig& config, Problems& problems);

// The text of a config.json for weights of that dtype. `earlier`: of the config.json that the
// training started from, where there was one; its ids of special tokens are kept.
std::string hf_config_text(const HfConfig& config, at::ScalarType dtype,
                           const std::filesystem::path& earlier);

// At the end of a run brings each parameter together, and writes those of a stage on its first
// rank. The numbers are those that the optimizer updates, masters where there are such. Throws
// Error (run) if a file cannot be written.
class ExportParameters : public RunObserver {
 public:
  explicit ExportParameters(const HfExport& all) : all_(all) {}
  void finish(RankRun& executor) override;

 private:
  const HfExport& all_;
};

}  // namespace mw
