// Reads a source of data among the options of another one.
#include "inner_source.h"

#include <fmt/core.h>

#include "meshwright/choice.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {

std::shared_ptr<const TokenSource> inner_source(const Values& values, const Json& given,
                                                const std::string& key,
                                                const DataContext& context) {
  const auto choice = named_choice(given);
  if (!choice) {
    throw Error(Stage::options, "option.value", key,
                fmt::format("{} is no source of data", lua_text(given)),
                "mw.shards { … }, mw.text { … }, mw.synthetic {}");
  }
  const Registration& found = values.catalog().find(Kind::data, choice->name, key);
  if (choice->options.contains("sequence")) {
    throw Error(Stage::options, "option.value", key,
                fmt::format("{} has a sequence of its own", choice->name),
                "write sequence in the experiment, or in the data that has it");
  }
  Problems problems;
  Values own = found.options().read(choice->options, values.path(key), problems);
  own.set_reach(values.reach());
  problems.throw_if_any();
  return make<TokenSource>(found, own, context);
}

}  // namespace mw
