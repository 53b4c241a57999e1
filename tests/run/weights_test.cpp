// Weights from checkpoints: slices, fused and transposed tensors, names, and what does not fit.
#include "checkpoint/weights.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>

#include "checkpoint/hf_export.h"
#include "support/problems.h"
#include "support/temporary_folder.h"

using mw::Range;

namespace {

mw::WeightSpec spec(std::string name, std::vector<std::int64_t> shape, mw::HfName hf) {
  return {std::move(name), std::move(hf), std::move(shape)};
}

at::Tensor load(const mw::Weights& weights, const mw::WeightSpec& spec,
                const std::vector<Range>& ranges, at::ScalarType dtype = at::kDouble) {
  std::vector<std::int64_t> shape;
  for (const Range& range : ranges) shape.push_back(range.size);
  at::Tensor out = at::empty(shape, dtype);
  weights.load(spec, ranges, out);
  return out;
}

// The frequencies of theta 1e4 over four dims.
at::Tensor inv_freq() {
  return at::pow(1e4, at::tensor({0.0, -0.5})).to(at::kFloat);
}

std::string problems_of(const mw::Weights& weights, const std::vector<mw::WeightSpec>& specs) {
  mw::Problems problems;
  weights.check(specs, problems);
  return mw::test::codes(problems);
}

}  // namespace

TEST_CASE("slices come out of plain, split, fused and transposed tensors") {
  TemporaryFolder folder;
  at::manual_seed(0);
  const at::Tensor q = at::randn({6, 10}, at::kDouble);     // heads 3, head_dim 2
  const at::Tensor o = at::randn({10, 6}, at::kDouble);     // the other way round
  const at::Tensor qkv = at::randn({10, 18}, at::kDouble);  // Conv1D: [in, 3 * out]
  const at::Tensor bias = at::randn({18}, at::kDouble);
  mw::write_safetensors(folder.path() / "w.safetensors",
                        {{"q", q}, {"o", o}, {"qkv", qkv}, {"bias", bias}});
  const mw::Weights weights(folder.path() / "w.safetensors");
  const auto q_spec = spec("q", {3, 2, 10}, {"q"});
  const auto o_spec = spec("o", {10, 3, 2}, {"o"});
  const auto k_spec = spec("k", {3, 2, 10}, {"qkv", true, 1, 3});
  const auto all = std::vector<mw::WeightSpec>{q_spec,
                                               o_spec,
                                               spec("qf", {3, 2, 10}, {"qkv", true, 0, 3}),
                                               k_spec,
                                               spec("v", {3, 2, 10}, {"qkv", true, 2, 3}),
                                               spec("bias q", {3, 2}, {"bias", true, 0, 3}),
                                               spec("bias v", {3, 2}, {"bias", true, 2, 3}),
                                               spec("bias k", {3, 2}, {"bias", true, 1, 3})};
  CHECK(problems_of(weights, all) == "none");

  CHECK(at::equal(load(weights, q_spec, {{1, 2}, {0, 2}, {4, 5}}),
                  q.view({3, 2, 10}).narrow(0, 1, 2).narrow(2, 4, 5)));
  CHECK(at::equal(load(weights, o_spec, {{0, 10}, {2, 1}, {1, 1}}),
                  o.view({10, 3, 2}).narrow(1, 2, 1).narrow(2, 1, 1)));
  const at::Tensor k = qkv.t().narrow(0, 6, 6).reshape({3, 2, 10});
  CHECK(at::equal(load(weights, k_spec, {{1, 2}, {0, 2}, {3, 4}}),
                  k.narrow(0, 1, 2).narrow(2, 3, 4)));
  CHECK(at::equal(load(weights, all.back(), {{2, 1}, {0, 2}}),
                  bias.narrow(0, 6, 6).view({3, 2}).narrow(0, 2, 1)));
  CHECK(load(weights, q_spec, {{0, 0}, {0, 2}, {0, 10}}).numel() == 0);

  // Exported again, in any order and over several files, the file's tensors come back.
  auto specs = all;
  const std::vector<std::vector<std::int64_t>> stored{{6, 10}, {10, 6}, {6, 10}, {6, 10},
                                                      {6, 10}, {6},     {6},     {6}};
  for (std::size_t i = 0; i < specs.size(); ++i) specs[i].stored_shape = stored[i];
  mw::ExportSettings settings;
  settings.folder = folder.path() / "out";
  settings.dtype = at::kDouble;
  settings.most_bytes = 1000;
  settings.hash = "a";
  const auto exported = [&](const mw::ExportSettings& to) {
    // q and its neighbours are one stage's, the fused tensor and its bias another's.
    mw::HfExport out(to, specs, {1, 1, 0, 0, 0, 0, 0, 0}, std::nullopt);
    out.begin();
    for (const int owner : {1, 0}) {
      mw::HfExport::Part part(out, owner);
      for (std::size_t i = specs.size(); i-- > 0;) {
        if (!part.wants(specs[i].name)) continue;
        std::vector<Range> ranges;
        for (const std::int64_t size : specs[i].shape) ranges.push_back({0, size});
        part.write(specs[i].name, load(weights, specs[i], ranges));
      }
      part.finish();
    }
    out.finish();
    return out.lacks();
  };
  CHECK_THAT(exported(settings), Catch::Contains("no model of this kind"));
  CHECK_FALSE(std::filesystem::exists(settings.folder / "config.json"));
  const mw::Weights back(settings.folder);
  CHECK(problems_of(back, all) == "none");
  const auto whole = [&](const char* name, const std::vector<std::int64_t>& shape) {
    std::vector<Range> ranges;
    for (const std::int64_t size : shape) ranges.push_back({0, size});
    return load(back, spec("x", shape, {name}), ranges);
  };
  CHECK(at::equal(whole("q", {6, 10}), q));
  CHECK(at::equal(whole("o", {10, 6}), o));
  CHECK(at::equal(whole("qkv", {10, 18}), qkv));
  CHECK(at::equal(whole("bias", {18}), bias));

  // The same experiment's may be replaced, another's only if that is said.
  exported(settings);
  settings.hash = "b";
  CHECK(mw::test::thrown([&] { exported(settings); }) == "export.taken export");
  settings.overwrite = true;
  exported(settings);
  CHECK(problems_of(mw::Weights(settings.folder), all) == "none");
}

TEST_CASE("config.json is held to the model, key by key") {
  TemporaryFolder folder;
  mw::HfConfig config;
  config.types = {"llama", "mistral"};
  config.keys = {{{"num_hidden_layers"}, 4, "layers"},
                 {{"rope_parameters.rope_theta", "rope_theta"}, 5e5, "rope_theta", 10000.0},
                 {{"rms_norm_eps"}, 1e-5, "norm_eps", 1e-6},
                 {{"hidden_act"}, "silu", "", "silu", {"swish"}},
                 {{"sliding_window"}, nullptr, "window"}};
  config.keys.push_back({{"rope_parameters.rope_type", "rope_scaling.rope_type"}, "default", ""});
  const auto found = [&](const char* text) {
    folder.write("config.json", text);
    mw::Problems problems;
    mw::check_hf_config(mw::config_beside(folder.path()), "llama", config, problems);
    return problems.empty() ? std::string("none") : std::string(mw::Error(problems.list()).what());
  };
  CHECK(mw::config_beside(folder.path()).empty());
  CHECK(found(R"({"model_type": "llama", "num_hidden_layers": 4, "rope_theta": 500000,
                  "rms_norm_eps": 1e-05, "hidden_act": "swish"})") == "none");
  CHECK(found(R"({"model_type": "mistral", "num_hidden_layers": 4, "sliding_window": null,
                  "rope_parameters": {"rope_theta": 500000.0}, "rms_norm_eps": 0.00001})") ==
        "none");
  CHECK_THAT(found(R"({"model_type": "qwen2"})"),
             Catch::Contains("\"qwen2\"") && Catch::Contains("llama or mistral"));
  for (const char* without :
       {R"({"num_hidden_layers": 4, "rope_theta": 5e5, "rms_norm_eps": 1e-5})",
        R"({"model_type": null, "num_hidden_layers": 4})", "{}"})
    CHECK_THAT(found(without), Catch::Contains("does not say the model_type") &&
                                   Catch::Contains("llama or mistral") &&
                                   !Catch::Contains("rope_theta"));
  CHECK_THAT(found(R"({"model_type": ["llama"]})"), Catch::Contains("model_type is [\"llama\"]"));
  const std::string wrong =
      found(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_act": "gelu",
                "sliding_window": 64})");
  for (const char* part :
       {"num_hidden_layers is 2, and the model has layers = 4",
        "rope_theta is not there, which means 10000.0", "rms_norm_eps is not there",
        "hidden_act is \"gelu\"", "sliding_window is 64, and the model has window = nil"})
    CHECK_THAT(wrong, Catch::Contains(part));
  // A name that is right does not hide another one of the same key.
  const std::string both = found(
      R"({"model_type": "llama", "num_hidden_layers": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
          "rope_parameters": {"rope_theta": 5e5, "rope_type": "default", "factor": 1.0},
          "rope_scaling": {"rope_type": "linear"}})");
  for (const char* part : {"rope_theta is 10000.0", "rope_scaling.rope_type is \"linear\""})
    CHECK_THAT(both, Catch::Contains(part));
  // What no model computes, as far as it changes anything.
  const std::string more = found(
      R"({"model_type": "llama", "num_hidden_layers": 4, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
          "quantization_config": {"bits": 4}, "rope_scaling": {"factor": 4.0},
          "partial_rotary_factor": 0.5, "logit_scale": 1.0, "attention_bias": null,
          "mlp_bias": false})");
  for (const char* part :
       {"quantization_config is", "rope_scaling.factor is 4.0", "partial_rotary_factor is 0.5"})
    CHECK_THAT(more, Catch::Contains(part));
  CHECK_THAT(more, !Catch::Contains("logit_scale") && !Catch::Contains("_bias"));
  CHECK_THAT(found("[]"), Catch::Contains("no JSON table"));

  // What is written is what is read.
  folder.write("config.json", mw::hf_config_text(config, at::kFloat, {}));
  mw::Problems problems;
  mw::check_hf_config(mw::config_beside(folder.path()), "llama", config, problems);
  CHECK(problems.empty());
}

TEST_CASE("dtypes convert on loading") {
  TemporaryFolder folder;
  at::manual_seed(0);
  const at::Tensor w = at::randn({4, 4}, at::kDouble);
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    mw::write_safetensors(folder.path() / "w.safetensors", {{"w", w.to(dtype)}});
    const mw::Weights weights(folder.path() / "w.safetensors");
    for (const auto wanted : {at::kFloat, at::kDouble, at::kBFloat16})
      CHECK(at::equal(load(weights, spec("w", {4, 4}, {"w"}), {{0, 4}, {0, 4}}, wanted),
                      w.to(dtype).to(wanted)));
  }
}

TEST_CASE("what does not fit is reported at once, by name") {
  TemporaryFolder folder;
  mw::write_safetensors(folder.path() / "w.safetensors",
                        {{"model.embed_tokens.weight", at::ones({4, 4})},
                         {"model.b", at::ones({4, 5})},
                         {"model.extra", at::ones({1})},
                         {"model.c", at::ones({7, 4})},
                         {"model.layers.0.self_attn.rotary_emb.inv_freq", inv_freq()},
                         {"model.ints", at::arange(3)},
                         {"lm_head.weight", at::ones({4, 4})}});
  const mw::Weights weights(folder.path() / "w.safetensors");
  mw::Problems problems;
  weights.check({spec("a", {4, 4}, {"model.embed_tokens.weight"}), spec("b", {4, 4}, {"model.b"}),
                 spec("c", {2, 4}, {"model.c", false, 0, 3}), spec("d", {4}, {"model.d"}),
                 spec("e", {4}, {"model.e"}), spec("ints", {3}, {"model.ints"})},
                problems, {1e4, 4});
  CHECK(mw::test::codes(problems) ==
        "weights.shape weights; weights.shape weights; weights.shape weights; weights.missing "
        "weights; weights.extra weights");
  const std::string text = mw::Error(problems.list()).what();
  for (const char* at_fault : {"model.b", "model.c", "model.d, model.e", "model.extra", "I64"})
    CHECK_THAT(text, Catch::Contains(at_fault));
  CHECK_THAT(text, !Catch::Contains("inv_freq") && !Catch::Contains("lm_head"));

  // A model with a head of its own does want it.
  CHECK(problems_of(weights, {spec("head", {3}, {"lm_head.weight"})}) ==
        "weights.shape weights; weights.buffer weights; weights.extra weights");
}

TEST_CASE("a module's copies of the embedding and of the head are passed over") {
  const at::Tensor embedding = at::rand({4, 3}), head = at::rand({4, 3});
  const auto found = [&](const at::Tensor& its_embedding, const at::Tensor& its_head) {
    TemporaryFolder folder;
    mw::write_safetensors(folder.path() / "w.safetensors",
                          {{"model.embed_tokens.weight", embedding},
                           {"lm_head.weight", head},
                           {"model.layers.3.embed_tokens.weight", its_embedding},
                           {"model.layers.3.shared_head.head.weight", its_head}});
    return problems_of(mw::Weights(folder.path()),
                       {spec("embedding", {4, 3}, {"model.embed_tokens.weight"}),
                        spec("head", {4, 3}, {"lm_head.weight"})});
  };
  CHECK(found(embedding.clone(), head.clone()) == "none");
  CHECK(found(head.clone(), head.clone()) == "weights.extra weights");
  CHECK(found(embedding.clone(), head + 1) == "weights.extra weights");
}

TEST_CASE("a tensor that no parameter takes is named whatever its numbers are") {
  TemporaryFolder folder;
  const std::string header = R"({"x": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}})";
  const std::uint64_t length = header.size();
  std::ofstream file(folder.path() / "w.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << "1234";
  file.close();
  CHECK(problems_of(mw::Weights(folder.path()), {}) == "weights.extra weights");
}

TEST_CASE("what no parameter takes is passed over for what it holds, not for its name") {
  const std::string rotary = "model.layers.0.self_attn.rotary_emb.inv_freq", mask = "h.0.attn.bias",
                    hides = "h.0.attn.masked_bias", head = "lm_head.weight";
  const at::Tensor table = at::arange(12, at::kFloat).view({4, 3});
  const at::Tensor causal = at::ones({1, 1, 5, 5}, at::kByte).tril();
  const auto found = [&](const std::string& name, const at::Tensor& tensor,
                         mw::Rotary angles = {1e4, 4}) {
    TemporaryFolder folder;
    mw::write_safetensors(folder.path() / "w.safetensors",
                          {{"model.embed_tokens.weight", table}, {name, tensor}});
    mw::Problems problems;
    mw::Weights(folder.path())
        .check({spec("embedding", {4, 3}, {"model.embed_tokens.weight"})}, problems, angles);
    return mw::test::codes(problems);
  };
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    CHECK(found(rotary, inv_freq().to(dtype)) == "none");
  CHECK(found(rotary, inv_freq(), {5e5, 4}) == "weights.buffer weights");
  CHECK(found(rotary, inv_freq(), {1e4, 8}) == "weights.buffer weights");
  CHECK(found(rotary, inv_freq() / 4) == "weights.buffer weights");  // positions interpolated
  CHECK(found(rotary, inv_freq(), {}) == "weights.buffer weights");  // nothing to compare with
  CHECK(found(mask, causal) == "none");
  CHECK(found(mask, causal.to(at::kBool)) == "none");
  CHECK(found(mask, at::ones({1, 1, 5, 5}, at::kByte)) == "weights.buffer weights");
  CHECK(found(mask, causal - causal.tril(-3)) == "weights.buffer weights");  // a window
  CHECK(found(mask, at::zeros({3})) == "weights.buffer weights");
  CHECK(found(hides, at::full({}, -1e4)) == "none");
  CHECK(found(hides, at::zeros({})) == "weights.buffer weights");
  CHECK(found(head, table) == "none");
  CHECK(found(head, table + 1) == "weights.extra weights");
  CHECK(found(head, table.to(at::kHalf)) == "weights.extra weights");  // other bits
  CHECK(found("h.0.self_attn._extra_state", at::zeros({1})) == "weights.extra weights");
}

TEST_CASE("names may lack the family's prefix, as GPT-2's do") {
  TemporaryFolder folder;
  mw::write_safetensors(folder.path() / "w.safetensors", {{"wte.weight", at::ones({2, 3})}});
  const mw::Weights weights(folder.path());
  const auto wte = spec("embedding", {2, 3}, {"transformer.wte.weight"});
  CHECK(problems_of(weights, {wte}) == "none");
  CHECK(at::equal(load(weights, wte, {{0, 2}, {0, 3}}), at::ones({2, 3}, at::kDouble)));

  mw::write_safetensors(folder.path() / "w.safetensors",
                        {{"transformer.wte.weight", at::ones({2, 3})}});
  CHECK(problems_of(mw::Weights(folder.path()), {spec("embedding", {2, 3}, {"wte.weight"})}) ==
        "none");
}

TEST_CASE("a folder with an index is one checkpoint") {
  TemporaryFolder folder;
  mw::write_safetensors(folder.path() / "m-1.safetensors", {{"a", at::ones({2})}});
  mw::write_safetensors(folder.path() / "m-2.safetensors", {{"b", at::zeros({2})}});
  const auto opened = [](const std::filesystem::path& path) {
    return mw::test::thrown([&] { mw::Weights weights(path); });
  };
  CHECK(opened(folder.path()) == "weights.no-index weights");
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})");
  const mw::Weights weights(folder.path());
  CHECK(problems_of(weights, {spec("a", {2}, {"a"}), spec("b", {2}, {"b"})}) == "none");

  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "../m-1.safetensors"}})");
  CHECK(opened(folder.path()) == "weights.outside weights");
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "m-9.safetensors"}})");
  CHECK(opened(folder.path()) == "file.missing weights");
  folder.write("model.safetensors.index.json", "nonsense");
  CHECK(opened(folder.path()) == "weights.index weights");
  CHECK(opened(folder.path() / "none") == "file.missing weights");
}

TEST_CASE("an index that is not of its files is refused, with the tensor and the files") {
  TemporaryFolder folder;
  mw::write_safetensors(folder.path() / "m-1.safetensors",
                        {{"a", at::ones({2})}, {"b", at::ones({2})}});
  mw::write_safetensors(folder.path() / "m-2.safetensors", {{"c", at::zeros({2})}});
  const auto refused = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
    try {
      const mw::Weights weights(folder.path());
    } catch (const mw::Error& error) {
      return mw::test::codes(error.problems()) + ": " + error.what();
    }
    return std::string("none");
  };
  const auto says = [&](const std::string& map, const char* code, const char* what) {
    const std::string said = refused(map);
    CHECK_THAT(said, Catch::StartsWith(code));
    CHECK_THAT(said, Catch::Contains(what));
  };
  const std::string a = R"("a": "m-1.safetensors")", b = R"(, "b": "m-1.safetensors")",
                    c = R"(, "c": "m-2.safetensors")";
  CHECK(refused(a + b + c) == "none");
  says(a + R"(, "b": "m-2.safetensors")" + c, "weights.index",
       "\"b\" is said to be in m-2.safetensors, and m-1.safetensors");
  says(a + b + c + R"(, "d": "m-2.safetensors")", "weights.index",
       "\"d\" is said to be in m-2.safetensors, and no file");
  says(a + c, "weights.index", "m-1.safetensors has \"b\", which the index");
  says(a + b + R"(, "c": "m-3.safetensors")", "file.missing", "m-3.safetensors (for \"c\")");
  says(a + R"(, "b": "")" + c, "weights.index", "says no file for \"b\"");
}

TEST_CASE("numbers that are not finite, or not in the model's precision, are no weights") {
  TemporaryFolder folder;
  const at::Tensor fine = at::full({2, 3}, 60000.0);
  const auto loaded = [&](double number, at::ScalarType to, at::ScalarType computed) {
    at::Tensor tensor = fine.clone();
    tensor[1][2] = number;
    mw::write_safetensors(folder.path() / "w.safetensors", {{"a", fine}, {"b", tensor}});
    const mw::Weights weights(folder.path());
    const auto part = [&](const char* name, std::int64_t from) {
      const at::Tensor out = at::empty({1, 3}, to);
      weights.load(spec("x", {2, 3}, {name}), {{from, 1}, {0, 3}}, out, computed);
    };
    part("a", 1);
    part("b", 0);  // a rank looks at what it keeps
    return mw::test::thrown([&] { part("b", 1); });
  };
  const double infinite = std::numeric_limits<double>::infinity();
  for (const double number : {std::nan(""), infinite, -infinite})
    CHECK(loaded(number, at::kDouble, at::kFloat) == "weights.not-finite weights");
  CHECK(loaded(65519, at::kHalf, at::kHalf) == "none");
  CHECK(loaded(-65520, at::kHalf, at::kHalf) == "weights.range weights");
  CHECK(loaded(65520, at::kFloat, at::kHalf) == "weights.range weights");  // a master is read
  CHECK(loaded(1e38, at::kBFloat16, at::kBFloat16) == "none");

  mw::ExportSettings settings;
  settings.folder = folder.path() / "out";
  mw::WeightSpec one = spec("x", {2, 3}, {"x"});
  one.stored_shape = one.shape;
  mw::HfExport out(settings, {one}, {0}, std::nullopt);
  out.begin();
  mw::HfExport::Part part(out, 0);
  for (const double number : {std::nan(""), infinite})
    CHECK(mw::test::thrown([&] {
            part.write("x", at::full({2, 3}, number));
          }) == "export.not-finite export");
}

TEST_CASE("of several files of a folder those count that transformers takes") {
  const auto save = [](const TemporaryFolder& folder, const char* name, double value) {
    mw::write_safetensors(folder.path() / name, {{"a", at::full({2}, value)}});
  };
  const auto a = spec("a", {2}, {"a"});
  const auto read = [&](const TemporaryFolder& folder) {
    return load(mw::Weights(folder.path()), a, {{0, 2}})[0].item<double>();
  };
  const auto refused = [](const TemporaryFolder& folder) {
    return mw::test::thrown([&] { mw::Weights weights(folder.path()); });
  };
  TemporaryFolder stale;  // save_pretrained leaves an index of shards that it has removed
  save(stale, "model.safetensors", 1);
  stale.write("model.safetensors.index.json", R"({"weight_map": {"a": "gone.safetensors"}})");
  CHECK(read(stale) == 1);
  save(stale, "gone.safetensors", 2);
  save(stale, "model.fp16.safetensors", 3);
  save(stale, "consolidated.safetensors", 4);
  stale.write("pytorch_model.bin", "");
  CHECK(read(stale) == 1);
  stale.write("adapter_config.json", "{}");
  CHECK(refused(stale) == "weights.adapter weights");

  TemporaryFolder alone;
  save(alone, "weights.safetensors", 5);
  CHECK(read(alone) == 5);
  alone.write("pytorch_model-00001-of-00002.bin", "");
  CHECK(refused(alone) == "weights.no-index weights");

  TemporaryFolder pickled;
  pickled.write("pytorch_model.bin", "");
  CHECK(refused(pickled) == "weights.no-index weights");
}
