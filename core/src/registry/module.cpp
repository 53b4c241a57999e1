// Opens a plugin's shared object and judges its descriptor before any of its code is trusted;
// explains why one cannot be loaded.
#include "meshwright/engine/registry.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <boost/dll/shared_library.hpp>
#include <cstdlib>
#include <cstring>
#include <regex>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "registry/module_file.h"

namespace mw {
namespace {

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? std::string(text.get()) : name;
}

ModuleVerdict refuse(const char* code, std::string problem, std::string hint) {
  return {nullptr, code, std::move(problem), std::move(hint)};
}

constexpr const char* rebuild =
    "rebuild it against this program's SDK: find_package(Meshwright), then meshwright_add_plugin";

}  // namespace

ModuleVerdict judge(const PluginHead* head) {
  const PluginHead& own = plugin_head_without_size;
  if (std::memcmp(head->magic, own.magic, sizeof own.magic) != 0) {
    return refuse(
        "plugin.foreign",
        fmt::format("not a Meshwright plugin: its descriptor starts with {}, not with {}",
                    quote({head->magic, sizeof head->magic}), quote({own.magic, sizeof own.magic})),
        "end the plugin with MESHWRIGHT_PLUGIN(…) of meshwright/plugin.h");
  }
  if (head->abi != own.abi) {
    return refuse(
        "plugin.abi",
        fmt::format("built for plugin ABI {}; this program has plugin ABI {}", head->abi, own.abi),
        rebuild);
  }
  if (head->bytes != sizeof(PluginDescriptor)) {
    return refuse("plugin.abi",
                  fmt::format("its descriptor has {} bytes; this program's has {}", head->bytes,
                              sizeof(PluginDescriptor)),
                  rebuild);
  }
  const auto* descriptor = reinterpret_cast<const PluginDescriptor*>(head);
  for (const char* text : {descriptor->torch, descriptor->toolchain, descriptor->name,
                           descriptor->version, descriptor->summary}) {
    if (text == nullptr) {
      return refuse("plugin.descriptor",
                    "its descriptor lacks one of torch, toolchain, name, version, summary",
                    "make it with MESHWRIGHT_PLUGIN(…) of meshwright/plugin.h");
    }
  }
  if (std::strcmp(descriptor->torch, TORCH_VERSION) != 0) {
    return refuse("plugin.torch",
                  fmt::format("built with torch {}; this program runs torch {}", descriptor->torch,
                              TORCH_VERSION),
                  rebuild);
  }
  if (std::strcmp(descriptor->toolchain, toolchain) != 0) {
    return refuse("plugin.toolchain",
                  fmt::format("built with \"{}\"; this program with \"{}\"", descriptor->toolchain,
                              toolchain),
                  rebuild);
  }
  if (descriptor->registrations == nullptr || descriptor->count == 0) {
    return refuse("plugin.descriptor", "it registers nothing",
                  "make it with MESHWRIGHT_PLUGIN(…) of meshwright/plugin.h");
  }
  for (std::size_t i = 0; i < descriptor->count; ++i) {
    const Registration& one = descriptor->registrations[i];
    if (one.kind < Kind::strategy || one.kind > last_kind) {
      return refuse(
          "plugin.kind",
          fmt::format("registers something of kind {}; this program knows kinds 1 to {}",
                      static_cast<std::uint32_t>(one.kind), static_cast<std::uint32_t>(last_kind)),
          rebuild);
    }
    if (one.name == nullptr || one.doc == nullptr || one.options == nullptr ||
        one.maker == nullptr) {
      return refuse("plugin.descriptor",
                    fmt::format("its {} lacks one of name, doc, options, maker", noun_of(one.kind)),
                    "register it by its kind's own function, such as mw::strategy<Class>()");
    }
  }
  return {descriptor, "", "", ""};
}

std::string kinds_there_are() {
  std::vector<std::string> names;
  for (auto kind = Kind::strategy; kind <= last_kind;
       kind = static_cast<Kind>(static_cast<std::uint32_t>(kind) + 1)) {
    names.emplace_back(name_of(kind));
  }
  return join(names);
}

ModuleVerdict translate_load_error(const std::string& message) {
  std::smatch found;
  static const std::regex missing("([^\\s:]+): cannot open shared object file");
  static const std::regex undefined("undefined symbol: ([A-Za-z0-9_.$]+)");
  static const std::regex version("version `([^']+)' not found");
  if (std::regex_search(message, found, missing)) {
    return refuse("plugin.needs-library",
                  fmt::format("needs {}, which is not found", found[1].str()),
                  "install it, or name its folder in LD_LIBRARY_PATH");
  }
  if (std::regex_search(message, found, undefined)) {
    return refuse("plugin.needs-symbol",
                  fmt::format("needs {}, which neither this program nor its libraries have",
                              demangled(found[1].str())),
                  rebuild);
  }
  if (std::regex_search(message, found, version)) {
    return refuse("plugin.needs-version",
                  fmt::format("needs version {} of a system library, which this machine lacks",
                              found[1].str()),
                  "build it on this machine");
  }
  return refuse("plugin.unloadable", fmt::format("cannot be loaded: {}", message), "");
}

ModuleVerdict open_module(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    return refuse("plugin.no-file",
                  std::filesystem::exists(file, error) ? "not a file" : "there is no such file",
                  "");
  }
  if (ModuleVerdict seen = look_into_module(file); !seen.code.empty()) return seen;
  // Never closed, so that neither its code nor torch's registrations in it go away.
  auto* library = new boost::dll::shared_library();  // NOLINT: lives as long as the process
  try {
    library->load(file, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    auto verdict = judge(&library->get_alias<const PluginHead>(descriptor_symbol));
    if (verdict.descriptor == nullptr) return verdict;
    try {
      for (std::size_t i = 0; i < verdict.descriptor->count; ++i)
        verdict.descriptor->registrations[i].options();
    } catch (...) {
      return refuse("plugin.fault", fmt::format("its options() threw: {}", thrown_text()),
                    "mend the plugin");
    }
    return verdict;
  } catch (const std::exception& thrown) {
    std::string message = thrown.what();
    // Boost puts its own words around dlopen's.
    const std::string mark = "dlerror system message: ";
    if (const auto at = message.find(mark); at != std::string::npos) {
      message = message.substr(at + mark.size());
      if (!message.empty() && message.back() == ')') message.pop_back();
      return translate_load_error(message);
    }
    return refuse("plugin.fault", fmt::format("threw while it was loaded: {}", message),
                  "mend the plugin");
  } catch (...) {
    return refuse("plugin.fault", fmt::format("threw while it was loaded: {}", thrown_text()),
                  "mend the plugin");
  }
}

}  // namespace mw
