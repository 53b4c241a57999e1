// Run files that are read back, and files that are refused.
#include "record/run_reader.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "record/run_writer.h"
#include "support/problems.h"
#include "support/temporary_folder.h"

namespace {

namespace fs = std::filesystem;

// Step s has s % 3 + 1 actions on each of two ranks.
fs::path written(const TemporaryFolder& folder, std::int64_t steps) {
  fs::path path = folder.path() / "run.h5";
  mw::RunInfo info;
  info.plan = R"({"mix": "pp 2"})";
  info.predicted_actions = {{0, 0, 0, 0, "F", 3, 0, 0.5}, {0, 1, 1, 0, "receive F", 3, 0.5, 0.75}};
  mw::RunWriter writer(path, info);
  for (std::int64_t step = 0; step < steps; ++step) {
    mw::StepRow row;
    row.step = step;
    row.seconds = 0.5 + static_cast<double>(step);
    row.loss = 2;
    row.tokens = 64;
    writer.add(row);
    for (int rank = 0; rank < 2; ++rank) {
      for (int m = 0; m <= step % 3; ++m)
        writer.add(mw::ActionRow{step, rank, rank, 0, "receive B", m, 0.25 * m, 0.25 * m + 0.125});
    }
  }
  writer.finish(mw::RunStatus::done);
  return path;
}

std::string reading(const fs::path& path) {
  return mw::test::thrown([&] { mw::RunReader reader(path); });
}

}  // namespace

TEST_CASE("what was written is read back, a step at a time") {
  TemporaryFolder folder;
  mw::RunReader reader(written(folder, 2000));
  CHECK(reader.plan() == R"({"mix": "pp 2"})");
  const auto steps = reader.steps();
  REQUIRE(steps.size() == 2000);
  CHECK(steps[7].step == 7);
  CHECK(steps[7].seconds == 7.5);
  CHECK(steps[7].tokens == 64);
  CHECK(std::isnan(steps[7].bubble));
  for (const std::int64_t step : {0, 1, 2, 1000, 1998, 1999}) {
    const auto actions = reader.actions(step);
    const auto each = static_cast<std::size_t>(step % 3 + 1);
    REQUIRE(actions.size() == 2 * each);
    CHECK(actions.front().step == step);
    CHECK(actions.back().step == step);
    CHECK(actions.back().rank == 1);
    CHECK(actions.back().action == "receive B");
    CHECK(actions.back().microbatch == step % 3);
    CHECK(actions.back().end == 0.25 * static_cast<double>(step % 3) + 0.125);
  }
  CHECK(reader.actions(2000).empty());
  CHECK(reader.actions(-1).empty());
}

TEST_CASE("the predicted actions stand beside the measured ones") {
  TemporaryFolder folder;
  const auto predicted = mw::RunReader(written(folder, 1)).predicted_actions();
  REQUIRE(predicted.size() == 2);
  CHECK(predicted[0].action == "F");
  CHECK(predicted[0].microbatch == 3);
  CHECK(predicted[1].action == "receive F");
  CHECK(predicted[1].stage == 1);
  CHECK(predicted[1].start == 0.5);
  CHECK(predicted[1].end == 0.75);
}

TEST_CASE("what is no run file is refused") {
  TemporaryFolder folder;
  CHECK(reading(folder.path() / "none.h5") == "file.missing");
  CHECK(reading(folder.path()) == "file.read");
  std::ofstream(folder.path() / "text.h5") << "not HDF5";
  CHECK(reading(folder.path() / "text.h5") == "run-file.foreign");
  mw::Hdf5File(folder.path() / "other.h5", mw::Hdf5File::Mode::create).close();
  CHECK(reading(folder.path() / "other.h5") == "run-file.schema");
  {
    mw::Hdf5File later(folder.path() / "later.h5", mw::Hdf5File::Mode::create);
    later.set_attribute("/", "schema", std::string("meshwright.run/9"));
    later.close();
  }
  CHECK(reading(folder.path() / "later.h5") == "run-file.schema");
}

TEST_CASE("a table that lacks a column is refused, not read as noise") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "old.h5";
  mw::TableLayout narrow = mw::action_table();
  narrow.columns.pop_back();
  mw::Hdf5File file(path, mw::Hdf5File::Mode::create);
  file.create_table(narrow);
  const std::vector<char> row(narrow.row_bytes(), '\0');
  file.write_rows(narrow, 0, row.data(), 1);
  CHECK(mw::test::thrown([&] { file.read_rows(mw::action_table(), 0, 1); }) == "run-file.column");
}
