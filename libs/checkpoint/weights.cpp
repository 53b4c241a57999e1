// Finds a model's parameters in Hugging Face checkpoints, checks names and shapes, and reads
// exactly the slice that a rank keeps.
#include "checkpoint/weights.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "common/files.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

using SortedJson = nlohmann::json;

constexpr std::uintmax_t most_index_bytes = 100'000'000;

using Shape = std::vector<std::int64_t>;

bool is_held(double number, at::ScalarType dtype) {
  return std::isfinite(at::scalar_tensor(number, at::kDouble).to(dtype).item<double>());
}

std::string text_of(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// True if `fine` becomes `coarse` by joining adjacent dims.
bool joins_to(const Shape& fine, at::IntArrayRef coarse) {
  std::size_t i = 0;
  for (const std::int64_t size : coarse) {
    std::int64_t product = 1;
    bool any = false;
    while (i < fine.size() && (!any || product < size)) {
      product *= fine[i++];
      any = true;
    }
    if (product != size) return false;
  }
  while (i < fine.size() && fine[i] == 1) ++i;
  return i == fine.size();
}

// The parameter's part of a stored tensor, transposed to the parameter's orientation; nothing if
// the sizes do not allow that.
std::optional<at::Tensor> oriented(const at::Tensor& stored, const HfName& hf) {
  at::Tensor tensor = stored;
  if (hf.transposed && tensor.dim() >= 2) tensor = tensor.transpose(-2, -1);
  if (hf.parts == 1) return tensor;
  const std::int64_t dim = hf.part_dim;
  if (tensor.dim() <= dim || tensor.size(dim) % hf.parts != 0) return std::nullopt;
  if (hf.interleaved) return tensor.slice(dim, hf.part, std::nullopt, hf.parts);
  const std::int64_t rows = tensor.size(dim) / hf.parts;
  return tensor.narrow(dim, hf.part * rows, rows);
}

std::vector<WeightSpec> with_entries(const std::vector<WeightSpec>& specs) {
  std::vector<WeightSpec> all;
  for (const WeightSpec& spec : specs) {
    if (!spec.hf.apart) all.push_back(spec);
    for (std::int64_t e = 0; spec.hf.apart && e < spec.shape[0]; ++e) {
      all.push_back(entry_of(spec, e));
    }
  }
  return all;
}

// The first few names of a list, which may be long, and the number of the others.
std::string list_of(const std::vector<std::string>& names, const char* between = ", ") {
  constexpr std::size_t shown = 6;
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + std::min(shown, names.size()));
  std::string text = fmt::format("{}", fmt::join(first, between));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Why a buffer (rotary angles or a mask), which some checkpoints store, is not what the model
// computes; empty: it is; nothing: the name is not that of a buffer.
std::optional<std::string> wrong_buffer(const std::string& name, const SafetensorsFile& file,
                                        const Rotary& rotary) {
  const bool angles_of_rotary = ends_with(name, ".inv_freq"),
             hidden_score = ends_with(name, ".attn.masked_bias");
  // Other tensors are not read, as a head alone may have gigabytes.
  if (!angles_of_rotary && !hidden_score && !ends_with(name, ".attn.bias")) return std::nullopt;
  const at::Tensor stored = file.tensor(name), own = stored.to(at::kDouble);
  if (angles_of_rotary) {
    if (rotary.theta <= 0) return "the model does not say which rotary angles it has";
    const at::Tensor power =
        at::arange(0, rotary.width, 2, at::kDouble).mul_(-1.0 / static_cast<double>(rotary.width));
    const at::Tensor angles = at::pow(rotary.theta, power);
    const double off = stored.scalar_type() == at::kBFloat16 ? 1e-2 : 2e-3;
    if (own.sizes() == angles.sizes() && at::allclose(own, angles, off, 1e-7)) return "";
    return fmt::format("it is not the {} angles of rope_theta = {} over {} dims that the model has",
                       angles.numel(), rotary.theta, rotary.width);
  }
  if (hidden_score) {
    const bool hides = own.numel() == 1 && own.item<double>() <= -1e4;
    return hides ? "" : "it hides no token: it is not one number of -10000 or less";
  }
  const std::int64_t n = own.dim() > 1 ? own.size(-1) : 0;
  const bool causal = n > 0 && own.numel() == n * n && own.size(-2) == n &&
                      at::equal(own.reshape({n, n}), at::ones({n, n}, at::kDouble).tril());
  return causal ? "" : "it is not the mask of ones on and below the diagonal that the model has";
}

struct CheckpointFiles {
  std::vector<fs::path> files;
  fs::path index = {};                           // path of the index; empty: there is none
  std::map<std::string, fs::path> file_of = {};  // by tensor: its file, as the index says
};

constexpr const char* of_one_download =
    "are the index and all of its files there, and of one version of the model?";

CheckpointFiles files_of_index(const fs::path& index) {
  const auto refuse = [&](const char* code, const std::string& what, const char* hint = "") {
    throw Error(Stage::options, code, "weights",
                fmt::format("weights: {}: {}", index.string(), what), hint);
  };
  check_may_read(index, "weights");
  check_regular(index, "weights");
  std::error_code error;
  if (fs::file_size(index, error) > most_index_bytes || error)
    refuse("weights.index", "cannot be read");
  const SortedJson json =
      SortedJson::parse(whole_file(index).value_or(""), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    refuse("weights.index", "is no index of safetensors files");
  CheckpointFiles checkpoint;
  checkpoint.index = index;
  std::map<fs::path, std::vector<std::string>> names;  // by file
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string() || file.get<std::string>().empty())
      refuse("weights.index", fmt::format("says no file for \"{}\"", name));
    const fs::path path = file.get<std::string>();
    // An index that points outside its own folder is broken or malicious.
    if (path.has_parent_path() || path == ".." || path == ".")
      refuse("weights.outside", fmt::format("points outside its folder: \"{}\"", path.string()));
    checkpoint.file_of.emplace(name, index.parent_path() / path);
    names[index.parent_path() / path].push_back(quote(name));
  }
  std::vector<std::string> missing;
  for (const auto& [file, of_file] : names) {
    checkpoint.files.push_back(file);
    if (!fs::exists(file, error))
      missing.push_back(fmt::format("{} (for {})", file.filename().string(), list_of(of_file)));
  }
  if (!missing.empty())
    refuse("file.missing", fmt::format("these files are missing: {}", list_of(missing)),
           of_one_download);
  return checkpoint;
}

// Chooses the files of a folder as transformers does: model.safetensors, whatever lies beside it,
// otherwise the files of the index. In a folder with neither, the only safetensors file is taken if
// nothing else can be meant.
CheckpointFiles files_of_folder(const fs::path& folder) {
  const auto refuse = [&](const char* code, const std::string& what, const std::string& hint) {
    throw Error(Stage::options, code, "weights",
                fmt::format("weights: the folder {} {}", folder.string(), what), hint);
  };
  std::error_code error;
  std::vector<std::string> found, pickled;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".safetensors") found.push_back(name);
    const bool weights = name.starts_with("pytorch_model") || name.starts_with("consolidated") ||
                         name.starts_with("model") || name.starts_with("adapter_model");
    if (weights && (name.ends_with(".bin") || name.ends_with(".pth") || name.ends_with(".pt")))
      pickled.push_back(name);
  }
  std::ranges::sort(found);
  std::ranges::sort(pickled);
  if (fs::exists(folder / "adapter_config.json", error)) {
    refuse("weights.adapter",
           "holds an adapter (adapter_config.json), which changes the weights of another model",
           "merge the two (peft's merge_and_unload), save the model, and give its folder");
  }
  if (fs::exists(folder / "model.safetensors", error)) return {{folder / "model.safetensors"}};
  if (fs::exists(folder / "model.safetensors.index.json", error))
    return files_of_index(folder / "model.safetensors.index.json");
  if (found.size() == 1 && pickled.empty()) return {{folder / found.front()}};
  if (found.empty()) {
    refuse("weights.no-index",
           pickled.empty() ? "holds no .safetensors file"
                           : fmt::format("holds no .safetensors file, but {}", list_of(pickled)),
           pickled.empty()
               ? "give the folder with model.safetensors or model.safetensors.index.json"
               : "transformers' save_pretrained writes them as model.safetensors");
  }
  std::vector<std::string> all = found;
  all.insert(all.end(), pickled.begin(), pickled.end());
  refuse("weights.no-index",
         fmt::format("holds {}, and neither model.safetensors nor an index says which are the "
                     "weights",
                     list_of(all)),
         "name the file, or add model.safetensors.index.json");
  return {};
}

CheckpointFiles files_of(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw Error(Stage::options, "file.missing", "weights",
                fmt::format("weights: no file or folder {}", path.string()),
                "give a .safetensors file or a folder with model.safetensors(.index.json)");
  }
  if (!fs::is_directory(path, error)) {
    if (ends_with(path.filename().string(), ".index.json")) return files_of_index(path);
    return {{path}};
  }
  return files_of_folder(path);
}

}  // namespace

double largest_of(const at::Tensor& numbers) {
  if (numbers.numel() == 0) return 0;
  const auto [least, most] = at::aminmax(numbers);  // both are NaN if any element is
  const double low = std::abs(least.item<double>()), high = std::abs(most.item<double>());
  return std::isnan(low) || low > high ? low : high;
}

WeightSpec entry_of(const WeightSpec& spec, std::int64_t entry) {
  WeightSpec one = spec;
  one.name = fmt::format("{}[{}]", spec.name, entry);
  one.hf.name = fmt::format(fmt::runtime(spec.hf.name), entry);
  one.hf.apart = false;
  one.shape.erase(one.shape.begin());
  if (!one.stored_shape.empty()) one.stored_shape.erase(one.stored_shape.begin());
  return one;
}

// The shape of a parameter in a checkpoint, before it is transposed: heads, whatever they are of,
// are one dim with what stands behind them.
static Shape stored_shape(const Value& value, const Graph& graph) {
  Shape shape;
  bool of_heads = false;
  for (std::size_t d = 0; d < value.dims.size(); ++d) {
    const Dim dim = value.dims[d];
    if (of_heads && (value.hf.out_dims == 0 || static_cast<int>(d) != value.hf.out_dims))
      shape.back() *= graph.size(dim);
    else
      shape.push_back(graph.size(dim));
    of_heads = dim.name().ends_with("heads");
  }
  return shape;
}

std::vector<WeightSpec> weight_specs(const Graph& graph) {
  std::vector<WeightSpec> specs;
  for (const int index : graph.parameters()) {
    const Value& value = graph.value(index);
    Shape shape;
    for (const Dim dim : value.dims) shape.push_back(graph.size(dim));
    specs.push_back({value.name, value.hf, std::move(shape), stored_shape(value, graph)});
  }
  return specs;
}

void check_names(const std::vector<WeightSpec>& specs, Problems& problems) {
  std::map<std::string, std::vector<const WeightSpec*>> by_name;
  for (const WeightSpec& spec : specs) by_name[spec.hf.name].push_back(&spec);
  for (const auto& [name, all] : by_name) {
    const HfName& first = all.front()->hf;
    const auto refuse = [&](const std::string& why, const char* hint) {
      problems.add(Stage::options, "weights.names", "model",
                   fmt::format("the checkpoint's tensor {} is of {}: {}", quote(name),
                               all.front()->name, why),
                   hint);
    };
    std::set<int> parts;
    bool alike = true;
    for (const WeightSpec* one : all) {
      parts.insert(one->hf.part);
      alike = alike && one->hf.parts == first.parts && one->hf.interleaved == first.interleaved &&
              one->hf.transposed == first.transposed && one->hf.part_dim == first.part_dim &&
              one->stored_shape == all.front()->stored_shape;
    }
    if (first.parts == 1 && all.size() > 1) {
      refuse(fmt::format("and of {} too", all[1]->name),
             "give each a name of its own; {} in hf is the layer's number");
    } else if (first.apart && first.parts > 1) {
      refuse("each expert has a tensor of its own, and it is a part of one",
             "leave hf_part or the expert's {} out");
    } else if (!alike) {
      refuse("its parts differ in shape, or in how they lie there",
             "give all parts one shape, one hf_part count, and the same hf_transposed and "
             "hf_interleaved");
    } else if (parts.size() != all.size() || static_cast<int>(all.size()) != first.parts) {
      refuse(fmt::format("{} of its {} parts are there, and {} parameters have it", parts.size(),
                         first.parts, all.size()),
             "hf_part = { 1, 2 } and { 2, 2 } are the two halves");
    }
  }
}

Weights::Weights(const fs::path& path) : path_(path) {
  const CheckpointFiles checkpoint = files_of(path);
  for (const fs::path& file : checkpoint.files) {
    files_.push_back(std::make_unique<SafetensorsFile>(file));
    for (const auto& [name, entry] : files_.back()->entries()) {
      if (!where_.emplace(name, files_.back().get()).second) {
        throw Error(Stage::options, "weights.twice", "weights",
                    fmt::format("weights: \"{}\" is in {} and in {}", name,
                                where_.at(name)->path().string(), file.string()));
      }
    }
  }
  if (!checkpoint.index.empty()) check_index(checkpoint.index, checkpoint.file_of);
}

void Weights::check_index(const fs::path& index,
                          const std::map<std::string, fs::path>& file_of) const {
  std::vector<std::string> wrong;
  for (const auto& [name, file] : file_of) {
    const auto found = where_.find(name);
    if (found == where_.end()) {
      wrong.push_back(fmt::format("{} is said to be in {}, and no file of the index has it",
                                  quote(name), file.filename().string()));
    } else if (found->second->path() != file) {
      wrong.push_back(fmt::format("{} is said to be in {}, and {} has it", quote(name),
                                  file.filename().string(),
                                  found->second->path().filename().string()));
    }
  }
  for (const auto& [name, file] : where_) {
    if (!file_of.contains(name))
      wrong.push_back(fmt::format("{} has {}, which the index does not name",
                                  file->path().filename().string(), quote(name)));
  }
  if (!wrong.empty())
    throw Error(Stage::options, "weights.index", "weights",
                fmt::format("weights: {}: it and its files differ: {}", index.string(),
                            list_of(wrong, "; ")),
                of_one_download);
}

const std::string* Weights::resolve(const std::string& name) const {
  if (const auto found = where_.find(name); found != where_.end()) return &found->first;
  for (const std::string prefix : {"model.", "transformer."}) {
    const bool has_it = name.compare(0, prefix.size(), prefix) == 0;
    const auto found = where_.find(has_it ? name.substr(prefix.size()) : prefix + name);
    if (found != where_.end()) return &found->first;
  }
  return nullptr;
}

// transformers may store a tied head as a copy of the embedding, with the same bits.
bool Weights::is_copy(const std::string& name, const std::set<std::string>& used) const {
  const bool of_head = ends_with(name, ".shared_head.head.weight");
  if (name != "lm_head.weight" && !of_head && !ends_with(name, ".embed_tokens.weight"))
    return false;
  return std::ranges::any_of(used, [&](const std::string& other) {
    const bool embeds = ends_with(other, "embed_tokens.weight") || ends_with(other, "wte.weight");
    if (!embeds && !(of_head && other == "lm_head.weight")) return false;
    const SafetensorsFile &file = *where_.at(name), &its = *where_.at(other);
    const SafetensorsEntry &entry = file.entries().at(name), &embedding = its.entries().at(other);
    return entry.dtype == embedding.dtype && entry.shape == embedding.shape &&
           at::equal(file.tensor(name), its.tensor(other));
  });
}

void Weights::check_others(const std::set<std::string>& used, const Rotary& rotary,
                           const std::vector<std::string>& without, Problems& problems) const {
  std::vector<std::string> extra;
  for (const auto& [name, file] : where_) {
    const bool ignored = std::ranges::any_of(
        without, [&](const std::string& begin) { return name.starts_with(begin); });
    if (used.count(name) || ignored) continue;
    std::optional<std::string> wrong;
    bool again = false;
    try {
      wrong = wrong_buffer(name, *file, rotary);
      again = is_copy(name, used);
    } catch (const Error& error) {
      problems.add(error);
      continue;
    }
    if (wrong) {
      if (wrong->empty()) continue;
      problems.add(Stage::options, "weights.buffer", "weights",
                   fmt::format("weights: \"{}\" of {}: {}", name, path_.string(), *wrong),
                   "another model, or take the tensor out of the file if it means nothing");
      continue;
    }
    if (!again) extra.push_back(name);
  }
  if (extra.empty()) return;
  const bool head = extra.size() == 1 && extra.front() == "lm_head.weight";
  problems.add(Stage::options, "weights.extra", "weights",
               fmt::format("weights: the model has no place for {} tensors of {}: {}", extra.size(),
                           path_.string(), list_of(extra)),
               head ? "it is not the embedding, which is the model's head: tied = false, and "
                      "\"tie_word_embeddings\": false in its config.json"
                    : "do the model's kind, layers and `tied` match the checkpoint?");
}

void Weights::check(const std::vector<WeightSpec>& specs, Problems& problems, const Rotary& rotary,
                    const std::vector<std::string>& without) const {
  std::set<std::string> used, missing;
  for (const WeightSpec& spec : with_entries(specs)) {
    const std::string* name = resolve(spec.hf.name);
    if (!name) {
      if (!spec.hf.optional) missing.insert(spec.hf.name);
      continue;
    }
    used.insert(*name);
    at::Tensor stored;
    try {
      stored = where_.at(*name)->tensor(*name);
    } catch (const Error& error) {
      problems.add(error);
      continue;
    }
    const auto tensor = oriented(stored, spec.hf);
    if (!at::isFloatingType(stored.scalar_type()) || !tensor ||
        !joins_to(spec.shape, tensor->sizes())) {
      const std::string part =
          spec.hf.parts > 1 ? fmt::format(" (part {} of {})", spec.hf.part + 1, spec.hf.parts) : "";
      problems.add(
          Stage::options, "weights.shape", "weights",
          fmt::format("weights: \"{}\" has shape {} and dtype {}, parameter {}{} needs {}{}", *name,
                      text_of(stored.sizes()), where_.at(*name)->entries().at(*name).dtype,
                      spec.name, part, text_of(spec.shape),
                      spec.hf.transposed ? ", transposed" : ""),
          "is this the checkpoint of another model size?");
    }
  }
  if (!missing.empty()) {
    problems.add(Stage::options, "weights.missing", "weights",
                 fmt::format("weights: {} of {} tensors are missing in {}: {}", missing.size(),
                             missing.size() + used.size(), path_.string(),
                             list_of({missing.begin(), missing.end()})));
  }
  check_others(used, rotary, without, problems);
}

void Weights::load(const WeightSpec& spec, const std::vector<Range>& ranges, const at::Tensor& out,
                   at::ScalarType computed) const {
  if (spec.hf.apart) {
    for (std::int64_t e = 0; e < ranges[0].size; ++e) {
      load(entry_of(spec, ranges[0].offset + e), {ranges.begin() + 1, ranges.end()}, out[e],
           computed);
    }
    return;
  }
  const std::string* name = resolve(spec.hf.name);
  if (!name && spec.hf.optional) {
    out.zero_();
    return;
  }
  if (!name)
    throw Error(Stage::options, "weights.missing", "weights",
                fmt::format("weights: \"{}\" is missing in {}", spec.hf.name, path_.string()));
  // Splitting dims is a view for any strides, so view() never copies the whole tensor.
  at::Tensor slice = oriented(where_.at(*name)->tensor(*name), spec.hf).value().view(spec.shape);
  for (std::size_t dim = 0; dim < ranges.size(); ++dim)
    slice = slice.narrow(static_cast<std::int64_t>(dim), ranges[dim].offset, ranges[dim].size);
  out.copy_(slice);
  where_.at(*name)->check();
  const double most = largest_of(slice);
  if (is_held(most, out.scalar_type()) && is_held(most, computed)) return;
  const std::string where =
      fmt::format("{} of {}", quote(*name), where_.at(*name)->path().string());
  if (std::isfinite(most)) {
    throw Error(Stage::options, "weights.range", "weights",
                fmt::format("weights: {} has numbers of up to {:.4g}, which are infinite in the "
                            "model's precision",
                            where, most),
                "write precision = \"bf16\" or \"fp32\"");
  }
  throw Error(Stage::options, "weights.not-finite", "weights",
              fmt::format("weights: {} has numbers that are {}", where,
                          std::isnan(most) ? "NaN" : "infinite"),
              "take other weights: all that a model computes from these is NaN or infinite too");
}

}  // namespace mw
