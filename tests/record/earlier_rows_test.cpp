// The rows that a run takes over from the log of the run that it goes on from.
#include <hdf5.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <string>

#include "record/run_reader.h"
#include "record/run_writer.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t earlier_steps = 200;

mw::RunInfo info_of_earlier(const std::string& hash) {
  mw::RunInfo info;
  info.hash = hash;
  return info;
}

// In each step a row of /account for each of `ranks`, and now and then an event.
fs::path log_of(const TemporaryFolder& folder, int ranks) {
  fs::path path = folder.path() / "run.h5";
  mw::RunWriter writer(path, info_of_earlier("one"), {std::chrono::seconds(1000), 1});
  for (std::int64_t step = 0; step < earlier_steps; ++step) {
    mw::StepRow row;
    row.step = step;
    writer.add(row);
    for (int rank = 0; rank < ranks; ++rank)
      writer.add(mw::AccountRow{step, rank, 0, "products", "linear", "2x3, 3x4", step});
    if (step % 10 == 0) writer.add(mw::EventRow{0, step, -1, "note", "ten more"});
    if (step % 2 == 0) writer.add_series(step, {{"accuracy", static_cast<double>(step)}});
    writer.flush_if_due();
  }
  writer.finish(mw::RunStatus::interrupted);
  return path;
}

const std::vector<std::int64_t>& integers_of(const mw::Table& table, const std::string& column) {
  for (const mw::TableColumn& each : table.columns)
    if (each.name == column) return std::get<std::vector<std::int64_t>>(each.values);
  FAIL("no column " << column);
  std::abort();
}

// "VmRSS" and "VmHWM" of this process, in bytes.
std::int64_t memory_now(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(what + ":"))
      return std::strtoll(&line[what.size() + 1], nullptr, 10) << 10;
  return -1;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool freed_at_once = false;
#else
constexpr bool freed_at_once = true;
#endif

}  // namespace

TEST_CASE("a run takes over the rows of the steps before its first, and goes on behind them") {
  TemporaryFolder folder;
  constexpr int ranks = 700;  // the rows of /account come in several parts
  const fs::path path = log_of(folder, ranks);
  CHECK(mw::read_earlier(path, 150, {"another"}).file == nullptr);
  const mw::EarlierRows earlier = mw::read_earlier(path, 150, {"two", "one"});
  REQUIRE(earlier.file != nullptr);
  mw::RunWriter writer(path, info_of_earlier("two"), {}, &earlier);  // in that file's place
  CHECK(mw::Hdf5File(path, mw::Hdf5File::Mode::read).length("account") == 150 * ranks);
  CHECK(mw::RunReader(path).series_steps().size() == 75);
  for (std::int64_t step = 150; step < 160; ++step) {
    writer.add(mw::AccountRow{step, 0, 0, "products", "linear", "2x3, 3x4", step});
    writer.flush();
  }
  writer.finish(mw::RunStatus::done);

  mw::Hdf5File file(path, mw::Hdf5File::Mode::read);
  const mw::Table account = file.read_table("account"), events = file.read_table("events");
  REQUIRE(account.rows == 150 * ranks + 10);
  const auto &at = integers_of(account, "step"), &rank = integers_of(account, "rank"),
             &calls = integers_of(account, "calls");
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < 150 * ranks + 10; ++r) {
    const std::int64_t own = r - 150 * ranks;
    const std::int64_t step = own < 0 ? r / ranks : 150 + own;
    const auto place = static_cast<std::size_t>(r);
    if (at[place] != step || rank[place] != (own < 0 ? r % ranks : 0) || calls[place] != step)
      ++wrong;
  }
  CHECK(wrong == 0);
  REQUIRE(events.rows == 15);
  CHECK(integers_of(events, "step")[14] == 140);
  mw::RunReader reader(path);
  CHECK(reader.steps().size() == 150);
  CHECK(reader.series_steps().size() == 75);
  CHECK(earlier.seconds > 0);
}

TEST_CASE("a log with one table that cannot be read gives no rows, and says why") {
  TemporaryFolder folder;
  const fs::path path = log_of(folder, 2);
  CHECK(mw::read_earlier(path, 150, {"one"}).unread.empty());
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Ldelete(file, "account", H5P_DEFAULT);
  const hid_t space = H5Screate(H5S_SCALAR);
  H5Dclose(
      H5Dcreate2(file, "account", H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Sclose(space);
  H5Fclose(file);
  const mw::EarlierRows earlier = mw::read_earlier(path, 150, {"one"});
  CHECK(earlier.file == nullptr);
  CHECK_FALSE(earlier.unread.empty());
  CHECK(mw::read_earlier(path, 150, {"another"}).unread.empty());  // it is not the run's
}

TEST_CASE("the memory does not hold the rows that a run takes over") {
  if (!freed_at_once) return;
  TemporaryFolder folder;
  const fs::path path = log_of(folder, 2500);
  const auto size = static_cast<std::int64_t>(fs::file_size(path));
  REQUIRE(size > std::int64_t{64} << 20);
  std::ofstream("/proc/self/clear_refs") << "5";  // the most so far is what it is now
  const std::int64_t before = memory_now("VmHWM");
  {
    const mw::EarlierRows earlier = mw::read_earlier(path, earlier_steps, {"one"});
    mw::RunWriter writer(path, info_of_earlier("one"), {}, &earlier);
    writer.finish(mw::RunStatus::done);
  }
  CHECK(mw::Hdf5File(path, mw::Hdf5File::Mode::read).length("account") == 2500 * earlier_steps);
  CHECK(memory_now("VmHWM") - before < size / 3);
}

TEST_CASE("a writer that had to keep many rows gives their memory back") {
  if (!freed_at_once) return;
  TemporaryFolder folder;
  mw::RunWriter writer(folder.path() / "run.h5", info_of_earlier(""));
  writer.flush();
  const std::int64_t before = memory_now("VmRSS");
  for (std::int64_t row = 0; row < 500000; ++row)
    writer.add(mw::AccountRow{row, 0, 0, "products", "linear", "2x3, 3x4", 1});
  const std::int64_t kept = memory_now("VmRSS") - before;
  REQUIRE(kept > std::int64_t{100} << 20);
  writer.flush();
  writer.add(mw::EventRow{0, 1, -1, "note", "so that there is something to write"});
  writer.flush();
  CHECK(memory_now("VmRSS") - before < kept / 3);
}
