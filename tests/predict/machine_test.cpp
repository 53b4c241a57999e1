// This machine's speeds: measured once, kept in a cache that may be damaged or missing.
#include <sys/stat.h>
#include <catch2/catch.hpp>
#include <fstream>

#include "predict/device.h"
#include "setups.h"
#include "support/temporary_folder.h"

using namespace mw;
namespace fs = std::filesystem;

namespace {

struct Folder : TemporaryFolder {
  fs::path file() const { return path() / "devices.json"; }
};

std::string text_of(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

TEST_CASE("This machine is measured once") {
  const Folder folder;
  const Device first = this_device(folder.path());
  CHECK(first.gemm32.rate > 1e8);
  CHECK(first.gemm32.rate > first.gemm64.rate * 0.8);
  CHECK(first.bandwidth > 1e8);
  CHECK(first.cores >= 1);
  CHECK(first.all_cores <= 1);
  for (const LogCurve* shares : {&first.attention, &first.attention_backward}) {
    REQUIRE(shares->points().size() == 3);
    for (const auto& [width, share] : shares->points()) CHECK(share <= 1);
  }
  CHECK(first.memory > (64 << 20));
  const std::string kept = text_of(folder.file());
  const Device second = this_device(folder.path());
  CHECK(second.to_json() == first.to_json());
  CHECK(text_of(folder.file()) == kept);
}

TEST_CASE("What was measured beside busy programs is measured again") {
  const Folder folder;
  this_device(folder.path());
  Json kept = Json::parse(text_of(folder.file()));
  kept.begin().value()["others_cores"] = 99;
  kept.begin().value()["bandwidth"] = 1;
  std::ofstream(folder.file()) << kept;
  CHECK(this_device(folder.path()).bandwidth > 1e8);
  kept = Json::parse(text_of(folder.file()));
  CHECK(kept.begin().value()["bandwidth"] > 1e8);
  CHECK(kept.begin().value()["others_cores"] < 99);
}

TEST_CASE("A damaged cache is measured anew, and other machines in it are kept") {
  const Folder folder;
  const std::string text = GENERATE(as<std::string>{}, "", "{", "[1]", "null");
  std::ofstream(folder.file()) << text;
  CHECK(this_device(folder.path()).gemm32.rate > 1e8);
  Json json = Json::parse(text_of(folder.file()));
  REQUIRE(json.size() == 1);
  for (auto& [key, device] : json.items()) device["gemm32"]["rate"] = "fast";
  json["another machine"] = {{"name", "x"}};
  std::ofstream(folder.file()) << json;
  CHECK(this_device(folder.path()).gemm32.rate > 1e8);
  json = Json::parse(text_of(folder.file()));
  CHECK(json.size() == 2);
  CHECK(json.begin().value()["gemm32"]["rate"].is_number());
}

TEST_CASE("A cache that cannot be written is done without") {
  CHECK(this_device("/proc/no-such-folder").bandwidth > 1e8);
}

TEST_CASE("A device from a description") {
  const Device device = test::round_device();
  CHECK(Device::from_json(device.to_json()).to_json() == device.to_json());
  for (const char* key : {"gemm32", "bandwidth", "memory", "cores"}) {
    Json json = device.to_json();
    json.erase(key);
    CHECK_THROWS(Device::from_json(json));
  }
  Json json = device.to_json();
  json["bandwidth"] = -1;
  CHECK_THROWS(Device::from_json(json));
}

TEST_CASE("Ranks that share cores share their rate") {
  const Device two = test::round_device(2);
  CHECK(two.peak(1, 4) == Approx(2e11));  // by two threads
  CHECK(two.peak(2, 4) == Approx(2e11));
  CHECK(two.peak(8, 4) == Approx(2e11));
  CHECK(two.peak(1, 4, 1) == Approx(1e11));
  CHECK(test::round_device(8).peak(3, 4) == Approx(6e11));  // two threads each
}
