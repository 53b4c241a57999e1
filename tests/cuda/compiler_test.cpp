// What the plugin cuda has NVRTC compile, and the files that keep it.
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "compiler.h"
#include "meshwright/engine/files.h"

namespace {

namespace fs = std::filesystem;

constexpr const char* text =
    "extern \"C\" __global__ void kernel(const float* x) { if (x == nullptr) asm(\"trap;\"); }";

std::string compiled(const char* architecture) {
  return cuda::binary(text, architecture, "/no/folder/of/libtorch");
}
std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

// tests/cuda/test_nvrtc.py runs it where NVRTC is, with an empty cache folder.
TEST_CASE("What NVRTC compiles is kept, and a damaged file is compiled anew", "[.][nvrtc]") {
  const fs::path folder = mw::cache_folder() / "kernels";
  REQUIRE_FALSE(fs::exists(folder));
  const std::string code = compiled("sm_90");
  REQUIRE(code.substr(1, 3) == "ELF");
  const auto files = [&] { return std::distance(fs::directory_iterator(folder), {}); };
  REQUIRE(files() == 1);
  const fs::path file = fs::directory_iterator(folder)->path();
  const std::string kept = read(file);
  CHECK(kept.size() == code.size() + 16);

  const fs::file_time_type before = fs::last_write_time(file);
  CHECK(compiled("sm_90") == code);
  CHECK(fs::last_write_time(file) == before);  // read

  for (const std::string& damaged :
       {std::string(), kept.substr(0, 100), kept.substr(0, 99) + "x" + kept.substr(100)}) {
    std::ofstream(file, std::ios::binary) << damaged;
    CHECK(compiled("sm_90") == code);
    CHECK(read(file) == kept);
  }
  CHECK(compiled("sm_80") != code);
  CHECK(files() == 2);
  CHECK_THROWS_WITH(cuda::binary("extern \"C\" __global__ void kernel() { wrong; }", "sm_90", ""),
                    Catch::Contains("identifier \"wrong\" is undefined"));
  CHECK(files() == 2);
}
