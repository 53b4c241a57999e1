// Files that are cut off while they are mapped: an error that names them, and the process lives.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "common/files.h"
#include "common/mapped_file.h"
#include "meshwright/data.h"
#include "meshwright/engine/files.h"
#include "meshwright/error.h"
#include "support/problems.h"
#include "support/registered.h"
#include "support/temporary_folder.h"

namespace {

constexpr std::int64_t pages = 64 << 10;  // bytes of some pages, whatever their size

void cut(const std::filesystem::path& path, std::int64_t bytes) {
  REQUIRE(::truncate(path.c_str(), bytes) == 0);
}

}  // namespace

TEST_CASE("a mapped file that is cut off reads as zeros, and says so") {
  TemporaryFolder folder;
  const auto path = folder.write("a.bin", std::string(4 * pages, 'x'));
  const auto other = folder.write("b.bin", std::string(4 * pages, 'y'));
  const mw::MappedFile file(path), whole(other);
  CHECK(file.data()[4 * pages - 1] == 'x');
  file.check();
  cut(path, pages);
  CHECK(file.data()[3 * pages] == 0);
  CHECK(file.data()[4 * pages - 1] == 0);
  CHECK(file.data()[0] == 'x');
  CHECK(mw::test::thrown([&] { file.check(); }) == "file.changed");
  CHECK(whole.data()[4 * pages - 1] == 'y');
  whole.check();
}

TEST_CASE("a file that a user names is replaced by another of its kind alone") {
  TemporaryFolder folder;
  const std::string path = folder.path() / "out", other = folder.path() / "./out";
  const auto left = [&](const std::string& text, mw::OutputKind kind) {
    REQUIRE(mw::replace_whole(path, text) == 0);
    const std::string code = mw::test::thrown([&] { mw::write_output({"-o", path, kind}, "new"); });
    CHECK(mw::whole_file(path) == (code == "none" ? "new" : text));
    CHECK(mw::test::thrown([&] {
            mw::check_outputs({{"-o", path, kind}});
          }) == (mw::whole_file(path) == "new" ? "page.foreign" : code));
    return code;
  };
  using mw::OutputKind;
  for (const auto& [kind, own] :
       {std::pair{OutputKind::page, "<!doctype html>\n<!-- meshwright.page/1: made"},
        {OutputKind::drawing, "<svg xmlns=\"\" font-family=\"system-ui, sans-serif\">"},
        {OutputKind::trace, "{\"displayTimeUnit\":\"ms\",\"otherData\":{}"},
        {OutputKind::runs_table, "\"run\",\"hash\"\n"},
        {OutputKind::runs_table, "{\"run\":\"a\"}\n"},
        {OutputKind::schedule, "0F0,0F1\n"},
        {OutputKind::schedule, ",,12B0\n"},
        {OutputKind::calibration, "{\n \"schema\": \"meshwright.calibration/4\""},
        {OutputKind::logits, "12345678{\"__metadata__\":{\"hash\":\"0\""}}) {
    INFO(own);
    CHECK(left(own, kind) == "none");
    CHECK(left("", kind) == "none");
    for (const char* foreign : {"{", "x", "12345678{\"a\"", "local mw = require \"meshwright\"\n",
                                "<svg>", "<!doctype html>\n<p>", "1,2\n", "\x89HDF\r\n"})
      CHECK(left(foreign, kind) == "page.foreign");
  }
  const auto refused = [](const std::vector<mw::OutputFile>& files, const std::string& input) {
    return mw::test::thrown([&] { mw::check_outputs(files, {{"the script", input}}); });
  };
  const mw::OutputFile any{"-o", path, OutputKind::any}, again{"--svg", other, OutputKind::any};
  CHECK(refused({any}, folder.path() / "none") == "none");
  CHECK(refused({any}, other) == "file.write");
  CHECK(refused({any, again}, "") == "file.write");
  std::filesystem::remove(path);
  CHECK(refused({any, again}, "") == "file.write");  // neither is there yet
  CHECK(
      refused({{"-o", "/dev/null", OutputKind::page}, {"--svg", "/dev/null", OutputKind::drawing}},
              "") == "none");
}

TEST_CASE("what is no regular file is refused at once, however it is read") {
  TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe.safetensors", link = folder.path() / "link";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);  // that nobody writes to, or ever reads
  std::filesystem::create_symlink(pipe, link);
  for (const auto& [path, kind] : {std::pair{pipe, "a named pipe"},
                                   {link, "a named pipe"},
                                   {folder.path(), "a folder"},
                                   {std::filesystem::path("/dev/zero"), "a device"}}) {
    INFO(path);
    CHECK(mw::irregular(path) == kind);
    CHECK(mw::test::thrown([&] { mw::MappedFile file(path); }) == "file.read");
    CHECK(mw::test::thrown([&] { mw::SafetensorsFile file(path); }) == "file.read");
    CHECK_FALSE(mw::whole_file(path).has_value());
    CHECK(mw::read_json(path).is_null());
    CHECK(mw::read_cache(path).empty());
    CHECK(mw::test::thrown([&] {
            mw::write_safetensors(path, {{"a", at::ones({1})}});
          }) == "file.write");
  }
  CHECK(mw::test::thrown([&] {
          mw::write_output({"-o", pipe, mw::OutputKind::any}, "text");
        }) == "file.write");
  CHECK(mw::replace_whole(pipe, "text") == ENXIO);
  CHECK(std::filesystem::is_fifo(pipe));
  // A device stays one, and so does a pipe that is read.
  CHECK(mw::replace_whole("/dev/null", "text") == 0);
  CHECK(std::filesystem::is_character_file("/dev/null"));
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  REQUIRE(reader >= 0);
  CHECK(mw::replace_whole(link, "text") == 0);
  char text[8] = {};
  CHECK(::read(reader, text, sizeof text) == 4);
  CHECK(std::filesystem::is_fifo(pipe));
  ::close(reader);
  // A pipe without a name, as a shell's <(command) makes one, is read to its end.
  int ends[2] = {-1, -1};
  REQUIRE(::pipe(ends) == 0);
  CHECK(::write(ends[1], "text", 4) == 4);
  ::close(ends[1]);
  CHECK(mw::whole_file("/dev/fd/" + std::to_string(ends[0])) == "text");
  ::close(ends[0]);
  CHECK(mw::irregular(folder.path() / "none").empty());
}

TEST_CASE("a file that is cut off within its last page is noticed too") {
  TemporaryFolder folder;
  const auto path = folder.write("a.bin", std::string(100, 'x'));
  const mw::MappedFile file(path);
  cut(path, 50);
  CHECK(file.data()[99] == 0);
  CHECK(mw::test::thrown([&] { file.check(); }) == "file.changed");
}

TEST_CASE("a file that is written while it is in use is noticed where its bytes are others") {
  TemporaryFolder folder;
  const auto path = folder.write("a.bin", std::string(100, 'x'));
  const auto written = [&](std::size_t at, char byte, int seconds) {
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(at))
        .put(byte);
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) + std::chrono::seconds(seconds));
  };
  const mw::MappedFile undigested(path), file(path), other(path);
  file.digest(1 << 20);
  other.digest(1 << 20);
  written(50, 'x', 1);
  file.check();
  written(50, 'y', 2);
  CHECK(mw::test::thrown([&] { other.check(); }) == "file.changed");
  CHECK(mw::test::thrown([&] { other.check(); }) == "file.changed");
  undigested.check();  // nobody has said what it was
  written(50, 'x', 3);
  other.check();
}

TEST_CASE("samples of a file of which a bit flips are refused") {
  const bool text = GENERATE(true, false);
  TemporaryFolder folder;
  const auto path = folder.write(text ? "a.txt" : "a.bin", std::string(4096, 'x'));
  mw::DataContext context;
  context.sequence = 128;
  context.vocab = 1 << 16;
  mw::Json options{{"path", path.string()}, {"order", "sequential"}};
  if (!text) options["dtype"] = "u16";  // its bytes alone look like text
  const auto source =
      mw::test::made<mw::TokenSource>("data", text ? "text" : "shards", options, context);
  CHECK_FALSE(source->content().empty());
  std::vector<std::int64_t> inputs(128), labels(128);
  source->sample(0, 128, inputs.data(), labels.data());
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(9).put('y');
  std::filesystem::last_write_time(
      path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  CHECK(mw::test::thrown([&] { source->sample(0, 128, inputs.data(), labels.data()); }) ==
        "file.changed");
}

TEST_CASE("a file that has another's place is not cut off") {
  TemporaryFolder folder;
  const auto path = folder.write("a.bin", std::string(100, 'x'));
  const mw::MappedFile file(path);
  std::filesystem::remove(path);
  file.check();
  folder.write("a.bin", "short");
  file.check();
  CHECK(file.data()[99] == 'x');
}

TEST_CASE("samples of a text that is cut off are refused, as are weights") {
  TemporaryFolder folder;
  const auto path = folder.write("a.txt", std::string(4 * pages, 'x'));
  mw::DataContext context;
  context.sequence = 128;
  const auto source = mw::test::made<mw::TokenSource>(
      "data", "text", {{"path", path.string()}, {"order", "sequential"}}, context);
  std::vector<std::int64_t> inputs(128), labels(128);
  source->sample(0, 128, inputs.data(), labels.data());
  cut(path, pages);
  CHECK_THROWS_AS(source->sample(0, 128, inputs.data(), labels.data()), mw::Error);
  CHECK_THROWS_AS(source->sample(3 * pages / 128, 128, inputs.data(), labels.data()), mw::Error);

  const auto weights = folder.path() / "a.safetensors";
  mw::write_safetensors(weights, {{"w", at::ones({4 * pages}, at::kFloat)}});
  const mw::SafetensorsFile tensors(weights);
  CHECK(tensors.tensor("w").sum().item<float>() == 4 * pages);
  cut(weights, pages);
  CHECK(tensors.tensor("w").sum().item<float>() < 4 * pages);
  CHECK(mw::test::thrown([&] { tensors.check(); }) == "file.changed");
}
