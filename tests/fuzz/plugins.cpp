// Plugins, as far as they are read before any of their code is: their files, and descriptors.
#include <cstring>
#include <deque>
#include <vector>

#include "fuzz/readers.h"
#include "registry/module_file.h"

namespace mw::fuzz {
namespace {

const Options& no_options() {
  static const Options none;
  return none;
}

// Not opened: a module that is right would run code of the input's.
void read_module(Bytes input) {
  clear_scratch();
  const ModuleVerdict verdict = look_into_module(file_of("plugin.so", text_of(input)));
  must(verdict.descriptor == nullptr, "a file that was not loaded has a descriptor");
  if (!verdict.code.empty())
    throw Error(Stage::options, verdict.code, "", verdict.problem, verdict.hint);
}

// The head's 16 bytes, where all bits of a number stand for this build's own; then a line for each
// text, where an empty one is a null pointer; then three for each registration.
void read_descriptor(Bytes input) {
  PluginDescriptor descriptor{};
  if (input.size() < sizeof descriptor.head) return;
  std::memcpy(&descriptor.head, input.data(), sizeof descriptor.head);
  if (descriptor.head.abi == UINT32_MAX) descriptor.head.abi = plugin_abi;
  if (descriptor.head.bytes == UINT32_MAX) descriptor.head.bytes = sizeof descriptor;
  std::string text = text_of(input.subspan(sizeof descriptor.head));
  std::deque<std::string> lines;
  const auto line = [&]() -> const char* {
    lines.push_back(take_line(text));
    return lines.back().empty() ? nullptr : lines.back().c_str();
  };
  for (const char** part : {&descriptor.torch, &descriptor.toolchain, &descriptor.name,
                            &descriptor.version, &descriptor.summary})
    *part = line();
  if (descriptor.torch != nullptr && std::strcmp(descriptor.torch, "own") == 0)
    descriptor.torch = built_in().torch;
  if (descriptor.toolchain != nullptr && std::strcmp(descriptor.toolchain, "own") == 0)
    descriptor.toolchain = built_in().toolchain;
  std::vector<Registration> registrations;
  while (!text.empty()) {
    const std::string kind = take_line(text);
    Registration one;
    one.kind = static_cast<Kind>(std::strtoul(kind.c_str(), nullptr, 10));
    one.name = line();
    one.doc = line();
    one.options = &no_options;
    one.maker = kind.ends_with("!") ? nullptr : &lines;
    registrations.push_back(one);
  }
  descriptor.registrations = registrations.data();
  descriptor.count = registrations.size();
  const ModuleVerdict verdict = judge(&descriptor.head);
  if (verdict.descriptor == nullptr)
    throw Error(Stage::options, verdict.code, "", verdict.problem, verdict.hint);
  translate_load_error(text_of(input));
}

const AddReader registered_modules({"modules", read_module, 600});
const AddReader registered_descriptors({"descriptors", read_descriptor, 4000});

}  // namespace
}  // namespace mw::fuzz
