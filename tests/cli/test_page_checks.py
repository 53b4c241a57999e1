"""What README.md and docs/ say to verify and to compare ends as they say."""
import unittest

import pages


class Checks(pages.PageCase):
    def test_checks(self):
        self.give("verify", "compare", least=12)


if __name__ == "__main__":
    unittest.main(verbosity=2)
