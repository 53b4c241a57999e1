// Reads what an experiment is trained on and what it is evaluated on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/inputs.h"
#include "script/experiment.h"

namespace mw {

class DataReader {
 public:
  // `table`: as the script has it; `values`: its checked keys. All must outlive this.
  DataReader(const Json& table, const Values& values,
             const std::vector<std::filesystem::path>& roots,
             const std::shared_ptr<const ScriptReach>& reach, Problems& problems);

  // Tokens of a sample, from the experiment or from its data; 0, and a problem, if neither says.
  std::int64_t sequence() const { return sequence_; }
  // Opens the data. `model`: null if the model was refused, which has its own problem.
  void open(const Model* model, RunRequest& asked, RunSetup& setup);
  // Opens the held-out data and returns the settings of `evaluate`; null if there is none.
  Json evaluation(RunSetup& setup, Evaluation& evaluation);
  // Notes on what a script may not mean: tokens that are read several times, held-out tokens that
  // are trained on, and files in a folder of data that are not read. Empty without a plan.
  std::vector<std::string> notes(const RunSetup& setup, const Evaluation& evaluation) const;

 private:
  void note_unread(const Chosen& chosen, const TokenSource& source, const char* key,
                   std::vector<std::string>& notes) const;
  bool has(const char* key) const { return values_.has(key) && !values_.at(key).is_null(); }
  std::int64_t read_sequence() const;
  std::shared_ptr<const TokenSource> open_source(const Chosen& chosen, const char* key,
                                                 std::int64_t seed);
  std::int64_t seed_like_training(const Chosen& chosen) const;

  const Json& table_;
  const Values& values_;
  const std::vector<std::filesystem::path>& roots_;
  const std::shared_ptr<const ScriptReach>& reach_;
  Problems& problems_;
  std::optional<Chosen> data_, held_out_;
  std::int64_t sequence_ = 0, vocab_ = 256;
  std::vector<DataInput> inputs_;  // of the model
};

}  // namespace mw
