// Files of weights and of tokens: safetensors, an index of several such files, token shards.
#include <algorithm>
#include <cstring>

#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "fuzz/readers.h"
#include "meshwright/data.h"
#include "meshwright/engine/registry.h"

namespace mw::fuzz {
namespace {

void use_tensors(const std::string& bytes) {
  const SafetensorsFile file(file_of("model.safetensors", bytes));
  for (const auto& [name, entry] : file.entries()) {
    if (entry.dtype.starts_with("F8") || entry.dtype.starts_with("U")) continue;
    const at::Tensor tensor = file.tensor(name);
    must(tensor.nbytes() == static_cast<std::size_t>(entry.end - entry.begin),
         "a tensor has other bytes than its entry");
    if (tensor.numel() > 0) tensor.to(at::kDouble).sum();
  }
  file.check();
  Problems problems;
  const Weights weights(file.path());
  WeightSpec spec;
  spec.name = spec.hf.name = "a";
  spec.shape = spec.stored_shape = {2, 3};
  weights.check({spec}, problems);
  problems.throw_if_any();
  weights.load(spec, {{0, 2}, {1, 2}}, at::empty({2, 2}, at::kFloat));
}

// As it is; and with the length of its header mended, as what follows would hardly be read else.
void read_safetensors(Bytes input) {
  std::string bytes = text_of(input);
  const std::size_t end = bytes.rfind('}');
  std::uint64_t length = 0;
  if (bytes.size() >= 8) std::memcpy(&length, bytes.data(), sizeof length);
  if (bytes.size() < 8 || length <= bytes.size() - 8 || end == std::string::npos || end < 8) {
    use_tensors(bytes);
    return;
  }
  length = end + 1 - 8;
  std::memcpy(bytes.data(), &length, sizeof length);
  use_tensors(bytes);
}

void read_weight_index(Bytes input) {
  file_of("weights/model.safetensors.index.json", text_of(input));
  static const at::Tensor ones = at::ones({2, 3});
  for (const char* name : {"a", "b"}) {
    const std::filesystem::path file =
        scratch_folder() / "weights" / (std::string(name) + ".safetensors");
    if (!std::filesystem::exists(file)) write_safetensors(file, {{name, ones}});
  }
  Problems problems;
  WeightSpec spec;
  spec.name = spec.hf.name = "a";
  spec.shape = spec.stored_shape = {2, 3};
  Weights(scratch_folder() / "weights").check({spec}, problems);
}

// An index of Megatron's has its tokens in a file beside it; all else is such a file itself.
void read_tokens(Bytes input) {
  const std::string bytes = text_of(input);
  clear_scratch();
  const bool index = bytes.starts_with("MMIDIDX");
  const std::filesystem::path path = file_of(index ? "tokens.idx" : "tokens.bin", bytes);
  if (index) file_of("tokens.bin", std::string(4096, '\1'));
  const auto registrations = registrations_of(built_in());
  const auto shards = std::find_if(registrations.begin(), registrations.end(), [](const auto& one) {
    return one.kind == Kind::data && std::strcmp(one.name, "shards") == 0;
  });
  Problems problems;
  const Values values = shards->options().read(path.string(), "data", problems);
  problems.throw_if_any();
  const DataContext context{7, 4, 70000, {}};
  const auto source = make<TokenSource>(*shards, values, context);
  std::int64_t inputs[4], labels[4];
  for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 40}) {
    source->sample(k, 4, inputs, labels);
    for (int i = 0; i < 4; ++i)
      must(inputs[i] >= 0 && inputs[i] < context.vocab, "a token is none of the model's");
  }
  source->content();
}

const AddReader registered_safetensors({"safetensors", read_safetensors, 1500});
const AddReader registered_indexes({"weights", read_weight_index, 1500});
const AddReader registered_shards({"shards", read_tokens, 1500});

}  // namespace
}  // namespace mw::fuzz
