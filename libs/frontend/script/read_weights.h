// Where an experiment's weights come from, and where they go: its keys `weights` and `export`.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"
#include "script/experiment.h"

namespace mw {

// Opens the weights, sets RunSetup::fill to load them, and checks their names, shapes and
// config.json against the model. `notes` gets remarks for the user. Does nothing without a plan or
// the key.
void read_weights(const Values& values, RunSetup& setup, std::vector<std::string>& notes,
                  Problems& problems);

// The export of an experiment that was found right, with its hash; null without the key. Throws
// Error (options) for what the key's table does not take.
std::shared_ptr<HfExport> read_export(const Values& values, const Plan& plan,
                                      const std::string& hash);

// The folder that a path names, whether it ends with "/" or not. Throws Error (options,
// export.folder) for "", and for a folder around the working directory.
std::filesystem::path export_folder(const std::string& path);
at::ScalarType export_dtype(const std::string& name);  // "fp32", …: of a key's choices

}  // namespace mw
