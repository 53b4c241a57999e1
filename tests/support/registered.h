// Things by kind and name, as scripts get them: built in, and of the plugins that ship.
#pragma once

#include <memory>
#include <string>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/registry.h"

namespace mw::test {

// A thread's own: threads stand for processes in some tests, each of which has one.
inline PluginRegistry& registry() {
  thread_local PluginRegistry plugins(PluginRegistry::search_path({}));
  return plugins;
}

// Made of the options that a script would give, which is at `path`; null and problems as there.
template <class Thing, class... Context>
std::shared_ptr<const Thing> made_at(const std::string& path, const std::string& name, Json options,
                                     Problems& problems, const Context&... context) {
  options["kind"] = name;
  const auto reach = std::make_shared<ScriptReach>(ScriptReach{nullptr, {}, &registry()});
  const auto chosen = choose(KindOf<Thing>::kind, options, path, reach, "", problems);
  return chosen ? make_chosen<Thing>(*chosen, problems, context...) : nullptr;
}
template <class Thing, class... Context>
std::shared_ptr<const Thing> made(const std::string& path, const std::string& name,
                                  const Json& options, const Context&... context) {
  Problems problems;
  auto thing = made_at<Thing>(path, name, options, problems, context...);
  problems.throw_if_any();
  return thing;
}

}  // namespace mw::test
