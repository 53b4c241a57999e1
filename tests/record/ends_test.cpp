// Runs that do not end well: what their file holds then, and whose files are left alone.
#include <hdf5.h>
#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>

#include "meshwright/error.h"
#include "record/hdf5_file.h"
#include "record/run_reader.h"
#include "record/run_writer.h"
#include "support/problems.h"
#include "support/temporary_folder.h"

namespace fs = std::filesystem;

namespace {

// No file may grow beyond this, as on a disk that is full; writing gets an error.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &known_);
    rlimit limit = known_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &known_);
    std::signal(SIGXFSZ, before_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit known_{};
  void (*before_)(int);
};

std::string attribute(const fs::path& path, const char* name) {
  return mw::Hdf5File(path, mw::Hdf5File::Mode::read).attribute("/", name);
}

std::uint64_t rows(const fs::path& path, const mw::TableLayout& table) {
  return mw::Hdf5File(path, mw::Hdf5File::Mode::read).count_rows(table);
}

std::string text_of(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int entries_in(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), {}));
}

void add_steps(mw::RunWriter& writer, int count) {
  for (int step = 0; step < count; ++step) {
    mw::StepRow row;
    row.step = step;
    writer.add(row);
  }
}

}  // namespace

TEST_CASE(
    "a disk that is full: an error that says so, then the status and the reason in the file") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run.h5";
  mw::RunWriter writer(path, {});
  add_steps(writer, 10);
  writer.add(mw::EventRow{0, 3, -1, "diverged", "early"});
  writer.flush();
  {
    const FileLimit limit(fs::file_size(path) + 4096);
    add_steps(writer, 100000);
    CHECK(mw::test::thrown([&] { writer.flush(); }) == "run-file.access");
    CHECK(mw::test::thrown([&] { writer.flush(); }) == "run-file.access");  // nor again
    writer.add(mw::EventRow{0, 9, -1, "failed", "no room"});
    CHECK(writer.end_badly(mw::RunStatus::failed, "no room").find("File too large") !=
          std::string::npos);
  }
  CHECK(attribute(path, "status") == "failed");
  CHECK(attribute(path, "reason") == "no room");
  CHECK(rows(path, mw::step_table()) == 10);
  CHECK(rows(path, mw::event_table()) == 2);  // what is left out is rows
  CHECK(entries_in(folder.path()) == 1);

  // HDF5 is as well as before.
  mw::RunWriter other(folder.path() / "other.h5", {});
  add_steps(other, 100000);
  other.finish(mw::RunStatus::done);
  CHECK(rows(other.path(), mw::step_table()) == 100000);
}

TEST_CASE(
    "a run that has no room for the rows of the run before leaves that run's file as it was") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run.h5";
  {
    mw::RunWriter writer(path, {});
    add_steps(writer, 10);
    for (std::int64_t row = 0; row < 100000; ++row)
      writer.add(mw::AccountRow{row % 10, 0, 0, "products", "linear", "2x3, 3x4", 1});
    writer.finish(mw::RunStatus::interrupted);
  }
  const std::string before = text_of(path);
  {
    const mw::EarlierRows earlier = mw::read_earlier(path, 10, {""});
    REQUIRE(earlier.file != nullptr);
    const FileLimit limit(fs::file_size(path) / 2);
    CHECK(mw::test::thrown([&] { mw::RunWriter(path, {}, {}, &earlier); }) == "run-file.access");
  }
  CHECK(text_of(path) == before);
  CHECK(entries_in(folder.path()) == 1);
}

TEST_CASE("with no room at all the status and the reason are written all the same") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run.h5";
  mw::RunWriter writer(path, {});
  add_steps(writer, 10);
  writer.flush();
  {
    const FileLimit limit(fs::file_size(path));
    add_steps(writer, 100000);
    writer.add(mw::EventRow{0, 0, -1, "failed", "no room"});  // the first: its table has none yet
    CHECK_FALSE(writer.end_badly(mw::RunStatus::failed, std::string(1000, 'x')).empty());
  }
  CHECK(attribute(path, "status") == "failed");
  CHECK(attribute(path, "reason") == std::string(480, 'x'));
  CHECK(rows(path, mw::step_table()) == 10);
  CHECK(rows(path, mw::event_table()) == 0);
  CHECK(entries_in(folder.path()) == 1);
}

TEST_CASE("where nothing at all can be written the file stays as it was") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run.h5";
  mw::RunWriter writer(path, {});
  add_steps(writer, 10);
  writer.flush();
  {
    const FileLimit limit(1);
    add_steps(writer, 10);
    CHECK_FALSE(writer.end_badly(mw::RunStatus::failed, "no room").empty());
  }
  CHECK(attribute(path, "status") == "running");
  CHECK(rows(path, mw::step_table()) == 10);
}

TEST_CASE("a run file is not written through links that somebody has laid") {
  TemporaryFolder folder;
  const fs::path precious = folder.write("precious.txt", "precious");
  const fs::path path = folder.path() / "run.h5";
  const auto number = std::to_string(::getpid());
  fs::create_symlink(precious,
                     folder.path() / (".run.h5." + number));  // as hidden copies were named once
  {
    mw::RunWriter writer(path, {});
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".run.h5." + number + ".")) CHECK(name.size() > number.size() + 20);
    }
    add_steps(writer, 3);
    writer.finish(mw::RunStatus::done);
  }
  CHECK(text_of(precious) == "precious");
  CHECK(rows(path, mw::step_table()) == 3);
}

TEST_CASE("a path that is a link stands for the file behind it") {
  TemporaryFolder folder;
  fs::create_directories(folder.path() / "store");
  const fs::path link = folder.path() / "latest.h5", file = folder.path() / "store" / "a.h5";
  fs::create_symlink("store/a.h5", link);  // relative, and to nothing yet
  for (int count : {2, 5}) {
    mw::check_writable(link);
    mw::RunWriter writer(link, {});
    add_steps(writer, count);
    writer.finish(mw::RunStatus::done);
    CHECK(fs::is_symlink(link));
    CHECK(fs::is_regular_file(fs::symlink_status(file)));
    CHECK(rows(file, mw::step_table()) == static_cast<std::uint64_t>(count));
  }
  fs::create_symlink(folder.write("notes.txt", "mine"), folder.path() / "notes.h5");
  CHECK(mw::test::thrown([&] { mw::check_writable(folder.path() / "notes.h5"); }) ==
        "log.foreign log");
  fs::create_symlink("round.h5", folder.path() / "round.h5");
  CHECK(mw::test::thrown([&] { mw::check_writable(folder.path() / "round.h5"); }) ==
        "log.link log");
}

TEST_CASE("no two metrics have one place, and most have their own name") {
  mw::SeriesNames names;
  CHECK(names.place_of("accuracy") == "accuracy");
  CHECK(names.place_of("loss/train") == "loss/train");
  CHECK(names.place_of("loss_train") == "loss_train");
  CHECK(names.place_of("100%") == "100%");
  const std::set<std::string> all = {
      "a/b",  "a_b",  "a",     "a/b/c",  "a//b",   "/a",       "a/",
      "",     "/",    ".",     "..",     "a/..",   "%",        "%61",
      "%2F",  "step", "step_", "step/x", "a%2Fb",  "a%",       "%25",
      "%25%", "loss", "x/a",   "x",      "x/step", "\xc3\xa9", std::string("n\0l", 3),
      "n"};
  std::set<std::string> places;
  for (const std::string& name : all) {
    const std::string place = names.place_of(name);
    INFO(name << " lies at " << place);
    CHECK(names.place_of(name) == place);
    CHECK(places.insert(place).second);
    CHECK(place.find("//") == std::string::npos);
  }

  TemporaryFolder folder;
  mw::RunWriter writer(folder.path() / "run.h5", {});
  std::vector<std::pair<std::string, double>> metrics;
  for (const std::string& name : all) metrics.emplace_back(name, 1);
  writer.add_series(0, metrics);
  writer.finish(mw::RunStatus::done);
  mw::Hdf5File file(writer.path(), mw::Hdf5File::Mode::read);
  mw::SeriesNames again;
  for (const std::string& name : all) {
    const std::string place = "series/" + again.place_of(name);
    INFO(place);
    CHECK(file.has(place.c_str()));
    if (again.place_of(name) != name && name.find('\0') == std::string::npos)
      CHECK(file.attribute(place.c_str(), "name") == name);
  }
}
