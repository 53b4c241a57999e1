// Writes the index of a checkpoint as JSON and reads it back, trusting nothing that it says.
#include "checkpoint/index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "checkpoint/checksum.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// Sorted by key, unlike Json: the same index has the same text, and with it the same checksum.
using SortedIndex = nlohmann::json;

[[noreturn]] void broken_index(const std::string& what) {
  throw Error(Stage::options, "checkpoint.broken", "", fmt::format("{}: {}", index_file, what));
}

SortedIndex json_of(const StoredTensor& tensor) {
  SortedIndex slices = SortedIndex::array();
  for (const StoredSlice& s : tensor.slices)
    slices.push_back(
        {s.rank, s.slice.box.offsets, s.slice.box.sizes, s.slice.begin, s.slice.count});
  return {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"slices", slices}};
}

std::int64_t checked_elements(const std::vector<std::int64_t>& shape, const std::string& name) {
  std::int64_t all = 1;
  for (const std::int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(all, size, &all))
      broken_index(fmt::format("tensor \"{}\" has no proper shape", name));
  return all;
}

StoredTensor read_tensor(const std::string& name, const SortedIndex& json) {
  StoredTensor tensor;
  tensor.dtype = json.at("dtype").get<std::string>();
  tensor.shape = json.at("shape").get<std::vector<std::int64_t>>();
  std::int64_t all = checked_elements(tensor.shape, name);
  for (const SortedIndex& one : json.at("slices")) {
    StoredSlice stored;
    stored.rank = one.at(0).get<int>();
    Slice& slice = stored.slice;
    slice.box.offsets = one.at(1).get<std::vector<std::int64_t>>();
    slice.box.sizes = one.at(2).get<std::vector<std::int64_t>>();
    slice.begin = one.at(3).get<std::int64_t>();
    slice.count = one.at(4).get<std::int64_t>();
    bool good = slice.box.offsets.size() == tensor.shape.size() &&
                slice.box.sizes.size() == tensor.shape.size() && slice.begin >= 0 &&
                slice.count >= 0;
    for (std::size_t d = 0; good && d < tensor.shape.size(); ++d)
      good = slice.box.offsets[d] >= 0 && slice.box.sizes[d] >= 0 &&
             slice.box.offsets[d] <= tensor.shape[d] - slice.box.sizes[d];
    if (!good || slice.begin > slice.box.elements() - slice.count)
      broken_index(fmt::format("a slice of tensor \"{}\" lies outside of it", name));
    all -= slice.count;
    tensor.slices.push_back(std::move(stored));
  }
  if (all != 0)
    broken_index(fmt::format("the slices of tensor \"{}\" have {} elements too {}", name,
                             std::abs(all), all > 0 ? "few" : "many"));
  return tensor;
}

}  // namespace

std::string file_of_rank(int rank) {
  return fmt::format("rank-{:05}.safetensors", rank);
}

std::int64_t CheckpointIndex::bytes() const {
  std::int64_t all = 0;
  for (const auto& [rank, file] : files) all += file.bytes;
  return all;
}

std::string CheckpointIndex::text() const {
  SortedIndex json;
  json["format"] = checkpoint_format;
  json["step"] = step;
  json["sample"] = sample;
  json["tokens"] = tokens;
  json["created"] = created;
  json["version"] = version;
  json["name"] = name;
  json["hash"] = hash;
  json["mix"] = mix;
  json["ranks"] = ranks;
  if (!chosen.empty()) json["chosen"] = SortedIndex::parse(json_text(chosen));
  json["settings"] = SortedIndex::parse(json_text(settings));
  if (scaled) {
    json["loss_scale"] = {{"scale", loss_scaler.scale},
                          {"overflowed", loss_scaler.overflowed},
                          {"good", loss_scaler.good},
                          {"left_out", loss_scaler.left_out}};
  }
  json["files"] = SortedIndex::array();
  for (const auto& [rank, file] : files) {
    json["files"].push_back({{"rank", rank},
                             {"name", file_of_rank(rank)},
                             {"bytes", file.bytes},
                             {"xxh3", file.checksum}});
  }
  json["tensors"] = SortedIndex::object();
  for (const auto& [tensor, stored] : tensors) json["tensors"][tensor] = json_of(stored);
  json["own"] = SortedIndex::array();
  for (const auto& [rank, names] : own) json["own"].push_back({rank, names});
  // Names may hold bytes that are no UTF-8.
  const std::string inner = json.dump(-1, ' ', false, SortedIndex::error_handler_t::replace);
  return fmt::format("{{\"xxh3\":\"{}\",\"index\":\n{}}}\n",
                     checksum_of(inner.data(), inner.size()), inner);
}

CheckpointIndex CheckpointIndex::read(const std::string& text) try {
  const SortedIndex all = SortedIndex::parse(text);
  const SortedIndex& json = all.at("index");
  const std::string format = json.at("format").get<std::string>();
  if (format != checkpoint_format)
    broken_index(fmt::format("is of the format \"{}\"; this version reads \"{}\"", format,
                             checkpoint_format));
  const std::string inner = json.dump();
  if (checksum_of(inner.data(), inner.size()) != all.at("xxh3").get<std::string>())
    broken_index("its checksum is wrong");
  CheckpointIndex index;
  index.step = json.at("step").get<std::int64_t>();
  index.sample = json.at("sample").get<std::int64_t>();
  index.tokens = json.at("tokens").get<std::int64_t>();
  index.created = json.at("created").get<std::string>();
  index.version = json.at("version").get<std::string>();
  index.name = json.at("name").get<std::string>();
  index.hash = json.at("hash").get<std::string>();
  index.mix = json.at("mix").get<std::string>();
  index.ranks = json.at("ranks").get<int>();
  if (json.contains("chosen")) index.chosen = Json::parse(json.at("chosen").dump());
  index.settings = Json::parse(json.at("settings").dump());
  if (json.contains("loss_scale")) {
    const SortedIndex& scale = json["loss_scale"];
    index.scaled = true;
    index.loss_scaler = {scale.at("scale").get<double>(), scale.at("overflowed").get<bool>(), true,
                         scale.at("good").get<std::int64_t>(),
                         scale.at("left_out").get<std::int64_t>()};
  }
  for (const SortedIndex& file : json.at("files"))
    index.files[file.at("rank").get<int>()] = {file.at("bytes").get<std::int64_t>(),
                                               file.at("xxh3").get<std::string>()};
  for (const auto& [name, tensor] : json.at("tensors").items())
    index.tensors.emplace(name, read_tensor(name, tensor));
  for (const SortedIndex& one : json.at("own"))
    index.own[one.at(0).get<int>()] = one.at(1).get<std::vector<std::string>>();
  if (index.step < 0 || index.ranks < 1) broken_index("has no proper step or number of ranks");
  for (const auto& [name, tensor] : index.tensors)
    for (const StoredSlice& stored : tensor.slices)
      if (index.files.count(stored.rank) == 0)
        broken_index(fmt::format("tensor \"{}\" is in a file that it does not list", name));
  return index;
} catch (const SortedIndex::exception&) {
  broken_index("is no index of a checkpoint, or was cut off");
}

}  // namespace mw
