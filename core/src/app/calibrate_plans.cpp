// The models and mixes that a calibration runs.
#include <fmt/format.h>

#include "app/calibrate.h"

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

Json entry(const char* plugin, int ways, const Json& more = Json::object()) {
  Json made{{"plugin", plugin}, {"ways", ways}};
  made.update(more);
  return made;
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
  if (sizes.quick) return runs;
  add("llama", middle);
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
  std::vector<CalibrationRun> runs;
  const auto add = [&](const std::string& kind, const Sizes& s, const Json& plan) {
    Json table = table_of(kind, s);
    table["plan"] = plan;
    runs.push_back({name_of(kind, s), table});
  };
  const Sizes tiny{4, 32, 4, 4, 64, 64, 16, 8, 1}, small{4, 64, 4, 4, 160, 96, 32, 16, 2},
      middle{2, 160, 4, 4, 448, 256, 128, 8, 4}, large{2, 256, 8, 8, 704, 256, 256, 8, 4};
  // All of a part's sequences in one microbatch.
  const auto whole = [](Sizes s) {
    s.microbatch = 0;
    return s;
  };
  const auto dp = [](int n) { return entry("dp", n); };
  const auto tp = [](int n) { return entry("tp", n); };
  const auto zero = [](int n, int stage) { return entry("zero", n, {{"stage", stage}}); };
  const auto pp = [](int n, const char* schedule, int chunks = 1) {
    return entry("pp", n, {{"schedule", schedule}, {"chunks", chunks}});
  };
  add("llama", whole(tiny), Json::array({dp(2)}));
  add("llama", tiny, Json::array({tp(2)}));
  add("llama", tiny, Json::array({tp(4)}));
  add("llama", tiny, Json::array({pp(2, "1f1b"), zero(2, 3)}));
  if (sizes.quick) return runs;
  add("llama", small, Json::array({pp(2, "gpipe")}));
  add("llama", whole(small), Json::array({zero(2, 3)}));
  add("llama", middle, Json::array({tp(2)}));
  add("llama", whole(middle), Json::array({zero(2, 1)}));
  add("llama", large, Json::array({dp(2)}));
  add("llama", large, Json::array({pp(2, "1f1b")}));
  add("llama", small, Json::array({entry("sp", 2, {{"form", "ring"}})}));

  add("llama", whole(tiny), Json::array({dp(8)}));
  add("llama", tiny, Json::array({pp(4, "1f1b")}));
  add("llama", tiny, Json::array({pp(2, "looped-bfs", 2), zero(2, 2)}));
  add("llama", small, Json::array({dp(2), tp(2)}));
  add("llama", small, Json::array({pp(4, "1f1b")}));
  add("llama", whole(small), Json::array({zero(4, 3)}));
  add("llama", small, Json::array({pp(2, "1f1b"), dp(2), tp(2)}));
  add("llama", small, Json::array({entry("sp", 4, {{"form", "allgather"}})}));
  add("llama", middle, Json::array({tp(4)}));
  add("llama", whole(middle), Json::array({zero(8, 2)}));
  add("llama", whole(large), Json::array({dp(4)}));
  add("llama", large, Json::array({pp(2, "zb-h1"), tp(2)}));
  return runs;
}

}  // namespace mw
