# label: unit
"""Logs of nccl-tests in the forms that versions and launchers give them, what is refused, and what
damage does to them."""
import random
import sys
import unittest

from cases import SOURCE

sys.path.insert(0, str(SOURCE / "python/src"))
from meshwright_calibrate.nccl_log import LogReader, check_together  # noqa: E402
from meshwright_calibrate.problems import Problems  # noqa: E402

HEADER = """\
#                                           out-of-place                       in-place
#      size    count    type   redop  root   time   algbw   busbw #wrong   time  algbw  busbw #wrong
#        (B)    (elements)                   (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROW = "{size} 1 float sum -1 {time:.1f} {rate:.2f} {bus:.2f} 0 {time:.1f} {rate:.2f} {bus:.2f} 0"
PERF = "all_reduce_perf\n"


def ranks(count, of_node, group="Group  0 ", device="NVIDIA A100-SXM4-80GB"):
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor)", "# Using devices"]
    lines += [f"#  Rank {r:2} {group}Pid  {100 + r} on  host{r // of_node} device  {r % of_node} [0x0f] {device}"
              for r in range(count)]
    return "\n".join(lines) + "\n"


def rows(share, rate=100, form=ROW):
    """Rows of 1 MiB times powers of four, whose times are those of `rate` GB/s."""
    return "".join(form.format(size=size, time=size / rate / 1e3, rate=rate, bus=share * rate) + "\n"
                   for size in (1 << 20 + 2 * k for k in range(6)))


WHOLE = PERF + ranks(8, 8) + HEADER + rows(1.75)


class Logs(unittest.TestCase):
    def only(self, text, file="log.txt"):
        problems = Problems()
        table, = LogReader(file, problems).run(text)
        self.assertEqual(problems, [])
        return table

    def refused(self, text, *expected, file="log.txt"):
        problems = Problems()
        self.assertEqual(LogReader(file, problems).run(text), [])
        self.assertEqual([f"{one['code'].removeprefix('calibration.')} {one['place']}" for one in problems], list(expected))

    def test_todays_version(self):
        table = self.only("# Collective test starting: all_reduce_perf\n" + ranks(16, 8) + HEADER + rows(1.875))
        self.assertEqual((table.op, table.device, table.place), ("all-reduce", "NVIDIA A100-SXM4-80GB", "16 ranks on 2 nodes"))
        self.assertTrue(table.is_curve(8))
        self.assertFalse(table.is_curve(4))
        self.assertEqual((len(table.rows), table.rows[0].bytes, table.rows[0].line), (6, 1 << 20, 23))
        self.assertAlmostEqual(table.rows[0].seconds, 10.5e-6)

    def test_columns_of_older_versions_without_group_root_and_number_of_wrong_values(self):
        header = "#       size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
        form = "{{size}} 1 float {}{{time:.1f}} {{rate:.2f}} {{bus:.2f}} 2e-06 {{time:.1f}} {{rate:.2f}} {{bus:.2f}} 1e+00"
        sums = self.only(ranks(4, 4, "") + header + rows(1.5, form=form.format("sum ")), "all_reduce.log")
        self.assertEqual((sums.op, sums.nodes), ("all-reduce", 1))
        # The column redop is empty where nothing is added up.
        exchange = self.only(ranks(4, 4, "") + header + rows(0.75, form=form.format("")), "alltoall.log")
        self.assertEqual(exchange.op, "all-to-all")
        self.assertAlmostEqual(exchange.rows[5].seconds / ((1 << 30) / 1e11), 1, 3)

    def test_labels_of_launchers_lines_of_nccl_between_rows_and_several_programs_in_one_file(self):
        gather = "{size} 1 float none -1 {time:.1f} {rate:.2f} {bus:.2f} 0 N/A {rate:.2f} {bus:.2f} N/A"
        plain = ("$ mpirun -np 4 build/all_gather_perf -b 1M -e 1G -f 4\n" + ranks(4, 2) + HEADER + rows(0.75, form=gather)
                 + "host0:12:12 [0] NCCL INFO comm 0x1 nranks 4 - Destroy COMPLETE\n# Out of bounds values : 0 OK\n"
                 + "# Collective test starting: sendrecv_perf\n" + ranks(4, 2) + HEADER + rows(1))
        for label in ("", "[1,0]<stdout>:", "3: "):
            with self.subTest(label):
                problems = Problems()
                text = "".join(label + line for line in plain.splitlines(keepends=True))
                tables = LogReader("log.txt", problems).run(text)
                self.assertEqual(problems, [])
                self.assertEqual([table.op for table in tables], ["all-gather", "send"])
                self.assertEqual(tables[1].place, "4 ranks on 2 nodes")

    def test_a_collective_that_nothing_names_is_told_by_its_bus_bandwidth_where_that_can_be(self):
        head = ranks(8, 8) + HEADER
        self.assertEqual(self.only(head + rows(1.75)).op, "all-reduce")
        self.refused(head + rows(0.875), "log log.txt:12")
        self.refused(head + rows(1.75), "log all_gather.txt:12", file="all_gather.txt")
        self.refused(head + rows(1), "log broadcast_perf.txt:12", file="broadcast_perf.txt")

    def test_logs_that_tell_nothing_or_something_else(self):
        good = rows(1.75)
        self.refused("nothing\n", "log log.txt")
        self.refused(HEADER + good, "log log.txt:2")
        head = PERF + ranks(8, 8) + HEADER
        for row, code in (("512 128 float sum -1 12.1 0.04\n", "log"),
                          ("1048576 1 float sum -1 10.5 50.00 87.50 0 10.5 50.00 87.50 0\n", "log"),
                          ("512 1 float sum -1 10.2 0.05 0.09 3 10.2 0.05 0.09 0\n", "wrong-results")):
            self.refused(head + row + good, f"{code} log.txt:15")
        self.refused(head + good + "# Out of bounds values : 4 FAILED\n", "wrong-results log.txt:13")
        self.refused(head + good.splitlines(keepends=True)[0], "sizes log.txt:13")
        self.refused(PERF + ranks(8, 8, "Group  1 ") + HEADER + good, "log log.txt:13")
        one = ranks(1, 1)
        self.refused(PERF + one + one[one.index("#  Rank"):] + HEADER + good, "log log.txt:7")

    def test_a_table_without_the_last_lines_of_nccl_tests_is_known_to_be_cut_off(self):
        self.assertFalse(self.only(WHOLE).ended)
        self.assertTrue(self.only(WHOLE + "# Out of bounds values : 0 OK\n").ended)
        self.assertTrue(self.only(WHOLE + "# Avg bus bandwidth    : 12.5\n").ended)

    def test_a_table_whose_program_failed_is_refused_at_the_line_that_says_so(self):
        for line in ("ha: Test NCCL failure common.cu:1038 'unhandled system error'",
                     "ha:313:400 [0] transport.cc:157 NCCL WARN Cuda failure 'unknown'",
                     "srun: error: ha: task 3: Killed", "Segmentation fault (core dumped)",
                     "slurmstepd: error: *** STEP 7.0 ON ha CANCELLED AT 2026-11-01 ***"):
            self.refused(WHOLE + line + "\nmore\n", "log log.txt:21")
        # A program that came to its end has measured, whatever was said on the way.
        self.assertTrue(self.only(WHOLE + "ha:313:400 NCCL WARN slow\n# Avg bus bandwidth    : 12.5\n").ended)

    def test_what_several_logs_say_together(self):
        head, problems = PERF + ranks(8, 8) + HEADER, Problems()
        read = lambda text, file: LogReader(file, problems).run(text)
        tables = read(head + rows(1.75), "a.txt") + read(head + rows(1.75, 110), "b.txt")
        check_together(tables, problems)
        self.assertEqual(problems, [])
        tables += read(head + rows(1.75, 110), "again.txt") + read(head + rows(1.75, 150), "c.txt")
        tables += read(PERF + ranks(8, 8, device="NVIDIA H100 80GB HBM3") + HEADER + rows(1.75), "d.txt")
        check_together(tables, problems)
        # What is of another device contradicts nothing.
        self.assertEqual([f"{one['code']} {one['place']}" for one in problems],
                         ["calibration.twice again.txt:13", *["calibration.contradiction c.txt:15"] * 3,
                          "calibration.devices d.txt:13"])

    def test_damaged_logs_give_tables_that_can_be_used_or_problems(self):
        corpus = sorted((SOURCE / "tests/predict/nccl_logs").iterdir())
        texts = {path.name: path.read_text(errors="replace") for path in corpus}
        problems = Problems()
        LogReader("rank", problems).run(texts["rank"])
        self.assertIn("calibration.log", {one["code"] for one in problems})
        chance = random.Random(1)
        lines = [line for text in texts.values() for line in text.split("\n")]
        for _ in range(600):
            text = list(chance.choice(list(texts.values())))
            for _ in range(chance.randrange(1, 6)):
                at = chance.randrange(len(text) + 1)
                text[at:at + chance.choice((0, 1, 1, 40))] = chance.choice(
                    ("", "\n", " ", "#", "9" * 20, "-1", "1e999", "nan", "\0", "on device", "é", chance.choice(lines) + "\n"))
            problems = Problems()
            tables = LogReader("log", problems).run("".join(text))
            check_together(tables, problems)
            for table in tables:
                self.assertGreater(table.ranks, 1)
                self.assertGreaterEqual(len(table.rows), 4)
                self.assertTrue(all(row.bytes > 0 and row.seconds > 0 for row in table.rows))
            self.assertTrue(tables or problems)


if __name__ == "__main__":
    unittest.main()
