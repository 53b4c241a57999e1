// Hands the parameters of a run to an export, whatever the mix.
#pragma once

#include "checkpoint/hf_export.h"
#include "meshwright/engine/run.h"

namespace mw {

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
