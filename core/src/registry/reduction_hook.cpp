// Reads the option by which a strategy takes a reduction hook.
#include "meshwright/reduction_hook.h"

#include <fmt/format.h>

#include <map>

#include "meshwright/choice.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {
namespace {

// Finds the hooks that a script names. Each name with its options makes one hook.
class Hooks {
 public:
  Hooks(const Values& values, std::string key, std::string choices)
      : catalog_(values.catalog()),
        key_(std::move(key)),
        gathers_(!choices.empty()),
        choices_(std::move(choices)),
        path_(values.path(key_)),
        reach_(values.reach()) {}

  // `given`: "none", which gives null; a name; or a table of a name and options. Throws Error
  // (options) for anything else.
  Hook named(const Json& given) {
    if (given == "none") return nullptr;
    const auto choice = named_choice(given);
    if (!choice) {
      throw Error(Stage::options, "option.choice", key_,
                  fmt::format("got {}; there are {}, or a function", lua_text(given), list()),
                  "leave it out for a plain collective");
    }
    Hook& made = made_[given];
    if (made != nullptr) return made;
    const Registration& found = catalog_.find(Kind::hook, choice->name, key_);
    Problems problems;
    Values values = found.options().read(choice->options, path_, problems);
    problems.throw_if_any();
    values.set_reach(reach_);
    std::unique_ptr<ReductionHook> hook = make<ReductionHook>(found, values);
    if (hook != nullptr && !values.json().empty()) hook->set_options(" " + values.json().dump());
    return made = std::move(hook);
  }

  std::string list() const {
    return choices_.empty() ? "\"none\", " + names_of(catalog_, Kind::hook, true) : choices_;
  }

  // The hook, if it can reduce the bucket; else throws, with the option's key.
  Hook fit_for(const Hook& hook, const BucketShape& bucket) const {
    // What a hook asks of a bucket is about sums.
    if (hook == nullptr || gathers_) return hook;
    try {
      hook->check(bucket);
    } catch (const Error& error) {
      std::vector<Problem> problems = error.problems();
      for (Problem& problem : problems) problem.key = key_;
      throw Error(std::move(problems));
    }
    return hook;
  }

  // The hook that a function of the script has returned for a bucket.
  Hook returned(const Json& given, const BucketShape& bucket) {
    try {
      return named(given);
    } catch (const Error& error) {
      // Rethrown: there is such a hook, but its options were refused or it could not be made.
      if (error.problems().front().code != "option.choice") throw;
      throw Error(Stage::plan, "function.result", key_,
                  fmt::format("the function returned {} for {}",
                              given.is_null() ? "nothing" : lua_text(given), bucket.name),
                  fmt::format("return one of {}", list()));
    }
  }

 private:
  Catalog& catalog_;
  std::string key_;
  const bool gathers_;
  std::string choices_, path_;
  std::shared_ptr<const ScriptReach> reach_;
  std::map<Json, Hook> made_;
};

Json describe(const BucketShape& bucket) {
  return {{"name", bucket.name},
          {"bytes", bucket.elements * bucket.element},
          {"parameters", bucket.parameters},
          {"ways", bucket.ways}};
}

}  // namespace

HookChoice read_hook(const Values& values, const std::string& key, std::string choices) {
  const auto hooks = std::make_shared<Hooks>(values, key, std::move(choices));
  if (values.is_function(key)) {
    return {[call = values.function(key), hooks](const BucketShape& bucket) {
              return hooks->fit_for(hooks->returned(call({describe(bucket)}), bucket), bucket);
            },
            "the hook that the script chooses for each bucket"};
  }
  const Hook hook = hooks->named(values.at(key));
  if (hook == nullptr) return {};
  return {[hook, hooks](const BucketShape& bucket) { return hooks->fit_for(hook, bucket); },
          fmt::format("the hook {}", hook->name())};
}

}  // namespace mw
