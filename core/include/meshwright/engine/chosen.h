// What a script names by kind and name, such as mw.llama { … }: found in the catalog, its options
// checked, and made by who registered it.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/registration.h"

namespace mw {

// A table such as { kind = "llama", layers = 2 }, as mw.llama { layers = 2 } makes it, read: what
// it names, and its options checked.
struct Chosen {
  const Registration* registration = nullptr;
  Values values;
  Speaker speaker;  // for messages about it
};

// Nothing, and problems, if it names nothing of the kind or its options will not do. `hint`: what
// to write instead; empty: the kind's constructors.
std::optional<Chosen> choose(Kind kind, const Json& table, const std::string& path,
                             const std::shared_ptr<const ScriptReach>& reach,
                             const std::string& hint, Problems& problems);

// As a plugin makes it; null, and problems, if its constructor throws.
template <class Thing, class... Context>
std::shared_ptr<const Thing> make_chosen(const Chosen& chosen, Problems& problems,
                                         const Context&... context) {
  try {
    std::shared_ptr<const Thing> made = call_plugin(
        chosen.speaker, "was made",
        [&] { return make<Thing>(*chosen.registration, chosen.values, context...); },
        Stage::options);
    if (made != nullptr) return made;
    problems.add(Stage::options, "plugin.fault", chosen.speaker.place,
                 fmt::format("{}: {} made nothing", chosen.speaker.place, chosen.speaker.plugin),
                 "mend the plugin");
  } catch (const Error& error) {
    problems.add(error);
  }
  return nullptr;
}

// How a script writes what is there of a kind, for hints.
std::string how_to_make(const Catalog& catalog, Kind kind);

// What scripts have as a function of `mw`: "llama", "microbatch.fit"; empty: nothing of this kind.
std::string constructor_of(Kind kind, const std::string& name);

}  // namespace mw
