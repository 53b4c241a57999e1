// Run files while they are written: always whole, whatever becomes of them or of their writer.
#include "record/run_writer.h"

#include <hdf5.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "meshwright/error.h"
#include "record/hdf5_file.h"
#include "record/run_reader.h"
#include "support/problems.h"
#include "support/temporary_folder.h"

namespace fs = std::filesystem;

namespace {

mw::RunInfo info() {
  mw::RunInfo info;
  info.script = "local mw = require \"meshwright\"  -- \xc3\xa9\n";
  info.plan = R"({"ranks": 8})";
  info.seed = 42;
  info.versions = {{"meshwright", "0.1.0"}, {"torch", "2.15.0"}};
  info.predicted_actions = {{0, 1, 1, 0, "receive F", 2, 0.5, 0.75}};
  return info;
}

mw::StepRow step_row(std::int64_t step) {
  mw::StepRow row;
  row.step = step;
  row.seconds = 0.5 + static_cast<double>(step);
  row.loss = 10.0 / (1.0 + static_cast<double>(step));
  row.grad_norm = 2.0;
  row.lr = 1e-3;
  row.tokens = 2048;
  row.tokens_per_second = 4096;
  row.mfu = 0.25;
  return row;
}

mw::CommunicationRow communication_row(std::int64_t step, int rank) {
  return {step, rank, "dp", "all_reduce", "gradients", 4, 1 << 20, 0.25, 1 << 20, 0.5};
}

// Every kind of row, a few of each.
void add_all(mw::RunWriter& writer, std::int64_t step) {
  writer.add(step_row(step));
  for (int rank = 0; rank < 2; ++rank) writer.add(communication_row(step, rank));
  writer.add(mw::WorkRow{step, 1, 0, "linear", "dgrad", 7, 1e9, 0.5});
  writer.add(mw::ExpertRow{step, 1, 3, 9, 8});
  writer.add(mw::ActionRow{step, 1, 0, 0, "F", static_cast<std::int32_t>(step % 4), 0.125, 0.25});
  if (step % 2 == 0)
    writer.add_series(step, {{"accuracy", 0.5 * static_cast<double>(step)}, {"group/deep", 0.25}});
  if (step == 4) writer.add_series(step, {{"late", 7.0}});
}

struct Handle {
  hid_t id;
  herr_t (*close)(hid_t);
  ~Handle() { close(id); }
};

std::uint64_t rows_of(const fs::path& path, const char* name) {
  const Handle file{H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
  REQUIRE(file.id >= 0);
  const Handle set{H5Dopen2(file.id, name, H5P_DEFAULT), H5Dclose};
  const Handle space{H5Dget_space(set.id), H5Sclose};
  return static_cast<std::uint64_t>(H5Sget_simple_extent_npoints(space.id));
}

std::string status_of(const fs::path& path) {
  const Handle file{H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
  REQUIRE(file.id >= 0);
  const Handle attribute{H5Aopen(file.id, "status", H5P_DEFAULT), H5Aclose};
  const Handle type{H5Aget_type(attribute.id), H5Tclose};
  std::string text(H5Tget_size(type.id) + 1, '\0');
  H5Aread(attribute.id, type.id, text.data());
  return text.c_str();
}

int files_in(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), {}));
}

}  // namespace

TEST_CASE("a run file is readable from the start, grows by intervals and ends with its status") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "deep" / "er" / "run.h5";
  mw::RunWriter writer(path, info(), {std::chrono::seconds(1000), 3});
  CHECK(status_of(path) == "running");
  CHECK(rows_of(path, "steps") == 0);

  add_all(writer, 0);
  CHECK_FALSE(writer.flush_if_due());
  add_all(writer, 1);
  CHECK_FALSE(writer.flush_if_due());
  CHECK(rows_of(path, "steps") == 0);
  add_all(writer, 2);
  CHECK(writer.flush_if_due());
  CHECK(rows_of(path, "steps") == 3);
  CHECK(rows_of(path, "communication") == 6);
  CHECK(rows_of(path, "series/accuracy") == 2);
  CHECK_FALSE(writer.flush_if_due());

  for (int step = 3; step < 1500; ++step) {
    add_all(writer, step);
    writer.flush_if_due();
  }
  writer.set_memory({{0, 0, "parameters", 1, 2, 3}, {1, 0, "gradients", 4, 5, 6}});
  writer.set_memory({{0, 0, "parameters", 7, 8, 9}});
  writer.add(mw::EventRow{0, 1499, -1, "note", std::string(500, 'x')});
  writer.finish(mw::RunStatus::done);
  CHECK(status_of(path) == "done");
  CHECK(rows_of(path, "steps") == 1500);
  CHECK(rows_of(path, "communication") == 3000);
  CHECK(rows_of(path, "actions") == 1500);
  CHECK(rows_of(path, "memory") == 1);
  CHECK(rows_of(path, "events") == 1);
  CHECK(rows_of(path, "series/step") == 751);
  CHECK(rows_of(path, "series/late") == 751);
  CHECK(files_in(path.parent_path()) == 1);
}

TEST_CASE("time alone makes an interval") {
  TemporaryFolder folder;
  mw::RunWriter writer(folder.path() / "run.h5", info(), {std::chrono::milliseconds(1), 0});
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK_FALSE(writer.flush_if_due());  // nothing to write
  writer.add(step_row(0));
  CHECK(writer.flush_if_due());
}

TEST_CASE("a writer that goes away unfinished leaves status failed and all rows") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run.h5";
  {
    mw::RunWriter writer(path, info());
    add_all(writer, 0);
  }
  CHECK(status_of(path) == "failed");
  CHECK(rows_of(path, "steps") == 1);
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("an existing run file is replaced; a reader of the old one keeps it") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run.h5";
  {
    mw::RunWriter writer(path, info());
    for (int step = 0; step < 9; ++step) add_all(writer, step);
    writer.finish(mw::RunStatus::done);
  }
  const Handle reader{H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
  mw::RunWriter writer(path, info());
  add_all(writer, 0);
  writer.flush();
  CHECK(rows_of(path, "steps") == 1);
  const Handle set{H5Dopen2(reader.id, "steps", H5P_DEFAULT), H5Dclose};
  const Handle space{H5Dget_space(set.id), H5Sclose};
  CHECK(H5Sget_simple_extent_npoints(space.id) == 9);
  writer.finish(mw::RunStatus::interrupted);
  CHECK(status_of(path) == "interrupted");
}

// A reader opens the run file. Two flushes later that file is the hidden one, and written next.
TEST_CASE("a file that somebody reads is not written") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run.h5";
  mw::RunWriter writer(path, info());
  add_all(writer, 0);
  writer.flush();
  mw::RunReader reader(path);
  auto bytes_read = [&, held = std::ifstream(path, std::ios::binary)]() mutable {
    held.clear();
    held.seekg(0);
    return std::string(std::istreambuf_iterator<char>(held), {});
  };
  const std::string before = bytes_read();
  for (int step = 1; step < 6; ++step) {
    add_all(writer, step);
    writer.flush();
  }
  CHECK(bytes_read() == before);
  CHECK(reader.steps().size() == 1);
  CHECK(mw::RunReader(path).steps().size() == 6);
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("a reader that comes while the file is written often finds it whole") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run.h5";
  mw::RunWriter writer(path, info());
  // HDF5 has one lock for all threads of a process: the readers are another process.
  const pid_t child = ::fork();
  if (child == 0) {
    for (int i = 0; i < 300; ++i) {
      try {
        const auto steps = mw::RunReader(path, mw::Probe::no).steps();
        for (std::size_t at = 0; at < steps.size(); ++at)
          if (steps[at].step != static_cast<std::int64_t>(at)) ::_exit(2);
      } catch (const std::exception&) {
        ::_exit(1);
      }
    }
    ::_exit(0);
  }
  REQUIRE(child > 0);
  int status = 0;
  for (int step = 0; ::waitpid(child, &status, WNOHANG) == 0; ++step) {
    add_all(writer, step);
    writer.flush();
  }
  CHECK(status == 0);
}

TEST_CASE("a file that is removed comes back; one that another replaces is left to it") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "run.h5";
  mw::RunWriter writer(path, info());
  add_all(writer, 0);
  writer.flush();
  fs::remove(path);
  add_all(writer, 1);
  writer.flush();
  CHECK(rows_of(path, "steps") == 2);
  add_all(writer, 2);
  writer.flush();
  CHECK(rows_of(path, "steps") == 3);

  mw::RunWriter other(path.parent_path() / "other.h5", info());
  fs::copy_file(other.path(), folder.path() / "copy.h5");
  fs::rename(folder.path() / "copy.h5", path);
  add_all(writer, 3);
  CHECK(mw::test::thrown([&] { writer.flush(); }) == "run-file.replaced");
  CHECK(rows_of(path, "steps") == 0);
}

TEST_CASE("hidden copies of killed runs are cleared away, others' files are not") {
  TemporaryFolder folder;
  folder.write(".run.h5.999999999", "orphan");
  folder.write(".run.h5.999999999.0123456789abcdef", "orphan");
  folder.write(".run.h5.1", "of a process that lives");
  folder.write(".run.h5.notes", "mine");
  folder.write(".other.h5.999999999", "not this run's");
  mw::RunWriter(folder.path() / "run.h5", info()).finish(mw::RunStatus::done);
  CHECK_FALSE(fs::exists(folder.path() / ".run.h5.999999999"));
  CHECK_FALSE(fs::exists(folder.path() / ".run.h5.999999999.0123456789abcdef"));
  CHECK(files_in(folder.path()) == 4);
}

TEST_CASE("check_writable refuses what cannot be written and leaves nothing behind") {
  TemporaryFolder folder;
  const auto file = folder.write("notes.txt", "precious");
  folder.write("empty.h5", "");
  mw::check_writable(folder.path() / "run.h5");
  mw::check_writable(folder.path() / "a" / "b" / "run.h5");
  mw::check_writable(folder.path() / "empty.h5");
  CHECK(files_in(folder.path()) == 2);

  const auto refused = [](const fs::path& given) {
    return mw::test::thrown([&] { mw::check_writable(given); });
  };
  CHECK(refused(folder.path()) == "log.folder log");
  CHECK(refused(file) == "log.foreign log");
  CHECK(refused(file / "run.h5") == "log.folder log");
  CHECK(refused("/dev/null") == "log.special log");
  CHECK(refused("/proc/run.h5") == "file.write log");
  CHECK(mw::test::thrown([] { mw::RunWriter(fs::path("/proc/run.h5"), info()); }) ==
        "run-file.access");
}

TEST_CASE("texts too long for their column are cut between code points") {
  std::vector<char> packed;
  mw::MemoryRow row;
  row.category = "fifteen bytes..\xc3\xa9";  // the last would straddle the end
  mw::pack(row, packed);
  CHECK(packed.size() == mw::memory_table().row_bytes());
  CHECK(std::string(packed.data() + 8, 16) == std::string("fifteen bytes..\0", 16));
}

TEST_CASE("layouts and packed rows agree") {
  const auto size_of = [](const auto& row) {
    std::vector<char> packed;
    mw::pack(row, packed);
    return packed.size();
  };
  CHECK(size_of(mw::StepRow{}) == mw::step_table().row_bytes());
  CHECK(size_of(mw::RankMemoryRow{}) == mw::rank_memory_table().row_bytes());
  CHECK(size_of(mw::CommunicationRow{}) == mw::communication_table().row_bytes());
  CHECK(size_of(mw::WorkRow{}) == mw::work_table().row_bytes());
  CHECK(size_of(mw::ExpertRow{}) == mw::expert_table().row_bytes());
  CHECK(size_of(mw::ActionRow{}) == mw::action_table().row_bytes());
  CHECK(size_of(mw::EventRow{}) == mw::event_table().row_bytes());
}

// Not a test of its own: the Python tests run it to get files, and kill it.
// MESHWRIGHT_RUN_FILE: where; MESHWRIGHT_RUN_STEPS: how many steps (0: until killed).
TEST_CASE("write a run file", "[.writer]") {
  const char* path = std::getenv("MESHWRIGHT_RUN_FILE");
  const char* count = std::getenv("MESHWRIGHT_RUN_STEPS");
  REQUIRE(path);
  const std::int64_t steps = count ? std::atoll(count) : 0;
  mw::RunWriter writer(path, info(), {std::chrono::milliseconds(5), 0});
  for (std::int64_t step = 0; steps == 0 || step < steps; ++step) {
    add_all(writer, step);
    if (writer.flush_if_due()) {
      std::printf("%lld\n", static_cast<long long>(step + 1));  // rows that are safe now
      std::fflush(stdout);
    }
    if (steps == 0) ::usleep(200);
  }
  writer.set_memory({{0, 0, "parameters", 1, 2, 3}, {1, 1, "gradients", 4, 5, 6}});
  writer.set_rank_memory({{0, 0, 7, 8, 9}});
  writer.add(mw::EventRow{0, steps, 1, "note", "h\xc3\xa9llo"});
  writer.finish(mw::RunStatus::done);
}
