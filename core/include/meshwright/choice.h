// Reads an option whose value is a name, or a name with options of its own: a scheduler, an
// optimizer.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/registration.h"

namespace mw {

struct NamedChoice {
  std::string name;
  Json options = Json::object();  // the table as the script has it, without the name
};

// Reads a value of the form "NAME", mw.NAME { … }, { kind = "NAME", … } or { "NAME", … }. Returns
// nothing if the value has no name.
std::optional<NamedChoice> named_choice(const Json& given);

// Reads such a value too. Throws Error (options, "option.value") if it has no name: it is no `what`
// ("optimizer").
NamedChoice needed_choice(const Json& given, const std::string& key, const char* what,
                          const char* hint);

// Makes the thing that a script gives at `key` of another thing's options, as the optimizers of
// mw.groups. `what` and `hint` are for the message that it is none: "optimizer", "mw.adamw { … }".
// Throws Error (options); its problems have keys that begin with `key`.
template <class Thing, class... Context>
std::shared_ptr<const Thing> make_inner(const Values& values, const Json& given,
                                        const std::string& key, const char* what, const char* hint,
                                        const Context&... context) {
  const NamedChoice choice = needed_choice(given, key, what, hint);
  const std::string path = values.path(key);
  try {
    Problems problems;
    const Registration& found = values.catalog().find(KindOf<Thing>::kind, choice.name, path);
    Values own = found.options().read(choice.options, path, problems);
    own.set_reach(values.reach());
    problems.throw_if_any();
    return make<Thing>(found, own, context...);
  } catch (const Error& error) {
    Problems named;
    for (Problem problem : error.problems()) {
      if (!problem.key.starts_with(path))
        problem.key = key + (problem.key.empty() ? "" : "." + problem.key);
      named.add(std::move(problem));
    }
    throw Error(named.list());
  }
}

}  // namespace mw
