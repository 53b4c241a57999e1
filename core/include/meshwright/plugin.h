// How a plugin is written: a class, and one line that makes its file a plugin.
//
//   class TensorParallel : public mw::Strategy {
//    public:
//     static mw::Options options();                          // what tp { … } takes
//     explicit TensorParallel(const mw::Values& values);     // checked against options()
//     std::vector<mw::AxisRequest> axes() const override;
//     void edit(mw::Draft& draft) const override;
//   };
//   MESHWRIGHT_PLUGIN(TensorParallel, "tp", "1.0.0", "splits heads and ffn over the ranks of an
//   axis")
//
// The file is called NAME.so (tp.so) and lies in a folder of the plugin path. It exports one
// symbol, a constant descriptor; the loader compares its head and then its strings with this
// program's own before it calls anything in it. Plugins are never unloaded: torch's registrations
// do not survive it.
#pragma once

#include <torch/version.h>

#include <boost/dll/alias.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"
#include "meshwright/strategy.h"

#ifndef BOOST_DLL_USE_STD_FS
#error \
    "define BOOST_DLL_USE_STD_FS (link Meshwright::sdk): else the module exports Boost's symbols too"
#endif

namespace mw {

// Raised whenever the layout or meaning of anything in the SDK changes.
inline constexpr std::uint32_t plugin_abi = 4;

// What a plugin brings. The number says which of the descriptor's makers is set.
enum class PluginKind : std::uint32_t { strategy = 1 };

// Frozen for ever: every later version starts with these 16 bytes, so that any program can judge
// any plugin.
struct PluginHead {
  char magic[8];
  std::uint32_t bytes;  // of the whole descriptor
  std::uint32_t abi;
};
static_assert(sizeof(PluginHead) == 16);

inline constexpr PluginHead plugin_head_without_size = {
    {'M', 'W', 'P', 'L', 'U', 'G', 'I', 'N'}, 0, plugin_abi};

struct PluginDescriptor {
  PluginHead head;
  const char* torch;      // "2.11.0"
  const char* toolchain;  // "gcc12 c++20 cxx11abi1 release"
  const char* name;       // "tp": what scripts call it, and the file's name without ".so"
  const char* version;
  const char* summary;  // one line for `plugins list`
  PluginKind kind;
  const Options& (*options)();
  std::unique_ptr<Strategy> (*make_strategy)(const Values& values);
};

#define MESHWRIGHT_TEXT_OF_(x) #x
#define MESHWRIGHT_TEXT_OF(x) MESHWRIGHT_TEXT_OF_(x)
#if defined(__clang__)
#define MESHWRIGHT_COMPILER "clang" MESHWRIGHT_TEXT_OF(__clang_major__)
#else
#define MESHWRIGHT_COMPILER "gcc" MESHWRIGHT_TEXT_OF(__GNUC__)
#endif
// _GLIBCXX_DEBUG changes the layout of containers; NDEBUG changes no layout of the SDK.
#ifdef _GLIBCXX_DEBUG
#define MESHWRIGHT_CONTAINERS "debug"
#else
#define MESHWRIGHT_CONTAINERS "release"
#endif
inline constexpr const char* toolchain = MESHWRIGHT_COMPILER
    " c++20 cxx11abi" MESHWRIGHT_TEXT_OF(_GLIBCXX_USE_CXX11_ABI) " " MESHWRIGHT_CONTAINERS;

// A descriptor with everything but the plugin's own part filled in. The macro below calls it.
constexpr PluginDescriptor describe_plugin(const char* name, const char* version,
                                           const char* summary, PluginKind kind,
                                           const Options& (*options)()) {
  PluginDescriptor descriptor{};
  descriptor.head = plugin_head_without_size;
  descriptor.head.bytes = sizeof(PluginDescriptor);
  descriptor.torch = TORCH_VERSION;
  descriptor.toolchain = toolchain;
  descriptor.name = name;
  descriptor.version = version;
  descriptor.summary = summary;
  descriptor.kind = kind;
  descriptor.options = options;
  return descriptor;
}

template <class Class>
const Options& options_of() {
  static const Options options = Class::options();
  return options;
}

template <class Class>
constexpr PluginDescriptor describe_strategy(const char* name, const char* version,
                                             const char* summary) {
  PluginDescriptor descriptor =
      describe_plugin(name, version, summary, PluginKind::strategy, &options_of<Class>);
  descriptor.make_strategy = [](const Values& values) -> std::unique_ptr<Strategy> {
    return std::make_unique<Class>(values);
  };
  return descriptor;
}

#define MESHWRIGHT_PLUGIN(Class, name, version, summary)      \
  namespace meshwright_plugin_ {                              \
  extern const ::mw::PluginDescriptor descriptor;             \
  constexpr ::mw::PluginDescriptor descriptor =               \
      ::mw::describe_strategy<Class>(name, version, summary); \
  }                                                           \
  BOOST_DLL_ALIAS(meshwright_plugin_::descriptor, meshwright_plugin)

// Plugins by name, as the planner sees them. The program's registry implements it.
class PluginCatalog {
 public:
  virtual ~PluginCatalog() = default;
  // Throws Error (options) if there is none (with the nearest name), if two files claim the name,
  // or if the file is broken (with the reason). The descriptor lives as long as the process.
  virtual const PluginDescriptor& find(const std::string& name) = 0;
  // Names to be had, without loading anything.
  virtual std::vector<std::string> names() const = 0;
};

}  // namespace mw
