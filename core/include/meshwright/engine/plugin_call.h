// Calls into code of plugins: whatever it throws becomes an Error that names the plugin and where
// the script has it.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "meshwright/error.h"
#include "meshwright/registration.h"

namespace mw {

// A plugin that is called, as messages name it.
struct Speaker {
  std::string plugin;  // "tp"; empty: nobody
  std::string place;   // "plan[2]"; may be empty
};

// The problem as the speaker's. Its key, the name of an option or empty, becomes a path from the
// experiment; its message gets that path in front, or the speaker's place and name, unless it
// begins with either itself: "tp(3) cannot …".
Problem attributed(const Speaker& speaker, Problem problem);

// What is being thrown, for people: an exception's text, a text, "the integer 5", a type's name. To
// be called in a handler.
std::string thrown_text();

// In a handler of what a plugin threw while it `did` ("edited the plan"): throws an Error of this
// stage instead. An Error keeps its stage, code and words, attributed; thrown on as they are: those
// of a script, which say their own line, and in a run (`stage`) all of them.
[[noreturn]] void throw_named(const Speaker& speaker, const char* did, Stage stage = Stage::plan);

template <class Body>
auto call_plugin(const Speaker& speaker, const char* did, Body&& body, Stage stage = Stage::plan) {
  try {
    return body();
  } catch (...) {
    throw_named(speaker, did, stage);
  }
}

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

// As a plugin makes it of its options' defaults, where no script says more than its name.
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

// How a script writes what is there of a kind, for hints.
std::string how_to_make(const Catalog& catalog, Kind kind);

// What scripts have as a function of `mw`: "llama", "microbatch.fit"; empty: nothing of this kind.
std::string constructor_of(Kind kind, const std::string& name);

}  // namespace mw
