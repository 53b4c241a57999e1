// Checkpoints: the index, and the files that it names.
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checksum.h"
#include "checkpoint/folder.h"
#include "checkpoint/settings.h"
#include "fuzz/readers.h"
#include "meshwright/error.h"

namespace mw::fuzz {
namespace {

constexpr std::string_view between_files = "\n====\n";

std::string checksum_text(const std::string& bytes) {
  return checksum_of(bytes.data(), bytes.size());
}

// The index with the checksums that it should have, so that what is behind them is looked at. It
// must have been read once as it is, and not be too deep for this.
std::string mended(const std::string& text, const std::string& file) {
  nlohmann::json all = nlohmann::json::parse(text, nullptr, false);
  if (!all.is_object() || !all.contains("index") || !all["index"].is_object()) return text;
  nlohmann::json& index = all["index"];
  if (index.contains("files") && index["files"].is_array()) {
    for (nlohmann::json& one : index["files"]) {
      if (!one.is_object()) continue;
      one["bytes"] = file.size();
      one["xxh3"] = checksum_text(file);
    }
  }
  all["xxh3"] = checksum_text(index.dump());
  return all.dump();
}

void use_checkpoint(const std::string& text, const std::string& file) {
  const CheckpointIndex index = CheckpointIndex::read(text);
  must(CheckpointIndex::read(index.text()).text() == index.text(),
       "an index that was written reads back as another one");
  differences(index.settings, index.chosen);
  hard_differences(index.settings, index.chosen);
  const std::filesystem::path folder = scratch_folder() / "step-00000001";
  for (const auto& [rank, stored] : index.files) {
    if (index.files.size() > 4) return;
    file_of("step-00000001/" + file_of_rank(rank), file);
  }
  file_of("step-00000001/index.json", text);
  must(checkpoints_in(scratch_folder()).size() == 1, "a checkpoint is not found");
  const Checkpoint checkpoint(folder);
  checkpoint.verify();
  Problems problems;
  for (const auto& [name, tensor] : index.tensors) {
    try {
      checkpoint.read_whole(name);
    } catch (const Error& error) {
      problems.add(error);
    }
  }
  for (const auto& [rank, names] : index.own)
    for (const std::string& name : names) checkpoint.read_own(rank, name);
  problems.throw_if_any();
}

void read_checkpoint(Bytes input) {
  clear_scratch();
  const std::string all = text_of(input);
  const std::size_t end = std::min(all.find(between_files), all.size());
  const std::string text = all.substr(0, end);
  const std::string file =
      end == all.size() ? std::string() : all.substr(end + between_files.size());
  try {
    use_checkpoint(text, file);
    return;
  } catch (const Error&) {
  }
  use_checkpoint(mended(text, file), file);
}

const AddReader registered_checkpoints({"checkpoints", read_checkpoint, 600});

}  // namespace
}  // namespace mw::fuzz
