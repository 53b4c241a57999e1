// config.json of Hugging Face's transformers: what one beside weights says is held to the model,
// and one is written beside weights that are exported.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "meshwright/error.h"
#include "meshwright/hf_config.h"
#include "meshwright/model.h"

namespace mw {

// What transformers calls the model; nothing where its kind says nothing of it.
std::optional<HfConfig> hf_config_of(const Model& model, std::int64_t sequence);

// The config.json that belongs to weights (a file, or a folder), if there is one; else empty.
std::filesystem::path config_beside(const std::filesystem::path& weights);

// Compares config.json with the model: each key that differs, or a model_type that is another, is a
// Problem (options, weights.config) with both values. `file` may be empty: nothing is compared. A
// file that is no JSON table is one (weights.config-file).
void check_hf_config(const std::filesystem::path& file, const std::string& model,
                     const HfConfig& config, Problems& problems);

// The text of a config.json for weights of that dtype. `earlier`: of the config.json that the
// training started from, where there was one; its ids of special tokens are kept.
std::string hf_config_text(const HfConfig& config, at::ScalarType dtype,
                           const std::filesystem::path& earlier);

}  // namespace mw
