// Calls code of plugins, and turns whatever it throws into an Error that names the plugin and its
// place in the script.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "meshwright/error.h"
#include "meshwright/registration.h"

namespace mw {

// The name and the place of a plugin that is called, for messages.
struct PluginPlace {
  std::string plugin;  // name of the plugin, "tp"; empty: none
  std::string place;   // key of the entry in the script, "plan[2]"; may be empty
};

// Attributes a plugin's problem to the plugin. Its key (the name of an option, or empty) becomes a
// path from the experiment. Its message gets the path in front, or the plugin's place and name,
// unless the message already begins with the name or the place: "tp(3) cannot …".
Problem attributed(const PluginPlace& speaker, Problem problem);

// Describes the exception that is being handled: its text, "the integer 5", or the name of its
// type. To be called in a catch block.
std::string thrown_text();

// Rethrows the exception that a plugin threw while it `did` something ("edited the plan") as an
// Error of `stage`; to be called in a catch block. An Error keeps its stage, code and words, but is
// attributed to the plugin. Errors of a script, which have their own line, are rethrown unchanged,
// and so is every Error if `stage` is Stage::run or the user has asked to stop.
[[noreturn]] void throw_named(const PluginPlace& speaker, const char* did,
                              Stage stage = Stage::plan);

template <class Body>
auto call_plugin(const PluginPlace& speaker, const char* did, Body&& body,
                 Stage stage = Stage::plan) {
  try {
    return body();
  } catch (...) {
    throw_named(speaker, did, stage);
  }
}

// What a script's table such as mw.llama { layers = 2 } names: the registration, and the checked
// options.
struct Chosen {
  const Registration* registration = nullptr;
  Values values;
  PluginPlace speaker;  // for messages
};

// Reads a table that names a registration of `kind`. Returns nothing, and adds problems, if the
// name is unknown or the options are invalid. `hint`: what to write instead; empty: the kind's
// constructors.
std::optional<Chosen> choose(Kind kind, const Json& table, const std::string& path,
                             const std::shared_ptr<const ScriptReach>& reach,
                             const std::string& hint, Problems& problems);

// Makes the object that `chosen` names. Returns null, and adds problems, if its constructor throws.
template <class Thing, class... Context>
std::shared_ptr<Thing> make_chosen(const Chosen& chosen, Problems& problems,
                                   const Context&... context) {
  try {
    std::shared_ptr<Thing> made = call_plugin(
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

// Makes an object with the defaults of all its options.
template <class Thing>
std::shared_ptr<Thing> make_by_default(const Registration& registration) {
  return call_plugin(
      {registration.name, ""}, "was made",
      [&] {
        Problems problems;
        const Values values = registration.options().read(Json::object(), "", problems);
        problems.throw_if_any();
        return make<Thing>(registration, values);
      },
      Stage::options);
}

// A hint that lists the registered names of a kind, and how a script writes them.
std::string how_to_make(const Catalog& catalog, Kind kind);

// The function of `mw` that makes such an object in a script: "llama", "microbatch.fit". Empty: the
// kind has no such functions.
std::string constructor_of(Kind kind, const std::string& name);

}  // namespace mw
