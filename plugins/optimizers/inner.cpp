// Reads an optimizer among the options of another one.
#include "inner.h"

#include <fmt/core.h>

#include "meshwright/choice.h"
#include "meshwright/engine/text.h"

namespace mw {

std::shared_ptr<const Optimizer> inner_optimizer(const Values& values, const Json& given,
                                                 const std::string& key) {
  const auto choice = named_choice(given);
  if (!choice)
    throw Error(Stage::options, "option.value", key,
                fmt::format("{} is no optimizer", lua_text(given)), "mw.adamw { lr = 3e-4 }");
  const std::string path = values.path(key);
  Problems problems;
  try {
    const Registration& found = values.catalog().find(Kind::optimizer, choice->name, path);
    Values own = found.options().read(choice->options, path, problems);
    own.set_reach(values.reach());
    problems.throw_if_any();
    return make<Optimizer>(found, own);
  } catch (const Error& error) {
    Problems named;
    for (Problem problem : error.problems()) {
      if (!problem.key.starts_with(path))
        problem.key = key + (problem.key.empty() ? "" : "." + problem.key);
      named.add(std::move(problem));
    }
    named.throw_if_any();
    throw;
  }
}

}  // namespace mw
