// Turns whatever a plugin throws into an Error that names the plugin.
#include "meshwright/engine/plugin_call.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "meshwright/choice.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_faults.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

// Whether a message begins with a plugin's name: "tp(3) …", "pp.layout …", "sp: …", but not
// "spare …".
bool begins_with(const std::string& message, const std::string& name) {
  if (name.empty() || !message.starts_with(name)) return false;
  const auto next = static_cast<unsigned char>(message.c_str()[name.size()]);
  return std::isalnum(next) == 0 && next != '_';
}

std::string type_of_thrown() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "something of no known type";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  return fmt::format("a value of type {}", status == 0 ? text.get() : type->name());
}

struct FaultLog {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::string> messages;  // by plugin and call
};
FaultLog& fault_log() {
  static FaultLog faults;
  return faults;
}

}  // namespace

void keep_plugin_fault(const std::string& plugin, const std::string& did,
                       const std::string& message) {
  FaultLog& faults = fault_log();
  const std::lock_guard lock(faults.mutex);
  faults.messages.try_emplace({plugin, did}, message);
}

std::vector<std::string> take_plugin_faults(const std::vector<Problem>& said) {
  FaultLog& faults = fault_log();
  const std::lock_guard lock(faults.mutex);
  std::vector<std::string> messages;
  for (const auto& [call, message] : std::exchange(faults.messages, {})) {
    const bool known = std::any_of(said.begin(), said.end(), [&](const Problem& problem) {
      return problem.message.find(message) != std::string::npos;
    });
    if (!known) messages.push_back(message);
  }
  return messages;
}

Problem attributed(const PluginPlace& speaker, Problem problem) {
  std::string begin = speaker.plugin;
  if (!speaker.place.empty()) begin = speaker.place + ": " + begin;
  if (!problem.key.empty()) begin = key_in(speaker.place, problem.key);
  problem.key = key_in(speaker.place, problem.key);
  problem.message = readable(problem.message);
  problem.hint = readable(problem.hint);
  const bool named = speaker.plugin.empty() || begins_with(problem.message, speaker.plugin) ||
                     begins_with(problem.message, speaker.place);
  if (!named) problem.message = begin + ": " + problem.message;
  return problem;
}

std::string thrown_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    const char* text = error.what();
    return text == nullptr || *text == '\0' ? type_of_thrown() : readable(text);
  } catch (const std::string& text) {
    return fmt::format("\"{}\"", readable(text));
  } catch (const char* text) {
    return text == nullptr ? "a null pointer" : fmt::format("\"{}\"", readable(text));
  } catch (int number) {
    return fmt::format("the integer {}", number);
  } catch (long number) {
    return fmt::format("the integer {}", number);
  } catch (...) {
    return type_of_thrown();
  }
}

std::string tried_and_broke(const std::string& message) {
  return fmt::format("left out: {}; it was only tried, and the answer is without it", message);
}

void throw_named(const PluginPlace& speaker, const char* did, Stage stage) {
  try {
    throw;
  } catch (const abi::__forced_unwind&) {  // a thread that is cancelled
    throw;
  } catch (const Error& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) {
      // Errors of a script have their own line. Errors in a run have types (Aborted, WaitedInVain)
      // that the run needs, so they are rethrown as they are.
      if (problem.stage == Stage::script || stage == Stage::run || stop_requested()) throw;
      problem = attributed(speaker, std::move(problem));
      if (problem.code == "plugin.fault") keep_plugin_fault(speaker.plugin, did, problem.message);
    }
    throw Error(std::move(problems));
  } catch (...) {
    const std::string text = thrown_text();
    const std::string fault =
        fmt::format("the plugin {} threw while it {}: {}", quote(speaker.plugin), did, text);
    if (stage != Stage::run) keep_plugin_fault(speaker.plugin, did, fault);
    throw Error(stage, "plugin.fault", speaker.place,
                speaker.place.empty() ? fault : speaker.place + ": " + fault, "mend the plugin");
  }
}

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
  const auto named = named_choice(table);
  if (!named) {
    problems.add(Stage::options, "option.value", path,
                 fmt::format("{}: got {}", path, describe(table)),
                 hint.empty() ? how_to_make(*reach->catalog, kind) : hint);
    return std::nullopt;
  }
  try {
    const std::string& name = named->name;
    Chosen chosen{&reach->catalog->find(kind, name), {}, {name, path}};
    Problems found;
    chosen.values = call_plugin(
        chosen.speaker, "said its options",
        [&] { return chosen.registration->options().read(named->options, path, found); },
        Stage::options);
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
