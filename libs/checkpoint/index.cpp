// Writes the index of a checkpoint as JSON, and reads it back without trusting anything in it.
#include "checkpoint/index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/checksum.h"
#include "common/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// JSON sorted by key, unlike Json, so that the same index has the same text and checksum.
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

// Accepts integers only: nlohmann would convert another number, which may be too large.
std::int64_t whole_in(const SortedIndex& json) {
  const bool fits = json.is_number_integer() &&
                    (!json.is_number_unsigned() || json.get<std::uint64_t>() <= INT64_MAX);
  if (!fits) broken_index("has something else where a whole number belongs");
  return json.get<std::int64_t>();
}

int int_in(const SortedIndex& json) {
  const std::int64_t whole = whole_in(json);
  if (whole != static_cast<int>(whole)) broken_index("has a number of ranks beyond all ranks");
  return static_cast<int>(whole);
}

std::vector<std::int64_t> wholes_in(const SortedIndex& json) {
  if (!json.is_array()) broken_index("has something else where a list belongs");
  std::vector<std::int64_t> numbers;
  for (const SortedIndex& one : json) numbers.push_back(whole_in(one));
  return numbers;
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
  tensor.shape = wholes_in(json.at("shape"));
  const std::int64_t all = checked_elements(tensor.shape, name);
  std::int64_t sliced = 0;
  std::set<int> ranks;
  for (const SortedIndex& one : json.at("slices")) {
    StoredSlice stored;
    stored.rank = int_in(one.at(0));
    Slice& slice = stored.slice;
    slice.box.offsets = wholes_in(one.at(1));
    slice.box.sizes = wholes_in(one.at(2));
    slice.begin = whole_in(one.at(3));
    slice.count = whole_in(one.at(4));
    bool good = slice.box.offsets.size() == tensor.shape.size() &&
                slice.box.sizes.size() == tensor.shape.size() && slice.begin >= 0 &&
                slice.count >= 0;
    for (std::size_t d = 0; good && d < tensor.shape.size(); ++d)
      good = slice.box.offsets[d] >= 0 && slice.box.sizes[d] >= 0 &&
             slice.box.offsets[d] <= tensor.shape[d] - slice.box.sizes[d];
    if (!good || slice.begin > slice.box.elements() - slice.count)
      broken_index(fmt::format("a slice of tensor \"{}\" lies outside of it", name));
    if (!ranks.insert(stored.rank).second)
      broken_index(fmt::format("tensor \"{}\" has two slices of rank {}", name, stored.rank));
    if (__builtin_add_overflow(sliced, slice.count, &sliced))
      broken_index(fmt::format("the slices of tensor \"{}\" have too many elements", name));
    tensor.slices.push_back(std::move(stored));
  }
  if (sliced != all)
    broken_index(fmt::format("the slices of tensor \"{}\" have {} elements, and it has {}", name,
                             sliced, all));
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
  if (!started_by.empty()) json["started_by"] = started_by;
  json["mix"] = mix;
  json["ranks"] = ranks;
  if (!chosen.empty()) json["chosen"] = SortedIndex::parse(json_text(chosen));
  json["settings"] = SortedIndex::parse(json_text(settings));
  if (scaled) {
    json["loss_scale"] = {{"scale", loss_scaler.scale},
                          {"overflowed", loss_scaler.overflowed},
                          {"good", loss_scaler.good},
                          {"left_out", loss_scaler.left_out}};
  } else if (loss_scaler.left_out > 0) {
    json["left_out"] = loss_scaler.left_out;
  }
  if (loss_scaler.had_no_labels) json["had_no_labels"] = true;
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
  if (is_nested_too_deep(text)) broken_index("is no index of a checkpoint");
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
  index.step = whole_in(json.at("step"));
  index.sample = whole_in(json.at("sample"));
  index.tokens = whole_in(json.at("tokens"));
  index.created = json.at("created").get<std::string>();
  index.version = json.at("version").get<std::string>();
  index.name = json.at("name").get<std::string>();
  index.hash = json.at("hash").get<std::string>();
  if (json.contains("started_by")) index.started_by = json["started_by"].get<std::string>();
  index.mix = json.at("mix").get<std::string>();
  index.ranks = int_in(json.at("ranks"));
  if (json.contains("chosen")) index.chosen = Json::parse(json.at("chosen").dump());
  index.settings = Json::parse(json.at("settings").dump());
  if (json.contains("loss_scale")) {
    const SortedIndex& scale = json["loss_scale"];
    index.scaled = true;
    index.loss_scaler = {scale.at("scale").get<double>(), scale.at("overflowed").get<bool>(), true,
                         whole_in(scale.at("good")), whole_in(scale.at("left_out"))};
  }
  index.loss_scaler.had_no_labels = json.contains("had_no_labels");
  if (json.contains("left_out")) index.loss_scaler.left_out = whole_in(json.at("left_out"));
  for (const SortedIndex& file : json.at("files"))
    index.files[int_in(file.at("rank"))] = {whole_in(file.at("bytes")),
                                            file.at("xxh3").get<std::string>()};
  for (const auto& [name, tensor] : json.at("tensors").items())
    index.tensors.emplace(name, read_tensor(name, tensor));
  for (const SortedIndex& one : json.at("own"))
    index.own[int_in(one.at(0))] = one.at(1).get<std::vector<std::string>>();
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
