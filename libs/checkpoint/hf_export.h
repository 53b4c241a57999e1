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
  std::int64_t most_bytes = 5'000'000'000;  // largest size of a file, unless one tensor has more
  bool overwrite = false;                   // replaces any other weights in the folder
  std::string hash;  // the experiment's; an export of the same experiment is replaced in any case
  // The weights that the training started from. The ids of special tokens in their config.json, and
  // their tokenizer's files, are taken over. Empty: none.
  std::filesystem::path started_from;
};

// Writes one export. Parameters come in any order, from several owners (the stages of a pipeline),
// each of which writes its own files. The folder gets its name once all files are complete.
class HfExport {
 public:
  // `owners[i]`: the owner that writes specs[i]. `config`: nothing if transformers has no such
  // model.
  HfExport(ExportSettings settings, std::vector<WeightSpec> specs, std::vector<int> owners,
           std::optional<HfConfig> config);
  ~HfExport();  // removes an export that is not finished
  HfExport(const HfExport&) = delete;
  HfExport& operator=(const HfExport&) = delete;

  const std::filesystem::path& folder() const { return settings_.folder; }
  // Why the export writes no config.json; empty: it writes one.
  std::string lacks() const;
  // Call it in one process, before any Part writes. Throws Error (options) with the key `export`:
  // the folder holds other weights (export.taken), another run writes it (export.in-use), or it
  // cannot be written (export.folder).
  void begin();
  bool replaces() const;  // the folder has weights, or other files that an export has
  // Call it in the process of begin(), when all parts are finished. Removes earlier weights from
  // the folder, and keeps its other files. Throws Error (run).
  void finish();

  // Writes the files of one owner. One thread uses it.
  class Part {
   public:
    Part(const HfExport& all, int owner) : all_(all), owner_(owner) {}
    bool wants(const std::string& parameter) const;
    // Writes a whole parameter, of the spec's shape. Throws Error (run).
    void write(const std::string& parameter, const at::Tensor& whole);
    // Throws std::logic_error if a parameter is missing.
    void finish() const;

   private:
    void put(const std::string& tensor, const at::Tensor& stored);
    const HfExport& all_;
    const int owner_;
    std::map<int, std::unique_ptr<SafetensorsWriter>> open_;  // by index of the file
    std::map<std::string, std::vector<at::Tensor>>
        parts_;  // parts of fused tensors not yet written
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
  std::map<std::string, std::pair<const WeightSpec*, int>> by_name_;  // spec and owner
  std::map<int, std::size_t> wanted_;  // by owner: its number of parameters
  const std::optional<HfConfig> config_;
  std::vector<File> files_;
  std::map<std::string, int> file_of_;
  std::filesystem::path staging_,
      before_;     // hidden folders beside the folder: the new export, and the earlier one
  FileLock lock_;  // held from begin() to finish()
  bool begun_ = false;
};

// The model's configuration in transformers' terms; nothing if the model's class declares none
// (HfModel).
std::optional<HfConfig> hf_config_of(const Model& model, std::int64_t sequence);

// The path of the config.json that belongs to weights (a file, or a folder), whether it can be read
// or not; empty if there is none.
std::filesystem::path config_beside(const std::filesystem::path& weights);

Rotary rotary_of(const HfConfig& config);

// Compares a config.json with the model. Each key or model_type that differs is a Problem (options,
// weights.config) with both values. A file that cannot be read or is no JSON table is a Problem
// (weights.config-file). `file` may be empty: nothing is compared.
void check_hf_config(const std::filesystem::path& file, const std::string& model,
                     const HfConfig& config, Problems& problems);

// The text of a config.json for weights of that dtype. `earlier`: the config.json of the weights
// that the training started from, whose ids of special tokens are kept; empty: none.
std::string hf_config_text(const HfConfig& config, at::ScalarType dtype,
                           const std::filesystem::path& earlier);

// At the end of a run gathers each parameter, and writes those of a stage on its first rank. Takes
// the numbers that the optimizer updates: the masters, where there are any. Throws Error (run) if a
// file cannot be written.
class ExportParameters : public RunObserver {
 public:
  explicit ExportParameters(const HfExport& all) : all_(all) {}
  void finish(RankRun& executor) override;

 private:
  const HfExport& all_;
};

}  // namespace mw
