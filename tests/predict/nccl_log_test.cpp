// Logs of nccl-tests in the forms that versions and launchers give them, and what is refused.
#include "predict/nccl_log.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace mw;

namespace {

constexpr const char* newer =
    "#                                           out-of-place                       in-place\n"
    "#       size    count    type   redop  root   time   algbw   busbw #wrong   time  algbw  "
    "busbw "
    "#wrong\n"
    "#        (B)    (elements)                   (us)  (GB/s)  (GB/s)            (us)  (GB/s)\n";

std::string ranks(int count, int of_node, const std::string& group = "Group  0 ",
                  const std::string& device = "NVIDIA A100-SXM4-80GB") {
  std::string text =
      "# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor)\n# Using devices\n";
  for (int r = 0; r < count; ++r)
    text += fmt::format("#  Rank {:2} {}Pid  {} on  host{} device  {} [0x0f] {}\n", r, group,
                        100 + r, r / of_node, r % of_node, device);
  return text;
}

// Rows of 1 MiB times powers of four, whose times are those of `rate` GB/s; `form` has places for
// bytes, microseconds and GB/s of both.
std::string rows(const std::string& form, double share, double rate = 100) {
  std::string text;
  for (double bytes = 1 << 20; bytes < 1.5e9; bytes *= 4)
    text += fmt::format(fmt::runtime(form), bytes, bytes / rate / 1e3, rate, share * rate) + "\n";
  return text;
}

constexpr const char* newer_row =
    "{0:.0f} 1 float sum -1 {1:.1f} {2:.2f} {3:.2f} 0 {1:.1f} {2:.2f} {3:.2f} 0";

std::vector<LoggedTable> read(const std::string& text, Problems& problems,
                              const std::string& file = "log.txt") {
  return read_nccl_log(file, text, problems);
}

LoggedTable only(const std::string& text, const std::string& file = "log.txt") {
  Problems problems;
  const auto tables = read(text, problems, file);
  for (const Problem& p : problems.list()) UNSCOPED_INFO(p.text());
  REQUIRE(problems.empty());
  REQUIRE(tables.size() == 1);
  return tables.front();
}

std::vector<std::string> refused(const std::string& text, const std::string& file = "log.txt") {
  Problems problems;
  const auto tables = read(text, problems, file);
  std::vector<std::string> found;
  for (const Problem& p : problems.list()) found.push_back(p.code + " " + p.place);
  CHECK(tables.empty());
  return found;
}

using Found = std::vector<std::string>;

}  // namespace

TEST_CASE("a log of today's version") {
  const LoggedTable table = only("# Collective test starting: all_reduce_perf\n" + ranks(16, 8) +
                                 newer + rows(newer_row, 1.875));
  CHECK(table.op == Collective::all_reduce);
  CHECK(table.device == "NVIDIA A100-SXM4-80GB");
  CHECK(table.place() == "16 ranks on 2 nodes");
  CHECK(table.whole_nodes(8));
  CHECK_FALSE(table.whole_nodes(4));
  REQUIRE(table.rows.size() == 6);
  CHECK(table.rows[0].bytes == 1 << 20);
  CHECK(table.rows[0].seconds == Approx(10.5e-6));
  CHECK(table.rows[0].line == 23);
}

TEST_CASE("columns of older versions, without group, root and number of wrong values") {
  const std::string header =
      "#       size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n";
  const auto table = [&](const std::string& redop, double bus, const std::string& file) {
    return only(ranks(4, 4, "") + header +
                    rows("{0:.0f} 1 float " + redop +
                             "{1:.1f} {2:.2f} {3:.2f} 2e-06 {1:.1f} {2:.2f} {3:.2f} 1e+00",
                         bus),
                file);
  };
  const LoggedTable sums = table("sum ", 1.5, "all_reduce.log");
  CHECK(sums.op == Collective::all_reduce);
  CHECK(sums.nodes() == 1);
  // The column redop is empty where nothing is added up.
  const LoggedTable exchange = table("", 0.75, "alltoall.log");
  CHECK(exchange.op == Collective::all_to_all);
  CHECK(exchange.rows[5].seconds == Approx((1 << 30) / 1e11).epsilon(1e-3));
}

TEST_CASE("launchers' labels, lines of NCCL between rows, and several programs in one file") {
  const std::string plain = "$ mpirun -np 4 build/all_gather_perf -b 1M -e 1G -f 4\n" +
                            ranks(4, 2) + newer +
                            rows(
                                "{0:.0f} 1 float none -1 {1:.1f} {2:.2f} {3:.2f} 0 N/A "
                                "{2:.2f} {3:.2f} N/A",
                                0.75) +
                            "host0:12:12 [0] NCCL INFO comm 0x1 nranks 4 - Destroy COMPLETE\n"
                            "# Out of bounds values : 0 OK\n"
                            "# Collective test starting: sendrecv_perf\n" +
                            ranks(4, 2) + newer + rows(newer_row, 1);
  std::string labelled;
  for (std::size_t at = 0; at < plain.size();) {
    const std::size_t end = plain.find('\n', at);
    labelled += "[1,0]<stdout>:" + plain.substr(at, end - at + 1);
    at = end + 1;
  }
  for (const std::string& text : {plain, labelled}) {
    Problems problems;
    const auto tables = read(text, problems);
    REQUIRE(problems.empty());
    REQUIRE(tables.size() == 2);
    CHECK(tables[0].op == Collective::all_gather);
    CHECK(tables[1].op == Collective::send);
    CHECK(tables[1].place() == "4 ranks on 2 nodes");
  }
}

TEST_CASE("a collective that nothing names is told by its bus bandwidth where that can be") {
  CHECK(only(ranks(8, 8) + newer + rows(newer_row, 1.75)).op == Collective::all_reduce);
  CHECK(refused(ranks(8, 8) + newer + rows(newer_row, 0.875)) ==
        Found{"calibration.log log.txt:12"});
  CHECK(refused(ranks(8, 8) + newer + rows(newer_row, 1.75), "all_gather.txt") ==
        Found{"calibration.log all_gather.txt:12"});
  CHECK(refused(ranks(8, 8) + newer + rows(newer_row, 1), "broadcast_perf.txt") ==
        Found{"calibration.log broadcast_perf.txt:12"});
}

TEST_CASE("logs that tell nothing, or something else") {
  const std::string good = rows(newer_row, 1.75);
  CHECK(refused("nothing\n") == Found{"calibration.log log.txt"});
  CHECK(refused(newer + good) == Found{"calibration.log log.txt:2"});
  const std::string head = "all_reduce_perf\n" + ranks(8, 8) + newer;
  const auto with = [&](const std::string& row) { return refused(head + row + good); };
  CHECK(with("512 128 float sum -1 12.1 0.04\n") == Found{"calibration.log log.txt:15"});
  CHECK(with("1048576 1 float sum -1 10.5 50.00 87.50 0 10.5 50.00 87.50 0\n") ==
        Found{"calibration.log log.txt:15"});
  CHECK(with("512 1 float sum -1 10.2 0.05 0.09 3 10.2 0.05 0.09 0\n") ==
        Found{"calibration.wrong-results log.txt:15"});
  CHECK(refused(head + good + "# Out of bounds values : 4 FAILED\n") ==
        Found{"calibration.wrong-results log.txt:13"});
  CHECK(refused(head + good.substr(0, good.find('\n') + 1)) ==
        Found{"calibration.sizes log.txt:13"});
  CHECK(refused("all_reduce_perf\n" + ranks(8, 8, "Group  1 ") + newer + good) ==
        Found{"calibration.log log.txt:13"});
  const std::string one = ranks(1, 1);
  CHECK(refused("all_reduce_perf\n" + one + one.substr(one.find("#  Rank")) + newer + good) ==
        Found{"calibration.log log.txt:7"});
}

TEST_CASE("a table without the last lines of nccl-tests is known to be cut off") {
  const std::string cut = "all_reduce_perf\n" + ranks(8, 8) + newer + rows(newer_row, 1.75);
  CHECK_FALSE(only(cut).ended);
  CHECK(only(cut + "# Out of bounds values : 0 OK\n").ended);
  CHECK(only(cut + "# Avg bus bandwidth    : 12.5\n").ended);
}

TEST_CASE("a table whose program failed is refused at the line that says so") {
  const std::string cut = "all_reduce_perf\n" + ranks(8, 8) + newer + rows(newer_row, 1.75);
  for (const char* line : {"ha: Test NCCL failure common.cu:1038 'unhandled system error'",
                           "ha:313:400 [0] transport.cc:157 NCCL WARN Cuda failure 'unknown'",
                           "srun: error: ha: task 3: Killed", "Segmentation fault (core dumped)",
                           "slurmstepd: error: *** STEP 7.0 ON ha CANCELLED AT 2026-11-01 ***"})
    CHECK(refused(cut + line + "\nmore\n") == Found{"calibration.log log.txt:21"});
  // A program that came to its end has measured, whatever was said on the way.
  CHECK(only(cut + "ha:313:400 NCCL WARN slow\n# Avg bus bandwidth    : 12.5\n").ended);
}

TEST_CASE("what several logs say together") {
  const std::string head = "all_reduce_perf\n" + ranks(8, 8) + newer;
  Problems problems;
  auto tables = read(head + rows(newer_row, 1.75), problems, "a.txt");
  const auto add = [&](const std::string& text, const std::string& file) {
    for (LoggedTable& table : read(text, problems, file)) tables.push_back(std::move(table));
  };
  add(head + rows(newer_row, 1.75, 110), "b.txt");
  check_together(tables, problems);
  CHECK(problems.empty());
  add(head + rows(newer_row, 1.75, 110), "again.txt");
  add(head + rows(newer_row, 1.75, 150), "c.txt");
  add("all_reduce_perf\n" + ranks(8, 8, "Group  0 ", "NVIDIA H100 80GB HBM3") + newer +
          rows(newer_row, 1.75),
      "d.txt");
  check_together(tables, problems);
  Found found;
  for (const Problem& p : problems.list()) found.push_back(p.code + " " + p.place);
  // What is of another device contradicts nothing.
  CHECK(found == Found{"calibration.twice again.txt:13", "calibration.contradiction c.txt:15",
                       "calibration.contradiction c.txt:15", "calibration.contradiction c.txt:15",
                       "calibration.devices d.txt:13"});
}
