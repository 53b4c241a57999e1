// What the keys of an experiment share: tables of a named kind, and a script's functions.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "base/interrupt.h"
#include "base/json_text.h"
#include "script/read_experiment.h"

namespace mw {

template <class Kind>
std::vector<std::string> names(const std::vector<const Kind*>& kinds) {
  std::vector<std::string> list;
  for (const Kind* kind : kinds) list.push_back(kind->name());
  return list;
}

inline std::string mw_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "mw." : ", mw.") + name;
  return text;
}

// A script's function that fails while ranks run has failed the run, not refused it. The message
// keeps the script's file and line.
using Call = std::function<Json(const std::vector<Json>&)>;
inline Call call_in_run(const ReadContext& context, const Json& function) {
  return [call = context.call, number = function.at(function_key).get<std::int64_t>()](
             const std::vector<Json>& arguments) {
    try {
      return call(number, arguments);
    } catch (const Stopped&) {
      throw;
    } catch (const Error& error) {
      std::vector<Problem> problems = error.problems();
      for (Problem& problem : problems) problem.stage = Stage::run;
      throw Error(std::move(problems));
    }
  };
}

// The options in a tagged table: without the tag.
inline Json untagged(const Json& table, const char* tag) {
  Json rest = table;
  rest.erase(tag);
  return rest;
}

// The kind that a table such as { kind = "llama", … } names; null and a problem if there is none.
template <class Kind>
const Kind* kind_of(const Json& table, const std::string& path,
                    const std::vector<const Kind*>& kinds, Problems& problems) {
  if (table.is_object() && table.contains("kind") && table["kind"].is_string()) {
    for (const Kind* kind : kinds) {
      if (kind->name() == table["kind"].get<std::string>()) return kind;
    }
  }
  problems.add(Stage::options, "option.value", path,
               fmt::format("{}: got {}", path, describe(table)),
               "make it with one of " + mw_list(names(kinds)));
  return nullptr;
}

}  // namespace mw
