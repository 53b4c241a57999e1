// Finds what a table names in the catalog, and reads its options.
#include "meshwright/engine/chosen.h"

#include "meshwright/engine/json_text.h"

namespace mw {

std::string constructor_of(Kind kind, const std::string& name) {
  switch (kind) {
    case Kind::model:
    case Kind::data:
    case Kind::optimizer:
    case Kind::lr_schedule:
      return name;
    case Kind::microbatch:
      return fmt::format("{}.{}", name_of(kind), name);
    default:
      return "";
  }
}

std::string how_to_make(const Catalog& catalog, Kind kind) {
  const auto all = catalog.list(kind);
  const std::string example = all.empty() ? "" : constructor_of(kind, all.front()->name);
  return fmt::format("there are: {}{}", names_of(catalog, kind),
                     example.empty() ? "" : fmt::format("; write mw.{} {{ … }}", example));
}

std::optional<Chosen> choose(Kind kind, const Json& table, const std::string& path,
                             const std::shared_ptr<const ScriptReach>& reach,
                             const std::string& hint, Problems& problems) {
  if (!table.is_object() || !table.contains("kind") || !table["kind"].is_string()) {
    problems.add(Stage::options, "option.value", path,
                 fmt::format("{}: got {}", path, describe(table)),
                 hint.empty() ? how_to_make(*reach->catalog, kind) : hint);
    return std::nullopt;
  }
  try {
    const std::string name = table["kind"].get<std::string>();
    Chosen chosen{&reach->catalog->find(kind, name), {}, {name, path}};
    Json given = table;
    given.erase("kind");
    Problems found;
    chosen.values = call_plugin(
        chosen.speaker, "said its options",
        [&] { return chosen.registration->options().read(given, path, found); }, Stage::options);
    chosen.values.set_reach(reach);
    problems.add(found);
    if (found.empty()) return chosen;
  } catch (const Error& error) {
    for (Problem problem : error.problems()) {
      if (problem.key.empty()) {
        problem.key = path;
        problem.message = path + ": " + problem.message;
      }
      problems.add(std::move(problem));
    }
  }
  return std::nullopt;
}

}  // namespace mw
