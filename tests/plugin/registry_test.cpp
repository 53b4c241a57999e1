// Plugins: how they are found and loaded, and each way in which that fails.
#include "meshwright/engine/registry.h"
#include "support/temporary_folder.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "meshwright/model.h"
#include "meshwright/strategy.h"
#include "support/problems.h"

namespace fs = std::filesystem;
using Catch::Contains;
using mw::Kind;
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
  return thrown([&] { registry.plugin(name); });
}

void copy_with(const fs::path& from, const fs::path& to, const std::string& what,
               const std::string& by) {
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
  const auto& plugin = registry.plugin("good");
  CHECK(std::string(plugin.version) == "1.2.3");
  mw::Problems problems;
  const mw::Registration& found = registry.find(mw::Kind::strategy, "good");
  CHECK(&found == plugin.registrations);
  // What it does not say of its own is its plugin's.
  CHECK(std::string(found.doc) == plugin.summary);
  const auto values = found.options().read(mw::Json(2), "plan[1]", problems);
  REQUIRE(problems.empty());
  const auto strategy = mw::make<mw::Strategy>(found, values);
  CHECK(strategy->axes().at(0).ways == 2);
  CHECK(&registry.plugin("good") == &plugin);
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
  CHECK(why_not("reserved") == "plugin.kind");
}

TEST_CASE("a plugin that a build was made without says why, and what to do") {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "left_out.json")
      << R"([{"name": "wires", "kind": "communicator", "summary": "over wires",
              "why": "it has no copper", "hint": "dig"}])";
  PluginRegistry registry({test_plugins(), folder.path()});
  REQUIRE(registry.left_out().size() == 1);
  try {
    registry.find(Kind::communicator, "wires", "key");
    FAIL("it was found");
  } catch (const mw::Error& error) {
    const mw::Problem& problem = error.problems().front();
    CHECK(problem.code == "plugin.left_out");
    CHECK(problem.key == "key");
    CHECK(problem.message == "this build has no communicator \"wires\": it has no copper");
    CHECK(problem.hint == "dig");
  }
  // A device of that name is left out of no build; a file that somebody has built makes up for it.
  CHECK(thrown([&] { registry.find(Kind::device, "wires"); }) == "option.choice");
  fs::copy_file(test_plugins() / "good.so", folder.path() / "wires.so");
  CHECK(registry.left_out().empty());
}

TEST_CASE("a kind that has no number here is refused with those that have") {
  const auto verdict = mw::open_module(test_plugins() / "reserved.so");
  CHECK_THAT(verdict.problem, Contains("kind 99") && Contains("kinds 1 to 16"));
  CHECK(mw::kinds_there_are().find("communicator, model, op, data") != std::string::npos);
}

TEST_CASE("an unknown plugin is refused") {
  CHECK(why_not("gud") == "plugin.unknown");
  CHECK(why_not("../good") == "plugin.unknown");
  PluginRegistry empty({"/nowhere"});
  CHECK(thrown([&] { empty.plugin("tp"); }) == "plugin.unknown");
}

TEST_CASE("a dependency that is not there is named") {
  TemporaryFolder folder;
  copy_with(test_plugins() / "good.so", folder.path() / "good.so", "libstdc++.so.6",
            "libstdcxx.so.6");
  PluginRegistry registry({folder.path()});
  CHECK(thrown([&] { registry.plugin("good"); }) == "plugin.needs-library");
}

TEST_CASE("files that are no modules are listed with the reason") {
  TemporaryFolder folder;
  std::ofstream(folder.path() / "text.so") << "not a module\n";
  std::ofstream(folder.path() / "empty.so") << "";
  std::ofstream(folder.path() / "elf.so") << "\177ELF\2\1\1";
  std::ofstream(folder.path() / "readme.txt") << "not looked at\n";
  fs::create_directory(folder.path() / "folder.so");
  fs::copy(test_plugins() / "good.so", folder.path() / "good.so");
  fs::resize_file(folder.path() / "good.so", fs::file_size(folder.path() / "good.so") / 2);
  PluginRegistry registry({folder.path()});
  const auto files = registry.files();
  REQUIRE(files.size() == 5);
  for (const auto& file : files) {
    INFO(file.file);
    CHECK(file.descriptor == nullptr);
    CHECK_FALSE(file.problem.empty());
  }
  CHECK(thrown([&] { registry.plugin("text"); }) == "plugin.unloadable");
}

TEST_CASE("what files of the path register is listed again where a folder has changed") {
  TemporaryFolder folder;
  PluginRegistry registry({folder.path()});
  const auto strategies = [&] {
    std::vector<std::string> names;
    for (const mw::Registration* one : registry.all(Kind::strategy)) names.emplace_back(one->name);
    return names;
  };
  CHECK(strategies().empty());
  fs::copy(test_plugins() / "good.so", folder.path() / "good.so");
  CHECK(strategies() == std::vector<std::string>{"good"});
  CHECK(strategies() == std::vector<std::string>{"good"});
  registry.plugin("good");
  CHECK(strategies() == std::vector<std::string>{"good"});
  fs::copy(test_plugins() / "good.so", folder.path() / "other.so");  // misnamed, so unusable
  CHECK(strategies() == std::vector<std::string>{"good"});
}

TEST_CASE("two plugins of one name are refused, both files named") {
  TemporaryFolder folder;
  fs::copy(test_plugins() / "good.so", folder.path() / "good.so");
  PluginRegistry registry({folder.path(), test_plugins()});
  CHECK(thrown([&] { registry.plugin("good"); }) == "plugin.twice");
  std::size_t doubles = 0;
  for (const auto& file : registry.files()) {
    if (file.name() == "good") doubles += file.code == "plugin.twice";
  }
  CHECK(doubles == 2);
  // A script's own path decides, but not twice.
  registry.load(folder.path() / "good.so");
  CHECK_NOTHROW(registry.plugin("good"));
  CHECK(thrown([&] { registry.load(test_plugins() / "good.so"); }) == "plugin.twice");
}

TEST_CASE("one file reached by two folders is one plugin") {
  TemporaryFolder folder;
  fs::create_symlink(test_plugins() / "good.so", folder.path() / "good.so");
  PluginRegistry registry({folder.path(), test_plugins(), test_plugins()});
  CHECK_NOTHROW(registry.plugin("good"));
}

TEST_CASE("a file loaded by path may have any name") {
  PluginRegistry registry({});
  CHECK(std::string(registry.load(test_plugins() / "misnamed.so").name) == "wellnamed");
  CHECK_NOTHROW(registry.plugin("wellnamed"));
  CHECK(thrown([&] { registry.load("./not-there.so"); }) == "plugin.no-file");
}

TEST_CASE("the search path: what is given, then the environment, then the program's own") {
  TemporaryFolder folder;
  ::setenv("MESHWRIGHT_PLUGIN_PATH", "/proc::/", 1);
  const auto path = PluginRegistry::search_path({folder.path().string()});
  ::unsetenv("MESHWRIGHT_PLUGIN_PATH");
  REQUIRE(path.size() == 4);
  CHECK(path[0] == folder.path());
  CHECK(path[1] == "/proc");
  CHECK(path[2] == "/");
  CHECK_THAT(path[3].string(), Contains("lib/meshwright/plugins"));
  CHECK(thrown([] { PluginRegistry::search_path({"/nowhere"}); }) == "plugin.path");
  ::setenv("MESHWRIGHT_PLUGIN_PATH", "/nowhere", 1);
  CHECK(thrown([] { PluginRegistry::search_path({}); }) == "plugin.path");
  ::unsetenv("MESHWRIGHT_PLUGIN_PATH");
}

TEST_CASE("what plugins register is found by kind and name, once they are named") {
  PluginRegistry registry({test_plugins()});
  const auto unknown = [&](Kind kind, const std::string& name) {
    return thrown([&] { registry.find(kind, name, "key"); });
  };
  const std::size_t before = registry.list(Kind::optimizer).size();
  CHECK(unknown(Kind::optimizer, "lion") == "option.choice key");
  registry.plugin("kit");
  for (const auto& [kind, name] :
       {std::pair{Kind::optimizer, "lion"}, std::pair{Kind::model, "tiny"},
        std::pair{Kind::data, "counting"}, std::pair{Kind::scheduler, "backwards"},
        std::pair{Kind::hook, "plain"}, std::pair{Kind::microbatch, "halves"},
        std::pair{Kind::recompute, "norms"}, std::pair{Kind::lr_schedule, "halving"},
        std::pair{Kind::packing, "dealt"}}) {
    INFO(name);
    const mw::Registration& found = registry.find(kind, name);
    CHECK(found.kind == kind);
    CHECK(std::string(found.name) == name);
    CHECK(registry.list(kind).back() == &found);
  }
  CHECK(registry.list(Kind::optimizer).size() == before + 1);
  CHECK(unknown(Kind::optimizer, "tiny") == "option.value key");   // a model
  CHECK(unknown(Kind::optimizer, "loin") == "option.choice key");  // near one
  CHECK(unknown(Kind::strategy, "lion") == "plugin.unknown");      // looked for as a file
  CHECK(unknown(Kind::hook, "wrong_abi") == "plugin.abi");         // such a file is there
  CHECK(unknown(Kind::optimizer, "good") == "option.value key");   // as is such a plugin
}

TEST_CASE("a file of its name is loaded for whatever kind is asked for") {
  PluginRegistry registry({test_plugins()});
  CHECK(std::string(registry.find(Kind::strategy, "good").name) == "good");
  CHECK(thrown([&] { registry.find(Kind::model, "kit"); }) == "plugin.lacks");
  CHECK(std::string(registry.find(Kind::model, "tiny").name) == "tiny");  // it has loaded the file
}

TEST_CASE("what is built in is registered as plugins' things are") {
  PluginRegistry registry({});
  mw::Problems problems;
  for (const Kind kind : {Kind::model, Kind::data, Kind::optimizer, Kind::lr_schedule,
                          Kind::microbatch, Kind::recompute, Kind::packing}) {
    const auto all = registry.list(kind);
    CHECK(all.size() >= 2);
    for (const mw::Registration* one : all) {
      INFO(mw::name_of(kind) << " " << one->name);
      CHECK(&registry.find(kind, one->name) == one);
      CHECK_FALSE(std::string(one->doc).empty());
      for (const mw::Option& option : one->options().list()) CHECK_FALSE(option.doc.empty());
    }
  }
  const mw::Registration& gpt = registry.find(Kind::model, "gpt");
  const auto given = gpt.options().read({{"layers", 1}, {"hidden", 4}, {"heads", 2}, {"vocab", 8}},
                                        "model", problems);
  REQUIRE(problems.empty());
  const auto model = mw::make<mw::Model>(gpt, given);
  CHECK(model->name() == "gpt");
  CHECK(model->vocab() == 8);
}

TEST_CASE("a name that is taken, of the program or of another plugin, is refused, both named") {
  PluginRegistry registry({test_plugins()});
  CHECK(thrown([&] { registry.plugin("taken"); }) == "plugin.taken");
  for (const auto& file : registry.files()) {
    if (file.name() == "taken") CHECK(file.code == "plugin.taken");
    if (file.name() == "kit") CHECK(file.problem.empty());
  }
  // A second kit under another name: all that it registers is the first one's.
  TemporaryFolder folder;
  copy_with(test_plugins() / "kit.so", folder.path() / "kat.so", std::string("\0kit\0", 5),
            std::string("\0kat\0", 5));
  PluginRegistry both({test_plugins(), folder.path()});
  both.plugin("kit");
  CHECK(thrown([&] { both.plugin("kat"); }) == "plugin.taken");
  for (const auto& file : both.files()) {
    if (file.name() == "kat") CHECK(file.code == "plugin.taken");
    if (file.name() == "kit") CHECK(file.problem.empty());
  }
}

TEST_CASE("every entry of a descriptor is judged") {
  const mw::Options& (*options)() = &mw::options_of<int>;
  const int maker = 0;
  const auto verdict = [&](mw::Registration one, std::size_t count = 1) {
    const mw::PluginDescriptor plugin = mw::describe_plugin("x", "1.0.0", "", &one, count);
    return mw::judge(&plugin.head).code;
  };
  CHECK(verdict({Kind::model, "x", "", options, &maker}).empty());
  CHECK(verdict({Kind::model, "x", "", options, &maker}, 0) == "plugin.descriptor");
  CHECK(verdict({Kind::model, nullptr, "", options, &maker}) == "plugin.descriptor");
  CHECK(verdict({Kind::model, "x", "", nullptr, &maker}) == "plugin.descriptor");
  CHECK(verdict({Kind::model, "x", "", options, nullptr}) == "plugin.descriptor");
  CHECK(verdict({static_cast<Kind>(99), "x", "", options, &maker}) == "plugin.kind");
  CHECK(verdict({static_cast<Kind>(0), "x", "", options, &maker}) == "plugin.kind");
}

TEST_CASE("the head is judged before anything behind it is read") {
  // Sixteen bytes and no more: reading on would be caught by the sanitizers' preset.
  const auto head = std::make_unique<mw::PluginHead>(mw::plugin_head_without_size);
  head->bytes = 16;
  CHECK(mw::judge(head.get()).code == "plugin.abi");
}
