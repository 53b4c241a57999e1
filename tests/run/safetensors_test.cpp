// Files of the safetensors format: every dtype, hostile files, files that cannot be written.
#include "checkpoint/safetensors.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>

#include "support/problems.h"
#include "support/temporary_folder.h"

namespace {

std::string file_with(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data_bytes, '\1');
}

std::string refused(const std::string& content) {
  TemporaryFolder folder;
  const auto path = folder.write("bad.safetensors", content);
  try {
    const mw::SafetensorsFile file(path);
  } catch (const mw::Error& error) {
    CHECK(error.problems().at(0).stage == mw::Stage::options);
    return mw::test::codes(error.problems());
  }
  return "it was accepted";
}

}  // namespace

TEST_CASE("tensors of every dtype survive a file") {
  TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  at::manual_seed(0);
  std::vector<std::pair<std::string, at::Tensor>> tensors{
      {"flags", at::tensor({1, 0, 1}).to(at::kBool)},
      {"half", at::randn({3, 5}).to(at::kHalf)},
      {"double", at::randn({2, 3, 4}, at::kDouble)},
      {"turned", at::randn({4, 6}).t()},
      {"brain", at::randn({7}).to(at::kBFloat16)},
      {"long", at::arange(5)},
      {"scalar", at::full({}, 2.5)},
      {"nothing", at::empty({0, 3})}};
  mw::write_safetensors(path, tensors, {{"format", "pt"}, {"note", "h\xc3\xa9"}});
  const mw::SafetensorsFile file(path);
  CHECK(file.entries().size() == tensors.size());
  CHECK(file.metadata().at("note") == "h\xc3\xa9");
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    CHECK(file.tensor(name).scalar_type() == tensor.scalar_type());
    CHECK(file.tensor(name).sizes() == tensor.sizes());
    CHECK(at::equal(file.tensor(name), tensor));
  }
  CHECK_THROWS_AS(file.tensor("none"), std::out_of_range);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("data that is not aligned is read all the same") {
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})";
  std::string bytes = file_with(header, 17);
  const double values[] = {1.5, -2.5};
  std::memcpy(bytes.data() + bytes.size() - 16, values, 16);
  TemporaryFolder folder;
  const mw::SafetensorsFile file(folder.write("x", bytes));
  CHECK(at::equal(file.tensor("b"), at::tensor({1.5, -2.5}, at::kDouble)));
}

TEST_CASE("hostile and broken files are refused") {
  const auto entry = [](const std::string& shape, const std::string& offsets,
                        const std::string& dtype = "F32") {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const auto with = [&](const std::string& tensor, std::size_t data = 8) {
    return refused(file_with(R"({"a":)" + tensor + "}", data));
  };
  CHECK(with(entry("[2]", "[0,8]")) == "it was accepted");

  CHECK(refused("") == "safetensors.size");
  CHECK(refused("\1\0\0") == "safetensors.size");
  CHECK(refused(std::string(8, '\xff') + "{}") == "safetensors.size");
  CHECK(refused(std::string("\x40\0\0\0\0\0\0\0{}", 10)) == "safetensors.size");
  CHECK(refused(file_with("not json", 0)) == "safetensors.header");
  CHECK(refused(file_with("[]", 0)) == "safetensors.header");
  CHECK(refused(file_with("{", 0)) == "safetensors.header");
  CHECK(refused(file_with("{\"a\":" + std::string(100000, '['), 0)) == "safetensors.header");
  CHECK(refused(file_with("{\"\xff\":1}", 0)) == "safetensors.header");
  CHECK(with("5") == "safetensors.entry");
  CHECK(with(R"({"dtype":"F32","shape":[2]})") == "safetensors.entry");
  CHECK(with(entry("[-2]", "[0,8]")) == "safetensors.entry");
  CHECK(with(entry("[2.0]", "[0,8]")) == "safetensors.entry");
  CHECK(with(entry("[2]", "[0,8,9]")) == "safetensors.entry");
  CHECK(with(entry("[2]", "[0,8]", "F33")) == "safetensors.dtype");
  CHECK(with(entry("[2]", "[8,0]")) == "safetensors.offsets");
  CHECK(with(entry("[2]", "[4,12]")) == "safetensors.offsets");
  CHECK(with(entry("[2]", "[0,18446744073709551615]")) == "safetensors.entry");
  CHECK(with(entry("[3]", "[0,8]")) == "safetensors.shape");
  CHECK(with(entry("[4611686018427387904,4]", "[0,8]")) == "safetensors.shape");
  CHECK(with(entry("[1]", "[0,4]")) == "safetensors.gap");
  CHECK(with(entry("[1]", "[4,8]")) == "safetensors.gap");
  const std::string a = R"("a":)" + entry("[2]", "[0,8]"), b = R"("b":)" + entry("[2]", "[4,12]");
  CHECK(refused(file_with("{" + a + "," + b + "}", 12)) == "safetensors.overlap");
  CHECK(refused(file_with("{" + a + "," + a + "}", 8)) == "safetensors.twice");
  CHECK(refused(file_with(R"({"__metadata__":{"x":5},)" + a + "}", 8)) == "safetensors.metadata");
}

TEST_CASE("a file that cannot be written is said so, and two of one name") {
  const auto written = [](const std::filesystem::path& path,
                          const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
    return mw::test::thrown([&] { mw::write_safetensors(path, tensors); });
  };
  CHECK(written("/proc/none/x.safetensors", {{"a", at::ones({1})}}) == "file.write");
  TemporaryFolder folder;
  CHECK(written(folder.path() / "x", {{"a", at::ones({1})}, {"a", at::ones({1})}}) ==
        "safetensors.twice");
}

// Not a test of its own: the Python test runs it to read what another library wrote, and back.
TEST_CASE("copy a safetensors file", "[.copy]") {
  const char *from = std::getenv("MESHWRIGHT_COPY_FROM"), *to = std::getenv("MESHWRIGHT_COPY_TO");
  REQUIRE((from && to));
  const mw::SafetensorsFile file(from);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, entry] : file.entries()) tensors.emplace_back(name, file.tensor(name));
  mw::write_safetensors(to, tensors, file.metadata());
}
