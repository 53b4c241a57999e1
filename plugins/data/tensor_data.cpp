// `mw.tensors`: samples from a safetensors file. The file has the tensors `tokens` and `labels`,
// and a tensor under the name of each input that the model declares. A sample is one row of each.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "checkpoint/safetensors.h"
#include "common/mapped_file.h"
#include "meshwright/data.h"
#include "meshwright/inputs.h"
#include "meshwright/plugin.h"
#include "sample_order.h"

namespace mw {
namespace {

bool are_indices(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

std::string text_of(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// The smallest and the largest of a tensor of indices.
std::pair<std::int64_t, std::int64_t> range_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {0, 0};
  const auto [least, most] = at::aminmax(tensor.to(at::kLong));
  return {least.item<std::int64_t>(), most.item<std::int64_t>()};
}

// The first number of a table that is no id, with its place: "-2 at row 0, column 5". Labels may be
// -1 and -100. Empty: all are ids.
std::string first_wrong(const at::Tensor& ids, bool of_labels) {
  at::Tensor wrong = ids.lt(0);
  if (of_labels) wrong = wrong.logical_and(ids.ne(-1)).logical_and(ids.ne(-100));
  const at::Tensor places = wrong.nonzero();
  if (places.size(0) == 0) return {};
  const auto row = places[0][0].item<std::int64_t>(), column = places[0][1].item<std::int64_t>();
  return fmt::format("{} at row {}, column {}", ids[row][column].item<std::int64_t>(), row, column);
}

class TensorSource final : public TokenSource, public InputSource {
 public:
  static Options options();
  TensorSource(const Values& values, const DataContext& context);

  std::int64_t vocab() const override { return vocab_; }
  std::int64_t tokens() const override { return tokens_.defined() ? rows_ * sequence_ : 0; }
  bool masks_labels() const override { return masks_; }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override;
  std::string content() const override;
  std::vector<SourceFile> files() const override { return {{file_.path()}}; }
  std::string lacks(const DataInput& input) const override;
  void reals(const DataInput& input, std::int64_t k, float* reals) const override {
    read(file_.tensor(input.name), k, at::from_blob(reals, input.shape, at::kFloat));
  }
  void indices(const DataInput& input, std::int64_t k, std::int64_t* indices) const override {
    read(file_.tensor(input.name), k, at::from_blob(indices, input.shape, at::kLong));
  }

 private:
  void read_rows(Problems& problems);
  void read_tokens(Problems& problems);
  void read_ids(const at::Tensor& tensor, const char* name, Problems& problems);
  // Writes the row of sample k.
  void read(const at::Tensor& tensor, std::int64_t k, at::Tensor to) const {
    const std::int64_t row = sequential_ ? k % rows_ : shuffled_place(k, rows_, seed_);
    to.copy_(tensor[row]);
    file_.check();
  }

  const SafetensorsFile file_;
  const bool sequential_;
  const std::uint64_t seed_;
  const std::int64_t sequence_;
  std::int64_t rows_ = 0, vocab_ = 1;
  at::Tensor tokens_, labels_;  // undefined: the file has none
  bool masks_ = false;          // some labels count nothing
};

Options TensorSource::options() {
  return Options()
      .text("path",
            "a safetensors file, whose tensors have a row for each sample: tokens (rows, sequence) "
            "and labels, or tokens (rows, sequence + 1), whose labels are the next tokens; and the "
            "inputs that a model declares, under their names. Labels of -1 and of -100 count "
            "nothing")
      .positional("path")
      .integer("sequence", "tokens of one sample")
      .optional()
      .at_least(1)
      .unit("tokens")
      .choice("order", {"shuffled", "sequential"},
              "shuffled: rows in an order of the seed's, each once per epoch; sequential: in the "
              "order of the file")
      .fallback("shuffled");
}

[[noreturn]] void refuse_path(const Error& error) {
  std::vector<Problem> problems = error.problems();
  for (Problem& problem : problems) problem.key = "path";
  throw Error(std::move(problems));
}

SafetensorsFile opened(const Values& values) try {
  return SafetensorsFile(values.find_file(values.text("path")));
} catch (const Error& error) {
  refuse_path(error);
}

TensorSource::TensorSource(const Values& values, const DataContext& context)
    : file_(opened(values)),
      sequential_(values.text("order") == "sequential"),
      seed_(static_cast<std::uint64_t>(context.seed)),
      sequence_(context.sequence) {
  Problems problems;
  read_rows(problems);
  problems.throw_if_any();
  read_tokens(problems);
  problems.throw_if_any();
}

void TensorSource::read_rows(Problems& problems) {
  const std::string* first = nullptr;
  for (const auto& [name, entry] : file_.entries()) {
    const std::int64_t rows = entry.shape.empty() ? 0 : entry.shape.front();
    if (first == nullptr) {
      first = &name;
      rows_ = rows;
    } else if (rows != rows_) {
      problems.add(Stage::options, "data.rows", "path",
                   fmt::format("{}: {} has {} rows, and {} has {}", file_.path().string(), name,
                               rows, *first, rows_),
                   "each tensor has a row for each sample");
    }
  }
  if (rows_ > 0 || !problems.empty()) return;
  problems.add(Stage::options, "data.rows", "path",
               fmt::format("{} has no samples", file_.path().string()),
               "each tensor has a row for each sample");
}

void TensorSource::read_tokens(Problems& problems) {
  const auto there = [&](const char* name) { return file_.entries().count(name) > 0; };
  if (!there("tokens")) return;
  tokens_ = file_.tensor("tokens");
  if (there("labels")) labels_ = file_.tensor("labels");
  read_ids(tokens_, "tokens", problems);
  if (labels_.defined()) read_ids(labels_, "labels", problems);
}

void TensorSource::read_ids(const at::Tensor& tensor, const char* name, Problems& problems) {
  const std::int64_t columns = sequence_ + (labels_.defined() ? 0 : 1);
  if (tensor.dim() != 2 || tensor.size(1) != columns) {
    problems.add(Stage::options, "data.shape", "path",
                 fmt::format("{}: {} have the shape {}, and samples of sequence = {} are [{}, {}]",
                             file_.path().string(), name, text_of(tensor.sizes()), sequence_, rows_,
                             columns),
                 labels_.defined() ? "another sequence"
                                   : "another sequence; without labels, a row has one token more");
    return;
  }
  const auto [least, most] =
      are_indices(tensor) ? range_of(tensor) : std::pair<std::int64_t, std::int64_t>{-1, 0};
  const bool of_labels = &tensor == &labels_, numbers = are_indices(tensor);
  masks_ = masks_ || (of_labels && numbers && least < 0);
  std::string wrong;
  if (least < 0) wrong = numbers ? first_wrong(tensor, of_labels) : file_.entries().at(name).dtype;
  if (!wrong.empty())
    problems.add(Stage::options, "data.shape", "path",
                 fmt::format("{}: {} are {}", file_.path().string(), name, wrong),
                 of_labels ? "ids are whole numbers from 0 on; labels of -1 and of -100 count "
                             "nothing"
                           : "ids are whole numbers from 0 on");
  vocab_ = std::max(vocab_, most + 1);
}

void TensorSource::sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                          std::int64_t* labels) const {
  const at::Tensor input = at::from_blob(inputs, {sequence}, at::kLong),
                   label = at::from_blob(labels, {sequence}, at::kLong);
  if (!tokens_.defined()) {
    input.zero_();
    label.zero_();
    return;
  }
  read(tokens_.narrow(1, 0, sequence), k, input);
  read(labels_.defined() ? labels_ : tokens_.narrow(1, 1, sequence), k, label);
  if (!masks_) return;
  // The id of a label that counts nothing is not known: where there is one, it is the next token's.
  for (std::int64_t t = 0; t < sequence; ++t)
    if (labels[t] < 0) labels[t] = -1 - (t + 1 < sequence ? inputs[t + 1] : 0);
}

std::string TensorSource::content() const {
  return fmt::format("{:016x}", MappedFile(file_.path()).digest(most_digested));
}

std::string TensorSource::lacks(const DataInput& input) const {
  const auto found = file_.entries().find(input.name);
  if (found == file_.entries().end()) {
    std::vector<std::string> names;
    for (const auto& [name, entry] : file_.entries()) names.push_back(name);
    return fmt::format("{} has {} alone", file_.path().string(), fmt::join(names, ", "));
  }
  const at::Tensor tensor = file_.tensor(input.name);
  if (tensor.sizes().slice(1) != at::IntArrayRef(input.shape))
    return fmt::format("in {} a sample's is {}, and the model's is {}", file_.path().string(),
                       text_of(tensor.sizes().slice(1)), text_of(input.shape));
  if (input.below == 0) return {};
  if (!are_indices(tensor))
    return fmt::format("in {} it is {}, and the model takes indices", file_.path().string(),
                       found->second.dtype);
  const auto [least, most] = range_of(tensor);
  if (least >= 0 && most < input.below) return {};
  return fmt::format("in {} it has {}, and the model takes indices from 0 to {}",
                     file_.path().string(), least < 0 ? least : most, input.below - 1);
}

}  // namespace

MESHWRIGHT_BUILT_IN(data<TensorSource>(
    "tensors", "Rows of tensors in a safetensors file: tokens, labels, and inputs of a model."));

}  // namespace mw
