// Collects what the libraries register that are linked in, and registers "cpu".
#include "meshwright/engine/registry.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <vector>

#include "comm/cpu_platform.h"

namespace mw {
namespace {

MESHWRIGHT_BUILT_IN(device<CpuPlatform>("cpu", "the cores of this machine, which its ranks share"));

// Filled while libraries are loaded, before main() as a rule: made when it is first asked for.
std::vector<Registration>& linked() {
  static std::vector<Registration> all;
  return all;
}

}  // namespace

BuiltIn::BuiltIn(std::initializer_list<Registration> some) {
  linked().insert(linked().end(), some);
}

const PluginDescriptor& built_in() {
  // Sorted by kind and name: libraries are loaded in any order.
  static const std::vector<Registration> all = [] {
    std::vector<Registration> sorted = linked();
    std::sort(sorted.begin(), sorted.end(), [](const Registration& a, const Registration& b) {
      return std::tuple(a.kind, std::string_view(a.name)) <
             std::tuple(b.kind, std::string_view(b.name));
    });
    return sorted;
  }();
  static const PluginDescriptor descriptor =
      describe_plugin("meshwright", MESHWRIGHT_VERSION, "what is built in", all.data(), all.size());
  return descriptor;
}

}  // namespace mw
