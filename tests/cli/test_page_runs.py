"""What README.md and docs/ say to run, runs, and what a run leaves behind can be looked at."""
import unittest

import pages


class Runs(pages.PageCase):
    def test_runs(self):
        self.give("run", "trace", "report", least=15)


if __name__ == "__main__":
    unittest.main(verbosity=2)
