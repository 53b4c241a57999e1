# label: unit
"""The command that runs the fuzzers knows every reader, names sources that there are, and reads
what libFuzzer prints of coverage."""

import os
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fuzz
import pages

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])


class Fuzz(unittest.TestCase):
    def test_each_reader_with_a_corpus_is_known(self):
        self.assertEqual(sorted(fuzz.READERS), sorted(folder.name for folder in fuzz.CORPUS.iterdir()))

    def test_sources_are_there(self):
        paths = [path.as_posix() for root in ("app", "core", "libs", "plugins") for path in (SOURCE / root).rglob("*.*")]
        for target, parts in fuzz.READERS.items():
            for part in parts:
                found = any(part.partition(":")[0] in path for path in paths)
                self.assertTrue(found, f"{target} names {part}, and there is no such file")

    def test_coverage_is_read(self):
        line = "COVERED_FUNC: hits: 7 edges: 5/9 mw::(anonymous namespace)::Reader::add(int) /x/core/src/schedule/text.cpp:88"
        found = fuzz.FUNCTION.match(line)
        self.assertEqual([found[k] for k in (1, 2, 3)], ["7", "5", "9"])
        self.assertTrue(fuzz.is_own("schedules", found[4], found[5]))
        self.assertFalse(fuzz.is_own("shards", found[4], found[5]))
        self.assertTrue(fuzz.FUNCTION.match("UNCOVERED_FUNC: hits: 0 edges: 0/2 mw::f() /x/y.cpp:1"))

    def test_commands_of_the_page_are_right(self):
        page = pages.part("trust", "How we test")
        commands = re.findall(r"^tests/fuzz/fuzz\.py ([^#\n]*)", page, re.MULTILINE)
        self.assertEqual(len(commands), 3)
        for command in commands:
            asked = fuzz.arguments().parse_args(command.split())
            self.assertLessEqual(set(asked.target or []), set(fuzz.READERS))

    def test_corpora_are_small(self):
        sizes = [path.stat().st_size for path in fuzz.CORPUS.rglob("*") if path.is_file()]
        self.assertLess(sum(sizes), 300_000)


if __name__ == "__main__":
    unittest.main()
