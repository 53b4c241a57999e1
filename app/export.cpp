// Begins and completes a run's export of weights.
#include "app/verbs.h"

#include <fmt/format.h>

#include "checkpoint/hf_export.h"

namespace mw {

std::string begin_export(HfExport* exporter) {
  if (exporter == nullptr) return "";
  exporter->begin();
  const std::string lacks = exporter->lacks();
  if (lacks.empty()) return "";
  return fmt::format("export: {} will have no config.json: {}", exporter->folder().string(), lacks);
}

// HfExport::finish() moves what lies in the folder, even checkpoints and the run file. It is called
// when nobody writes there any more.
bool finish_export(HfExport* exporter, bool interrupted) {
  if (exporter == nullptr || (interrupted && exporter->replaces())) return false;
  exporter->finish();
  return true;
}

void add_export(const HfExport& exporter, Json& result) {
  const std::string folder = exporter.folder().string();
  result["export"] = folder;
  result["text"] = result["text"].get<std::string>() + fmt::format("\n  weights: {}\n", folder);
}

}  // namespace mw
