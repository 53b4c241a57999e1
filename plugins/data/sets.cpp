// Sets of samples by name, which take turns: what `evaluate.data` is with several sources.
//
// sets { sets = { web = mw.text "web", code = mw.text "code" } }: batch b of the experiment's size
//   is of set b mod their number, in the order of their names.
#include <fmt/format.h>

#include <algorithm>

#include "inner_source.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

class Sets final : public TokenSource {
 public:
  static Options options() {
    return Options().any("sets", "sources by name: { web = mw.text { … }, code = mw.text { … } }");
  }
  Sets(const Values& values, const DataContext& context) : batch_(context.batch) {
    const Json given = without_hidden(values.at("sets"));
    if (!given.is_object() || given.empty())
      throw Error(Stage::options, "option.value", "",
                  fmt::format("{} is no source of data, and no sources by name", lua_text(given)),
                  "data = mw.text { … }, or data = { web = mw.text { … }, code = mw.text { … } }");
    for (const auto& [name, entry] : given.items()) names_.push_back(name);
    std::sort(names_.begin(), names_.end());
    Problems problems;
    for (const std::string& name : names_) {
      try {
        sources_.push_back(inner_source(values, values.at("sets").at(name), name, context));
      } catch (const Error& error) {
        problems.add(error);
      }
    }
    problems.throw_if_any();
  }

  std::int64_t vocab() const override {
    return most([](const TokenSource& source) { return source.vocab(); });
  }
  // As many as if each had those of the smallest: none is read again before that is.
  std::int64_t tokens() const override {
    std::int64_t least = sources_.front()->tokens();
    for (const auto& source : sources_) least = std::min(least, source->tokens());
    return least * static_cast<std::int64_t>(sources_.size());
  }
  bool masks_labels() const override {
    return most([](const TokenSource& source) { return source.masks_labels() ? 1 : 0; }) > 0;
  }
  bool has_documents() const override {
    return most([](const TokenSource& source) { return source.has_documents() ? 1 : 0; }) > 0;
  }
  std::vector<std::string> sets() const override { return names_; }
  std::vector<std::int64_t> documents(std::int64_t k, std::int64_t sequence) const override {
    const auto [source, number] = source_of(k);
    return source->documents(number, sequence);
  }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override {
    const auto [source, number] = source_of(k);
    source->sample(number, sequence, inputs, labels);
  }
  std::string content() const override {
    std::string all;
    for (const auto& source : sources_) all += source->content() + ";";
    return all;
  }

 private:
  template <class Number>
  std::int64_t most(const Number& number) const {
    std::int64_t most = 0;
    for (const auto& source : sources_) most = std::max<std::int64_t>(most, number(*source));
    return most;
  }

  std::pair<const TokenSource*, std::int64_t> source_of(std::int64_t k) const {
    const auto count = static_cast<std::int64_t>(sources_.size());
    const std::int64_t batch = k / batch_;
    return {sources_[static_cast<std::size_t>(batch % count)].get(),
            batch / count * batch_ + k % batch_};
  }

  const std::int64_t batch_;
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<const TokenSource>> sources_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::data<Sets>("sets", "Several sources of tokens by name, which take turns."));

}  // namespace mw
