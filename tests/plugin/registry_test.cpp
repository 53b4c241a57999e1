// Plugins: how they are found and loaded, and each way in which that fails.
#include "plugin/registry.h"
#include "support/temporary_folder.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "plugin/module.h"
#include "support/problems.h"

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using mw::PluginRegistry;
using mw::test::thrown;

namespace {

fs::path test_plugins() {
  const char* folder = std::getenv("MESHWRIGHT_TEST_PLUGINS");
  if (folder != nullptr) return folder;
  return fs::read_symlink("/proc/self/exe").parent_path().parent_path() /
         "lib/meshwright/test-plugins";
}

std::string why_not(const std::string& name) {
  PluginRegistry registry({test_plugins()});
  return thrown([&] { registry.find(name); });
}

void copy_with(const fs::path& from, const fs::path& to, std::string what, const std::string& by) {
  std::ifstream in(from, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  std::string bytes = text.str();
  const auto at = bytes.find(what);
  REQUIRE(at != std::string::npos);
  bytes.replace(at, what.size(), by);
  std::ofstream(to, std::ios::binary) << bytes;
}

}  // namespace

TEST_CASE("a good plugin is found by name, its options read, its strategy made") {
  PluginRegistry registry({"/nowhere", test_plugins()});
  const auto& plugin = registry.find("good");
  CHECK(std::string(plugin.version) == "1.2.3");
  mw::Problems problems;
  const auto values = plugin.options().read(mw::Json(2), "plan[1]", problems);
  REQUIRE(problems.empty());
  const auto strategy = plugin.make_strategy(values);
  CHECK(strategy->axes().at(0).ways == 2);
  CHECK(&registry.find("good") == &plugin);
}

TEST_CASE("each way of failing has its own reason") {
  CHECK(why_not("wrong_abi") == "plugin.abi");
  CHECK(why_not("wrong_magic") == "plugin.foreign");
  CHECK(why_not("other_torch") == "plugin.torch");
  CHECK(why_not("other_toolchain") == "plugin.toolchain");
  CHECK(why_not("no_symbol") == "plugin.foreign");
  CHECK(why_not("throws_in_options") == "plugin.fault");
  CHECK(why_not("undefined_symbol") == "plugin.needs-symbol");
  CHECK(why_not("misnamed") == "plugin.misnamed");
  CHECK(why_not("wellnamed") == "plugin.misnamed");
}

TEST_CASE("an unknown plugin is refused") {
  CHECK(why_not("gud") == "plugin.unknown");
  CHECK(why_not("../good") == "plugin.unknown");
  PluginRegistry empty({"/nowhere"});
  CHECK(thrown([&] { empty.find("tp"); }) == "plugin.unknown");
}

TEST_CASE("a dependency that is not there is named") {
  TemporaryFolder folder;
  copy_with(test_plugins() / "good.so", folder.path() / "good.so", "libstdc++.so.6",
            "libstdcxx.so.6");
  PluginRegistry registry({folder.path()});
  CHECK(thrown([&] { registry.find("good"); }) == "plugin.needs-library");
}

TEST_CASE("files that are no modules are listed with the reason") {
  TemporaryFolder folder;
  std::ofstream(folder.path() / "text.so") << "not a module\n";
  std::ofstream(folder.path() / "empty.so");
  std::ofstream(folder.path() / "elf.so") << "\177ELF\2\1\1";
  std::ofstream(folder.path() / "readme.txt") << "not looked at\n";
  fs::create_directory(folder.path() / "folder.so");
  fs::copy(test_plugins() / "good.so", folder.path() / "good.so");
  fs::resize_file(folder.path() / "good.so", fs::file_size(folder.path() / "good.so") / 2);
  PluginRegistry registry({folder.path()});
  const auto files = registry.list();
  REQUIRE(files.size() == 5);
  for (const auto& file : files) {
    INFO(file.file);
    CHECK(file.descriptor == nullptr);
    CHECK_FALSE(file.problem.empty());
  }
  CHECK(thrown([&] { registry.find("text"); }) == "plugin.unloadable");
}

TEST_CASE("two plugins of one name are refused, both files named") {
  TemporaryFolder folder;
  fs::copy(test_plugins() / "good.so", folder.path() / "good.so");
  PluginRegistry registry({folder.path(), test_plugins()});
  CHECK(thrown([&] { registry.find("good"); }) == "plugin.twice");
  std::size_t doubles = 0;
  for (const auto& file : registry.list()) {
    if (file.name() == "good") doubles += file.code == "plugin.twice";
  }
  CHECK(doubles == 2);
  // A script's own path decides, but not twice.
  registry.load(folder.path() / "good.so");
  CHECK_NOTHROW(registry.find("good"));
  CHECK(thrown([&] { registry.load(test_plugins() / "good.so"); }) == "plugin.twice");
}

TEST_CASE("one file reached by two folders is one plugin") {
  TemporaryFolder folder;
  fs::create_symlink(test_plugins() / "good.so", folder.path() / "good.so");
  PluginRegistry registry({folder.path(), test_plugins(), test_plugins()});
  CHECK_NOTHROW(registry.find("good"));
}

TEST_CASE("a file loaded by path may have any name") {
  PluginRegistry registry({});
  CHECK(std::string(registry.load(test_plugins() / "misnamed.so").name) == "wellnamed");
  CHECK_NOTHROW(registry.find("wellnamed"));
  CHECK(thrown([&] { registry.load("./not-there.so"); }) == "plugin.no-file");
}

TEST_CASE("the search path: what is given, then the environment, then the program's own") {
  TemporaryFolder folder;
  ::setenv("MESHWRIGHT_PLUGIN_PATH", "/a::/b", 1);
  const auto path = PluginRegistry::search_path({folder.path().string()});
  ::unsetenv("MESHWRIGHT_PLUGIN_PATH");
  REQUIRE(path.size() == 4);
  CHECK(path[0] == folder.path());
  CHECK(path[1] == "/a");
  CHECK(path[2] == "/b");
  CHECK_THAT(path[3].string(), Contains("lib/meshwright/plugins"));
  CHECK(thrown([] { PluginRegistry::search_path({"/nowhere"}); }) == "plugin.path");
}

TEST_CASE("the head is judged before anything behind it is read") {
  // Sixteen bytes and no more: reading on would be caught by the sanitizers' preset.
  const auto head = std::make_unique<mw::PluginHead>(mw::plugin_head_without_size);
  head->bytes = 16;
  CHECK(mw::judge(head.get()).code == "plugin.abi");
}
