// A rank's file of a checkpoint: safetensors, with its checksum made while it is written.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/writer.h"

namespace mw {

// "F32".
std::string dtype_name(at::ScalarType type);

// Writes the pieces and brings them to the disk. Those that are boxes have their shape, all others
// are flat. Throws Error (run, checkpoint.write).
StoredFile write_rank_file(const std::filesystem::path& path,
                           const std::vector<StoredPiece>& pieces,
                           const std::map<std::string, std::string>& metadata);

}  // namespace mw
