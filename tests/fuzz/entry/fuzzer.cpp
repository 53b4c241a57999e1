// libFuzzer's entry: the reader that the environment variable MESHWRIGHT_FUZZ names gets what
// libFuzzer makes. `fuzz.py` runs this program; with "list" in the variable it prints the names.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "fuzz/readers.h"

namespace {

const mw::fuzz::Reader* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("MESHWRIGHT_FUZZ");
  chosen = mw::fuzz::find_reader(name == nullptr ? "" : name);
  if (chosen != nullptr) return 0;
  for (const mw::fuzz::Reader& reader : mw::fuzz::readers()) fmt::print("{}\n", reader.name);
  std::fflush(stdout);
  std::_Exit(name != nullptr && std::string_view(name) == "list" ? 0 : 2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string fault = mw::fuzz::fault_of(*chosen, {data, size});
  if (fault.empty()) return 0;
  fmt::print(stderr, "{}: fault: {}\n", chosen->name, fault);
  std::abort();
}
