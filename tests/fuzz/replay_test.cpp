// Each reader on the inputs of its corpus, among which are those that once broke it, and on some
// thousands of mutations of these.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "common/files.h"
#include "fuzz/mutate.h"
#include "fuzz/readers.h"

namespace fs = std::filesystem;
using namespace mw;
using namespace mw::fuzz;

namespace {

fs::path corpora() {
  const char* source = std::getenv("MESHWRIGHT_SOURCE");
  return fs::path(source != nullptr ? source : ".") / "tests/fuzz/corpus";
}

std::vector<std::string> corpus_of(const std::string& reader) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(corpora() / reader)) files.insert(entry.path());
  std::vector<std::string> inputs;
  for (const fs::path& file : files) inputs.push_back(whole_file(file).value());
  return inputs;
}

std::string fault_with(const Reader& reader, const std::string& input) {
  return fault_of(reader, {reinterpret_cast<const std::uint8_t*>(input.data()), input.size()});
}

// Where an input that breaks a reader is kept. It is written before it is read: the process may
// die of it.
fs::path kept_input(const Reader& reader, const std::string& input) {
  const fs::path path = fs::temp_directory_path() / fmt::format("fuzz-{}-input", reader.name);
  std::ofstream(path, std::ios::binary) << input;
  return path;
}

}  // namespace

TEST_CASE("every reader has a corpus, and every corpus a reader") {
  std::set<std::string> names, folders;
  for (const Reader& reader : readers()) names.insert(reader.name);
  for (const auto& entry : fs::directory_iterator(corpora()))
    folders.insert(entry.path().filename().string());
  CHECK(names == folders);
  CHECK(names.size() == readers().size());
}

TEST_CASE("readers refuse what they cannot read, and do nothing worse") {
  for (const Reader& reader : readers()) {
    const std::vector<std::string> corpus = corpus_of(reader.name);
    REQUIRE(!corpus.empty());
    for (std::size_t k = 0; k < corpus.size(); ++k) {
      INFO(fmt::format("input {} of {}", k, reader.name));
      CHECK(fault_with(reader, corpus[k]) == "");
    }
    for (int seed = 0; seed < reader.tries; ++seed) {
      const std::string input = mutated(corpus, static_cast<std::uint64_t>(seed));
      const fs::path kept = kept_input(reader, input);
      INFO(fmt::format("mutation {} of {}, kept as {}", seed, reader.name, kept.string()));
      const std::string fault = fault_with(reader, input);
      CHECK(fault == "");
      if (!fault.empty()) break;
      fs::remove(kept);
    }
  }
}

TEST_CASE("the inputs of each reader are read by it, some to their end") {
  for (const Reader& reader : readers()) {
    INFO(reader.name);
    const std::vector<std::string> corpus = corpus_of(reader.name);
    CHECK(std::any_of(corpus.begin(), corpus.end(), [&](const std::string& input) {
      try {
        reader.read({reinterpret_cast<const std::uint8_t*>(input.data()), input.size()});
        return true;
      } catch (const Error&) {
        return false;
      }
    }));
  }
}

TEST_CASE("what once broke a reader is refused with a reason") {
  struct Broke {
    const char *reader, *input, *code;
  };
  const Broke all[] = {
      {"schedules", "late", "schedule.missing"},
      {"clusters", "large-torus", "cluster.value"},
      {"weights", "deep", "weights.index"},
      {"checkpoints", "deep", "checkpoint.broken"},
      {"checkpoints", "not-whole", "checkpoint.broken"},
      {"checkpoints", "sum-beyond-64-bits", "checkpoint.broken"},
      {"checkpoints", "more-than-there", "checkpoint.lacks"},
      {"calibrations", "deep", "calibration.broken"},
      {"calibrations", "numbers", "calibration.broken"},
      {"modules", "cut", "plugin.unloadable"},
      {"launch", "local", "launch.address"},
      {"messages", "empty", "process.message"},
      {"measured_steps", "long-name", "calibration.steps"},
  };
  for (const auto& [reader, input, code] : all) {
    INFO(fmt::format("{}/{}", reader, input));
    const std::string bytes = whole_file(corpora() / reader / input).value();
    std::set<std::string> codes;
    try {
      find_reader(reader)->read(
          {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
    } catch (const Error& error) {
      for (const Problem& problem : error.problems()) codes.insert(problem.code);
    }
    CHECK(codes.count(code) == 1);
  }
}

TEST_CASE("a fault is told from a refusal") {
  static const auto refuses = [](Bytes) { throw Error(Stage::run, "a.code", "", "refused"); };
  static const auto breaks = [](Bytes) { throw std::out_of_range("index"); };
  CHECK(fault_of({"a", refuses, 1}, {}) == "");
  CHECK(fault_of({"a", breaks, 1}, {}) == "std::out_of_range: index");
}

TEST_CASE("the same seed gives the same mutation") {
  const std::vector<std::string> inputs = {"{\"a\": [1, 22]}", "0F0 0B0"};
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    seen.insert(mutated(inputs, seed));
    CHECK(mutated(inputs, seed) == mutated(inputs, seed));
  }
  CHECK(seen.size() > 150);
}
