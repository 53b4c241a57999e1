// Distributes tensors over files, writes them as they come, and completes the folder; reads and
// writes config.json.
#include "checkpoint/hf_export.h"

#include <ATen/core/grad_mode.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <stdexcept>
#include <system_error>

#include "common/files.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* hash_key = "meshwright.hash";

bool is_weights(const std::string& name) {
  const bool shard = name.starts_with("model-") && name.find("-of-") != std::string::npos;
  return name == "model.safetensors" || name == index_name || name == "config.json" ||
         (shard && name.ends_with(".safetensors"));
}

// Files beside a model's weights on the hub that do not depend on the weights.
constexpr const char* tokenizer_files[] = {
    "tokenizer.json", "tokenizer.model",    "tokenizer_config.json", "special_tokens_map.json",
    "vocab.json",     "merges.txt",         "added_tokens.json",     "chat_template.jinja",
    "vocab.txt",      "chat_template.json", "generation_config.json"};

bool was_exported_by(const std::string& hash, const fs::path& weights) {
  try {
    const SafetensorsFile file(weights);
    const auto found = file.metadata().find(hash_key);
    return found != file.metadata().end() && found->second == hash && !hash.empty();
  } catch (const Error&) {
    return false;
  }
}

// What a folder has of the files that an export writes.
struct Exported {
  bool any = false;
  bool own = false;  // there are weights, and this experiment has exported all of them
};

Exported exported_in(const fs::path& folder, const std::string& hash) {
  Exported found;
  std::int64_t weights = 0, own = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    found.any = found.any || is_weights(name) ||
                std::ranges::find(tokenizer_files, name) != std::ranges::end(tokenizer_files);
    if (!is_weights(name) || at->path().extension() != ".safetensors") continue;
    ++weights;
    own += was_exported_by(hash, at->path()) ? 1 : 0;
  }
  // A folder that cannot be listed may hold such files.
  found.any = found.any || (error && error != std::errc::no_such_file_or_directory);
  found.own = !error && weights > 0 && own == weights;
  return found;
}

void write_text(const fs::path& file, const std::string& text) {
  const int reason = replace_whole(file, text);
  if (reason != 0)
    throw Error(
        Stage::run, "file.write", "export",
        fmt::format("cannot write {}: {}", file.string(), std::generic_category().message(reason)));
}

}  // namespace

HfExport::HfExport(ExportSettings settings, std::vector<WeightSpec> specs, std::vector<int> owners,
                   std::optional<HfConfig> config)
    : settings_(std::move(settings)), specs_(std::move(specs)), config_(std::move(config)) {
  const fs::path& folder = settings_.folder;
  staging_ = folder.parent_path() / ("." + folder.filename().string() + ".exporting");
  before_ = folder.parent_path() / ("." + folder.filename().string() + ".earlier");
  const bool lacks_optional = config_ && config_->none.empty() && config_->lacks_optional;
  std::vector<std::size_t> order;
  const bool of_script = config_ && config_->of_script;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const WeightSpec& spec = specs_[i];
    // What a script gives no name has none there.
    const bool left_out = lacks_optional || (of_script && spec.hf.name == spec.name);
    if (!(spec.hf.optional && left_out)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return owners[a] < owners[b]; });
  for (const std::size_t i : order) {
    const WeightSpec& spec = specs_[i];
    by_name_[spec.name] = {&spec, owners[i]};
    ++wanted_[owners[i]];
    // The biases that balance the load of experts (optional) are too fine for types of two bytes.
    const at::ScalarType dtype =
        spec.hf.optional ? at::promote_types(settings_.dtype, at::kFloat) : settings_.dtype;
    if (spec.hf.apart) {
      for (std::int64_t e = 0; e < spec.shape[0]; ++e) {
        WeightSpec one = entry_of(spec, e);
        if (one.hf.transposed) std::reverse(one.stored_shape.begin(), one.stored_shape.end());
        add(owners[i], {stored_name(one.hf.name), dtype, one.stored_shape});
      }
      continue;
    }
    if (spec.hf.part > 0) continue;  // the first part stands for the fused tensor
    std::vector<std::int64_t> shape = spec.stored_shape;
    if (spec.hf.parts > 1) shape[static_cast<std::size_t>(spec.hf.part_dim)] *= spec.hf.parts;
    if (spec.hf.transposed && shape.size() >= 2) std::swap(shape.back(), shape[shape.size() - 2]);
    add(owners[i], {stored_name(spec.hf.name), dtype, std::move(shape)});
  }
  name_files();
}

HfExport::~HfExport() {
  std::error_code ignored;
  if (begun_) fs::remove_all(staging_, ignored);
  lock_.remove();
}

std::string HfExport::stored_name(const std::string& name) const {
  if (!config_ || name.starts_with("lm_head.")) return name;
  return config_->prefix + name;
}

void HfExport::add(int owner, SafetensorsWriter::Entry entry) {
  const std::int64_t bytes = entry.bytes();
  if (files_.empty() || files_.back().owner != owner ||
      files_.back().bytes + bytes > settings_.most_bytes)
    files_.push_back({"", owner, {}, 0});
  file_of_[entry.name] = static_cast<int>(files_.size()) - 1;
  files_.back().bytes += bytes;
  files_.back().tensors.push_back(std::move(entry));
}

void HfExport::name_files() {
  for (std::size_t f = 0; f < files_.size(); ++f) {
    files_[f].name = files_.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files_.size());
  }
}

std::string HfExport::lacks() const {
  if (!config_) return "transformers has no model of this kind";
  return config_->none.empty() ? "" : "transformers has no such model: " + config_->none;
}

bool HfExport::replaces() const {
  return exported_in(settings_.folder, settings_.hash).any;
}

void HfExport::lock() try {
  fs::create_directories(staging_.parent_path());
  lock_ = FileLock(staging_.string() + ".lock");
  if (lock_.held()) return;
  throw Error(
      Stage::options, "export.in-use", "export",
      fmt::format("export: another run writes its export to {}{}", settings_.folder.string(),
                  lock_.holder().empty() ? "" : ", " + lock_.holder()),
      fmt::format("give this one a folder of its own, export = \"{}-2\"; or {}",
                  settings_.folder.filename().string(),
                  lock_.unsure().empty()
                      ? "wait"
                      : fmt::format("remove {} if that run has ended", lock_.unsure().string())));
} catch (const std::system_error& error) {
  throw Error(Stage::options, "export.folder", "export",
              fmt::format("export: cannot make {}, or lock it: {}", settings_.folder.string(),
                          error.code().message()),
              "name a folder that you may write to");
}

// Removes the weights in the earlier folder (before_). Its other files are moved to the new folder;
// those that cannot be moved stay.
void HfExport::remove_earlier() const {
  // An export that writes no config.json keeps one that somebody else put beside its own weights.
  const bool config_stays = !lacks().empty() && exported_in(before_, settings_.hash).own;
  std::error_code error;
  std::vector<fs::path> there;
  for (fs::directory_iterator at(before_, error), end; !error && at != end; at.increment(error))
    there.push_back(at->path());
  for (const fs::path& path : there) {
    const std::string name = path.filename().string();
    const fs::path place = settings_.folder / name;
    const bool goes = is_weights(name) && !(config_stays && name == "config.json");
    if (goes || fs::exists(fs::symlink_status(place, error)))
      fs::remove(path, error);
    else
      fs::rename(path, place, error);
  }
  fs::remove(before_, error);
}

void HfExport::begin() {
  const fs::path& folder = settings_.folder;
  check_may_write(folder, "export");
  check_may_write(staging_, "export");  // the sandbox may allow the folder and nothing beside it
  lock();
  std::error_code error;
  // A run that was killed in finish() has left the earlier folder under its hidden name.
  if (!fs::exists(folder, error)) fs::rename(before_, folder, error);
  remove_earlier();
  if (fs::exists(before_, error)) {
    throw Error(Stage::options, "export.taken", "export",
                fmt::format("export: {} is left of an export that was killed, and cannot be moved "
                            "to {}",
                            before_.string(), folder.string()),
                "move it away");
  }
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    throw Error(Stage::options, "export.taken", "export",
                fmt::format("export: {} is there, and is no folder", folder.string()),
                "another folder");
  }
  const Exported there = exported_in(folder, settings_.hash);
  if (!settings_.overwrite && there.any && !there.own) {
    throw Error(Stage::options, "export.taken", "export",
                fmt::format("export: {} has weights, or files that belong to them, which are not "
                            "all of an earlier export of this experiment",
                            folder.string()),
                "another folder, or overwrite = true");
  }
  fs::remove_all(staging_, error);  // left by a run that was killed
  fs::create_directories(staging_, error);
  if (error) {
    throw Error(Stage::options, "export.folder", "export",
                fmt::format("export: cannot make {}: {}", staging_.string(), error.message()));
  }
  begun_ = true;
}

void HfExport::take_tokenizer() const {
  if (settings_.started_from.empty()) return;
  std::error_code error;
  const fs::path from = fs::is_directory(settings_.started_from, error)
                            ? settings_.started_from
                            : settings_.started_from.parent_path();
  if (!fs::exists(from / "config.json", error)) return;  // not the folder of a model
  for (const char* name : tokenizer_files) {
    if (!fs::is_regular_file(from / name, error)) continue;
    check_may_read(from / name, "weights");  // the file may be a link to another folder
    fs::copy_file(from / name, staging_ / name, error);
    if (error) {
      throw Error(Stage::run, "file.write", "export",
                  fmt::format("cannot copy {} to {}: {}", (from / name).string(), staging_.string(),
                              error.message()));
    }
  }
}

void HfExport::finish() {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::int64_t bytes = 0, elements = 0;
  for (const File& file : files_) {
    std::error_code error;
    if (!fs::exists(staging_ / file.name, error)) {
      throw Error(Stage::run, "file.write", "export",
                  fmt::format("export: {} was not written", (staging_ / file.name).string()),
                  "all processes of a run have to see the folder");
    }
    bytes += file.bytes;
    for (const SafetensorsWriter::Entry& entry : file.tensors) {
      map[entry.name] = file.name;
      elements += entry.bytes() / static_cast<std::int64_t>(c10::elementSize(entry.dtype));
    }
  }
  if (files_.size() > 1) {
    const Json index = {{"metadata", {{"total_parameters", elements}, {"total_size", bytes}}},
                        {"weight_map", map}};
    write_text(staging_ / index_name, index.dump(2) + "\n");
  }
  if (lacks().empty()) {
    const fs::path earlier =
        settings_.started_from.empty() ? fs::path() : config_beside(settings_.started_from);
    write_text(staging_ / "config.json", hf_config_text(*config_, settings_.dtype, earlier));
  }
  take_tokenizer();
  // The earlier folder goes only once the new one has its place.
  begun_ = false;
  const fs::path& folder = settings_.folder;
  std::error_code error, ignored;
  if (fs::exists(folder, ignored)) fs::rename(folder, before_, error);
  if (!error) fs::rename(staging_, folder, error);
  if (error) {
    fs::rename(before_, folder, ignored);
    throw Error(Stage::run, "file.write", "export",
                fmt::format("cannot rename {} to {}: {}", staging_.string(), folder.string(),
                            error.message()),
                "the weights are whole where they are; move them");
  }
  remove_earlier();
  lock_.remove();
}

bool HfExport::Part::wants(const std::string& parameter) const {
  const auto found = all_.by_name_.find(parameter);
  return found != all_.by_name_.end() && found->second.second == owner_;
}

void HfExport::Part::put(const std::string& tensor, const at::Tensor& stored) {
  const int number = all_.file_of_.at(tensor);
  const File& file = all_.files_[number];
  auto& writer = open_[number];
  if (!writer) {
    writer = std::make_unique<SafetensorsWriter>(
        all_.staging_ / file.name, file.tensors,
        std::map<std::string, std::string>{{"format", "pt"}, {hash_key, all_.settings_.hash}});
  }
  writer->write(tensor, stored);
  if (!writer->complete()) return;
  writer->finish();
  open_.erase(number);
}

void HfExport::Part::write(const std::string& parameter, const at::Tensor& whole) {
  const WeightSpec& spec = *all_.by_name_.at(parameter).first;
  ++done_;
  if (const double most = largest_of(whole); !std::isfinite(most)) {
    throw Error(Stage::run, "export.not-finite", "export",
                fmt::format("export: {} has numbers that are {}, so that no weights are written",
                            spec.hf.apart ? parameter : all_.stored_name(spec.hf.name),
                            std::isnan(most) ? "NaN" : "infinite"),
                "export an earlier checkpoint, or train with a lower learning rate");
  }
  const at::Tensor stored = whole.reshape(spec.stored_shape);
  if (spec.hf.apart) {
    for (std::int64_t e = 0; e < spec.shape[0]; ++e)
      put(all_.stored_name(entry_of(spec, e).hf.name),
          spec.hf.transposed ? stored[e].t() : stored[e]);
    return;
  }
  auto& parts = parts_[spec.hf.name];
  parts.resize(spec.hf.parts);
  parts[spec.hf.part] = spec.hf.parts > 1 ? stored.clone() : stored;
  if (!std::all_of(parts.begin(), parts.end(), [](const auto& p) { return p.defined(); })) return;
  const std::int64_t dim = spec.hf.part_dim;
  at::Tensor all = parts.size() == 1     ? parts[0]
                   : spec.hf.interleaved ? at::stack(parts, dim + 1).flatten(dim, dim + 1)
                                         : at::cat(parts, dim);
  if (spec.hf.transposed && all.dim() >= 2) all = all.transpose(-2, -1);
  put(all_.stored_name(spec.hf.name), all);
  parts_.erase(spec.hf.name);
}

void HfExport::Part::finish() const {
  const auto wanted = all_.wanted_.find(owner_);
  if (done_ != (wanted == all_.wanted_.end() ? 0 : wanted->second) || !open_.empty())
    throw std::logic_error("an export lacks parameters");
}

namespace {

constexpr std::uintmax_t most_config_bytes = 10'000'000;

// Keys of config.json that change what a model computes, each with the value that changes nothing.
// A model whose HfConfig has such a key compares it there instead.
const std::pair<const char*, Json> not_computed[] = {{"quantization_config", nullptr},
                                                     {"rope_scaling.factor", 1.0},
                                                     {"rope_parameters.factor", 1.0},
                                                     {"partial_rotary_factor", 1.0},
                                                     {"rope_parameters.partial_rotary_factor", 1.0},
                                                     {"attention_bias", false},
                                                     {"mlp_bias", false},
                                                     {"sliding_window", nullptr},
                                                     {"attention_chunk_size", nullptr},
                                                     {"no_rope_layers", nullptr},
                                                     {"use_qk_norm", false},
                                                     {"qk_layernorm", false},
                                                     {"attn_logit_softcapping", nullptr},
                                                     {"final_logit_softcapping", nullptr},
                                                     {"query_pre_attn_scalar", nullptr},
                                                     {"logit_scale", 1.0},
                                                     {"logits_scaling", 1.0},
                                                     {"embedding_multiplier", 1.0},
                                                     {"residual_multiplier", 1.0},
                                                     {"attention_multiplier", nullptr},
                                                     {"add_cross_attention", false},
                                                     {"is_encoder_decoder", false},
                                                     {"is_causal", true}};

// The value of a key, where "rope_parameters.rope_theta" is a key in a table; null: there is none.
const Json* find(const Json& config, const std::string& name) {
  const std::size_t dot = name.find('.');
  const auto found = config.find(name.substr(0, dot));
  if (found == config.end()) return nullptr;
  if (dot == std::string::npos) return &*found;
  return found->is_object() ? find(*found, name.substr(dot + 1)) : nullptr;
}

void set(Json& config, const std::string& name, const Json& value) {
  const std::size_t dot = name.find('.');
  Json& place = config[name.substr(0, dot)];
  if (dot == std::string::npos)
    place = value;
  else
    set(place, name.substr(dot + 1), value);
}

bool same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    const double x = a.get<double>(), y = b.get<double>();
    return std::abs(x - y) <= 1e-9 * std::max(std::abs(x), std::abs(y));
  }
  return a == b;
}

bool fits(const HfKey& key, const Json& theirs) {
  return same(theirs, key.value) ||
         std::any_of(key.alike.begin(), key.alike.end(),
                     [&](const Json& other) { return same(theirs, other); });
}

Json read_config(const fs::path& file) {
  if (file.empty()) return {};
  check_may_read(file, "weights");
  std::error_code error;
  if (fs::file_size(file, error) > most_config_bytes || error) return {};
  Json config = read_json(file);
  if (!config.is_null()) return config;
  // Python writes Infinity, which is no JSON; transformers from version 5 on writes it so.
  static const std::regex infinite(R"(([\[,:]\s*)(-?Infinity)\b)");
  const std::string text = whole_file(file).value_or("");
  return json_in(std::regex_replace(text, infinite, R"($1{"__float__": "$2"})"));
}

const char* name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return "float32";
  }
}

}  // namespace

std::optional<HfConfig> hf_config_of(const Model& model, std::int64_t sequence) {
  const auto* known = dynamic_cast<const HfModel*>(&model);
  if (known == nullptr) return std::nullopt;
  return known->hf_config(sequence);
}

fs::path config_beside(const fs::path& weights) {
  std::error_code error;
  const fs::path folder = fs::is_directory(weights, error) ? weights : weights.parent_path();
  fs::path file = folder / "config.json";
  return fs::exists(fs::symlink_status(file, error)) ? file : fs::path();
}

// Refuses models whose layers are of several kinds, each with its own attention and rotary table,
// unless the model says itself what kinds it has.
template <class Refuse>
static void refuse_layers_of_kinds(const Json& theirs, const HfConfig& config,
                                   const Refuse& refuse) {
  for (const HfKey& key : config.keys)
    if (key.names.front() == "layer_types") return;
  const char* hint = "layers of several kinds are not computed";
  const Json *types = find(theirs, "layer_types"), *window = find(theirs, "sliding_window"),
             *rope = find(theirs, "rope_parameters");
  const bool slides = window != nullptr && window->is_number();
  for (const Json& one : types != nullptr && types->is_array() ? *types : Json::array()) {
    if (one == (slides ? "sliding_attention" : "full_attention")) continue;
    return refuse(fmt::format("layer_types has {}", json_text(one)), hint);
  }
  for (const Json& one : rope != nullptr && rope->is_object() ? *rope : Json::object())
    if (one.is_object()) return refuse("rope_parameters has a table for each kind of layer", hint);
}

// What messages call a model.
static std::string called(const std::string& model, const HfConfig& config) {
  return config.of_script ? fmt::format("the model {}", model) : "mw." + model;
}

// The model_type of a config.json; if it is missing or not one of the model's, refuses and returns
// "". transformers takes no file without one either.
template <class Refuse>
static std::string type_of(const Json& theirs, const std::string& model, const HfConfig& config,
                           const Refuse& refuse) {
  const Json* type = find(theirs, "model_type");
  const std::string own =
      fmt::format("{}{} is {}", called(model, config),
                  config.of_script ? "" : " with these options", fmt::join(config.types, " or "));
  if (type == nullptr || type->is_null()) {
    refuse(fmt::format("it does not say the model_type, and {}", own),
           fmt::format("write \"model_type\": \"{}\" into it if its keys are those of that type; "
                       "without config.json the tensors alone are compared",
                       fmt::join(config.types, "\" or \"")));
    return "";
  }
  for (const std::string& one : config.types)
    if (*type == Json(one)) return one;
  refuse(fmt::format("model_type is {}, and {}", json_text(*type), own),
         "another model, or other weights; without config.json the tensors alone are compared");
  return "";
}

void check_hf_config(const fs::path& file, const std::string& model, const HfConfig& config,
                     Problems& problems) {
  if (file.empty()) return;
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    const std::string kind = irregular(file);
    problems.add(Stage::options, "weights.config-file", "weights",
                 fmt::format("weights: cannot read {}: it is {}", file.string(),
                             kind.empty() ? "a link that leads nowhere" : kind),
                 "is its disk mounted? Or take it away: then the tensors alone are compared");
    return;
  }
  const Json theirs = read_config(file);
  if (!theirs.is_object()) {
    problems.add(Stage::options, "weights.config-file", "weights",
                 fmt::format("weights: {} is no JSON table", file.string()));
    return;
  }
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    problems.add(Stage::options, "weights.config", "weights",
                 fmt::format("weights: {}: {}", file.string(), what), hint);
  };
  const std::string its_type = type_of(theirs, model, config, refuse);
  if (its_type.empty()) return;  // keys of another type mean other things
  const Json absent_of_type = config.absent.value(its_type, Json::object());
  for (const HfKey& key : config.keys) {
    if (key.unread) continue;
    const auto differs = [&](const std::string& value, const Json& wanted) {
      if (key.option.empty()) {
        refuse(fmt::format("{}, and {} has {}", value, called(model, config), json_text(key.value)),
               called(model, config) + " does not compute such a model");
        return;
      }
      refuse(fmt::format("{}, and the model has {} = {}", value, key.option,
                         key.value.is_null() ? "nil" : json_text(key.value)),
             fmt::format("{} = {}", key.option, wanted.is_null() ? "nil" : json_text(wanted)));
    };
    bool there = false;
    for (const std::string& name : key.names) {  // look at all names: one may contradict another
      const Json* said = find(theirs, name);
      there = there || said != nullptr;
      if (said == nullptr || fits(key, *said)) continue;
      differs(fmt::format("{} is {}", name, json_text(*said)), *said);
      break;
    }
    const Json absent = absent_of_type.value(key.names.front(), key.absent);
    if (!there && !absent.is_null() && !fits(key, absent)) {
      differs(fmt::format("{} is not there, which means {}", key.names.front(), json_text(absent)),
              absent);
    }
  }
  const bool says_type = std::ranges::any_of(config.keys, [&](const HfKey& key) {
    return key.names.front() == "rope_parameters.rope_type" &&
           std::ranges::any_of(key.names, [&](const auto& name) { return find(theirs, name); });
  });
  for (const auto& [name, neutral] : not_computed) {
    // Where the file says the type of its rotary angles, that was compared.
    if (says_type && std::string_view(name).ends_with(".factor")) continue;
    const Json* said = find(theirs, name);
    const bool known = std::ranges::any_of(config.keys, [&](const HfKey& key) {
      return std::ranges::find(key.names, name) != key.names.end();
    });
    if (said == nullptr || known || said->is_null() || same(*said, neutral)) continue;
    refuse(fmt::format("{} is {}", name, json_text(*said)),
           called(model, config) + " does not compute such a model");
  }
  refuse_layers_of_kinds(theirs, config, refuse);
}

Rotary rotary_of(const HfConfig& config) {
  Rotary rotary;
  for (const HfKey& key : config.keys) {
    if (key.option == "rope_theta") rotary.theta = key.value.get<double>();
    if (key.names.front() == "head_dim") rotary.width = key.value.get<std::int64_t>();
  }
  return rotary;
}

std::string hf_config_text(const HfConfig& config, at::ScalarType dtype, const fs::path& earlier) {
  Json text = {{"architectures", {config.architecture}}, {"model_type", config.types.front()}};
  for (const HfKey& key : config.keys)
    if (!key.unread) set(text, key.names.front(), key.value);
  text.update(config.more);
  const Json before = earlier.empty() ? Json() : read_config(earlier);
  for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (!text.contains(id))
      text[id] = before.is_object() && before.contains(id) ? before[id] : Json();
  if (!text.contains("use_cache")) text["use_cache"] = true;
  text["dtype"] = name_of(dtype);
  text["torch_dtype"] = name_of(dtype);  // the key's name before version 5 of transformers
  return text.dump(2) + "\n";
}

namespace {

// The flat tensor that the optimizer updates for a bucket, gathered from its shards.
at::Tensor whole_bucket(RankRun& executor, const Bucket& bucket) {
  const int slot = bucket.flat.updated();
  at::Tensor part = executor.kept(slot).to(executor.device()).contiguous();
  if (bucket.shard_atoms.empty()) return part;
  Communicator& ranks = executor.group({bucket.shard_atoms, {}});
  at::Tensor all = at::empty({part.numel() * ranks.ways()}, part.options());
  static const std::string label = "gather for export";
  ranks.all_gather(all, part, {"export", &label}).wait();
  return all;
}

}  // namespace

void ExportParameters::finish(RankRun& executor) {
  const at::NoGradGuard no_grad;
  const Program& program = executor.program();
  const Layout whole_layout(program.mesh.atoms().size());
  const bool writes = executor.coordinates() == program.first();
  HfExport::Part part(all_, program.stage);
  const Ledger::Scope scope(executor.ledger(), Category::buffers);
  for (const Bucket& bucket : program.buckets) {
    const at::Tensor flat = whole_bucket(executor, bucket);
    for (const int p : bucket.parameters) {
      const ProgramParameter& parameter = program.parameters[p];
      const Value& value = program.graph->value(parameter.value);
      const at::Tensor whole = executor.redistribute(executor.slice(p, flat), value.dims,
                                                     parameter.stored, whole_layout);
      if (writes && part.wants(value.name)) part.write(value.name, whole);
    }
  }
  if (writes) part.finish();
}

}  // namespace mw
