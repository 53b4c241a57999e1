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

class Sets final : public SeveralSources {
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

  // As many as if each had those of the smallest: none is read again before that is.
  std::int64_t tokens() const override {
    std::int64_t least = sources_.front()->tokens();
    for (const auto& source : sources_) least = std::min(least, source->tokens());
    return least * static_cast<std::int64_t>(sources_.size());
  }
  std::vector<std::string> sets() const override { return names_; }

 private:
  std::pair<std::size_t, std::int64_t> source_of(std::int64_t k) const override {
    const auto count = static_cast<std::int64_t>(sources_.size());
    const std::int64_t batch = k / batch_;
    return {static_cast<std::size_t>(batch % count), batch / count * batch_ + k % batch_};
  }

  const std::int64_t batch_;
  std::vector<std::string> names_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::data<Sets>("sets", "Several sources of tokens by name, which take turns."));

}  // namespace mw
