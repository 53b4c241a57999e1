// The models and mixes that a calibration runs.
#include <fmt/format.h>

#include "app/calibrate/calibrate.h"
#include "app/kit_sample.h"

namespace mw {
namespace {

struct Sizes {
  int layers, hidden, heads, kv_heads, ffn, vocab, sequence, batch, microbatch;
};

Json table_of(const std::string& kind, const Sizes& s) {
  Json model{{"kind", kind},     {"layers", s.layers}, {"hidden", s.hidden},
             {"heads", s.heads}, {"ffn", s.ffn},       {"vocab", s.vocab}};
  if (kind != "gpt") model["kv_heads"] = s.kv_heads;
  if (kind == "moe") {
    model["experts"] = 4;
    model["top_k"] = 2;
  }
  Json table{{"model", model},
             {"data", {{"kind", "synthetic"}}},
             {"sequence", s.sequence},
             {"plan", Json::array()},
             {"batch", s.batch},
             {"optimizer", {{"kind", "adamw"}, {"lr", 1e-4}}},
             {"steps", 1},
             {"threads", 1},
             {"timeout", 120}};
  if (s.microbatch > 0) table["microbatch"] = s.microbatch;
  return table;
}

std::string name_of(const std::string& kind, const Sizes& s) {
  return fmt::format("{} of hidden {}, {} x {} tokens", kind, s.hidden, s.batch, s.sequence);
}

}  // namespace

std::vector<CalibrationRun> calibration_models(const CalibrationSizes& sizes) {
  std::vector<CalibrationRun> runs;
  const auto add = [&](const std::string& kind, const Sizes& s, const char* precision = "fp32") {
    Json table = table_of(kind, s);
    table["precision"] = precision;
    runs.push_back({fmt::format("{}, {}", name_of(kind, s), precision), table});
  };
  const Sizes tiny{2, 32, 2, 2, 80, 64, 16, 4, 4}, small{2, 64, 4, 2, 160, 96, 48, 8, 2},
      middle{2, 128, 4, 4, 352, 256, 128, 8, 8}, thin{1, 256, 8, 2, 40, 40, 96, 4, 4},
      large{1, 320, 5, 5, 880, 320, 256, 4, 4};
  add("llama", tiny);
  add("llama", small);
  add("llama", middle);
  if (sizes.quick) {
    add("llama", {1, 512, 8, 4, 1408, 512, 128, 1, 1});  // products that fill a core
    add("gpt", {1, 96, 4, 4, 384, 256, 64, 8, 4});
    for (const char* precision : {"fp64", "bf16"}) add("llama", small, precision);
    add("llama", {1, 128, 4, 4, 352, 256, 128, 2, 2}, "fp64");
    // bf16 products took longer per flop over many rows than over few, so many are measured too.
    add("llama", {1, 128, 4, 4, 352, 256, 128, 8, 8}, "bf16");
    return runs;
  }
  add("llama", thin);
  add("llama", large);
  add("llama", {1, 512, 8, 4, 1408, 512, 512, 2, 2});
  add("llama", {1, 64, 2, 2, 128, 128, 1536, 1, 1});
  add("llama", {2, 48, 3, 3, 96, 50, 8, 8, 1});
  add("gpt", {2, 96, 4, 4, 384, 256, 64, 8, 4});
  add("gpt", {1, 256, 8, 8, 1024, 256, 256, 4, 4});
  add("gpt", {2, 32, 2, 2, 64, 64, 16, 4, 1});
  add("moe", {2, 64, 4, 4, 128, 128, 64, 4, 2});
  add("moe", {1, 128, 4, 4, 256, 128, 256, 4, 4});
  for (const char* precision : {"fp64", "bf16"}) {
    for (const Sizes& s : {tiny, small, middle, large}) add("llama", s, precision);
    add("gpt", {2, 96, 4, 4, 384, 256, 64, 8, 4}, precision);
    add("moe", {2, 64, 4, 4, 128, 128, 64, 4, 2}, precision);
  }
  return runs;
}

std::vector<CalibrationRun> calibration_mixes(const CalibrationSizes& sizes) {
  const Json read = kit_file("calibration.json");
  std::vector<CalibrationRun> runs;
  for (const Json& mix : read.at("mixes")) {
    if (sizes.quick && !mix.value("quick", false)) continue;
    const Json& s = read.at("sizes").at(mix.at("sizes").get<std::string>());
    Sizes of{s.at(0), s.at(1), s.at(2), s.at(3), s.at(4), s.at(5), s.at(6), s.at(7), s.at(8)};
    // one microbatch of all of a rank's sequences
    if (mix.value("whole", false)) of.microbatch = 0;
    Json table = table_of("llama", of);
    table["plan"] = mix.at("plan");
    runs.push_back({name_of("llama", of), table});
  }
  return runs;
}

}  // namespace mw
