// A plugin consists of classes, and of one line that registers them and makes their file a plugin:
//
//   class TensorParallel : public mw::Strategy {
//    public:
//     static mw::Options options();                          // what tp { … } takes
//     explicit TensorParallel(const mw::Values& values);     // checked against options()
//     std::vector<mw::AxisRequest> axes() const override;
//     void edit(mw::Draft& draft) const override;
//   };
//   MESHWRIGHT_PLUGIN("tp", "1.0.0", "splits heads and ffn over the ranks of an axis",
//                     mw::strategy<TensorParallel>())
//
// A plugin has one registration or several, of any kinds (registration.h). A registration without a
// name has that of the plugin. A plugin includes the headers of its kinds only.
//
//   MESHWRIGHT_PLUGIN("kit", "1.0.0", "what our group trains with",
//                     mw::optimizer<Lion>("lion", "the sign of a running average"),
//                     mw::reduction_hook<TopK>("topk", "the largest elements alone"))
//
// The plugin's file is named NAME.so (tp.so) and lies in a folder of the plugin path. It exports
// one symbol, a constant descriptor. The loader compares the descriptor's head, and then its
// strings, with those of this program before it calls any code of the plugin. Plugins are never
// unloaded, because torch's registrations would not survive that.
#pragma once

#include <torch/version.h>

#include <array>
#include <boost/dll/alias.hpp>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "meshwright/options.h"
#include "meshwright/registration.h"

#ifndef BOOST_DLL_USE_STD_FS
#error \
    "define BOOST_DLL_USE_STD_FS (link Meshwright::sdk): else the module exports Boost's symbols too"
#endif

namespace mw {

// The version of the SDK's binary interface, raised whenever the layout or meaning of anything in
// the SDK changes.
inline constexpr std::uint32_t plugin_abi = 26;

// The start of every descriptor. These 16 bytes never change, so that any version of the program
// can judge any plugin.
struct PluginHead {
  char magic[8];
  std::uint32_t bytes;  // size of the whole descriptor
  std::uint32_t abi;
};
static_assert(sizeof(PluginHead) == 16);

inline constexpr PluginHead plugin_head_without_size = {
    {'M', 'W', 'P', 'L', 'U', 'G', 'I', 'N'}, 0, plugin_abi};

struct PluginDescriptor {
  PluginHead head;
  const char* torch;      // "2.15.0"
  const char* toolchain;  // "gcc12 c++20 cxx11abi1 release"
  const char* name;       // "tp": what scripts call it, and the file's name without ".so"
  const char* version;
  const char* summary;  // one line for `plugins list`
  const Registration* registrations;
  std::size_t count;
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

// Helpers of registrations_of(), whose `parts` are single registrations and arrays of them.
template <std::size_t count>
constexpr void append(std::array<Registration, count>& all, std::size_t& at,
                      const Registration& one) {
  all[at++] = one;
}
template <std::size_t count, std::size_t more>
constexpr void append(std::array<Registration, count>& all, std::size_t& at,
                      const std::array<Registration, more>& parts) {
  for (const Registration& one : parts) all[at++] = one;
}
std::array<char, 1> counted(const Registration&);
template <std::size_t count>
std::array<char, count> counted(const std::array<Registration, count>&);

template <class... Parts>
constexpr auto registrations_of(const char* name, const char* summary, const Parts&... parts) {
  static_assert(sizeof...(parts) > 0, "a plugin registers something");
  std::array<Registration, (std::size_t{0} + ... + sizeof(decltype(counted(parts))))> all{};
  std::size_t at = 0;
  (append(all, at, parts), ...);
  for (Registration& one : all) {
    if (one.name == nullptr) one.name = name;
    if (one.doc == nullptr) one.doc = summary;
  }
  return all;
}

// Makes a plugin's descriptor, with the versions of this build. MESHWRIGHT_PLUGIN calls it.
constexpr PluginDescriptor describe_plugin(const char* name, const char* version,
                                           const char* summary, const Registration* registrations,
                                           std::size_t count) {
  PluginDescriptor descriptor{};
  descriptor.head = plugin_head_without_size;
  descriptor.head.bytes = sizeof(PluginDescriptor);
  descriptor.torch = TORCH_VERSION;
  descriptor.toolchain = toolchain;
  descriptor.name = name;
  descriptor.version = version;
  descriptor.summary = summary;
  descriptor.registrations = registrations;
  descriptor.count = count;
  return descriptor;
}

// MESHWRIGHT_PLUGIN(name, version, summary, registration…)
#define MESHWRIGHT_PLUGIN(name, version, summary, ...)                                           \
  namespace meshwright_plugin_ {                                                                 \
  constexpr auto registrations = ::mw::registrations_of(name, summary, __VA_ARGS__);             \
  extern const ::mw::PluginDescriptor descriptor;                                                \
  constexpr ::mw::PluginDescriptor descriptor =                                                  \
      ::mw::describe_plugin(name, version, summary, registrations.data(), registrations.size()); \
  }                                                                                              \
  BOOST_DLL_ALIAS(meshwright_plugin_::descriptor, meshwright_plugin)

// Registers things of a library that is linked into the program, instead of a plugin that is
// loaded. They are found like built-in things once the library is loaded. To be used at namespace
// scope, any number of times; each registration needs a name and a doc:
//
//   MESHWRIGHT_BUILT_IN(mw::optimizer<Lion>("lion", "the sign of a running average"));
#define MESHWRIGHT_BUILT_IN(...) \
  static const ::mw::BuiltIn MESHWRIGHT_JOINED(meshwright_built_in_, __COUNTER__)({__VA_ARGS__})
#define MESHWRIGHT_JOINED_(a, b) a##b
#define MESHWRIGHT_JOINED(a, b) MESHWRIGHT_JOINED_(a, b)

class BuiltIn {
 public:
  BuiltIn(std::initializer_list<Registration> some);
};

}  // namespace mw
