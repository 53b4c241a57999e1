# label: unit
"""docs/gpu.md lists every place where the host waits for an accelerator, and no other."""

import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])


class HostWaits(unittest.TestCase):
    def test_the_list_is_that_of_the_sources(self):
        declared = {name for folder in ("core/src", "plugins") for path in (SOURCE / folder).rglob("*.cpp")
                    for name in re.findall(r'\bHostWait \w+[({]"([^"]+)"', path.read_text())}
        section = re.search(r"(?ms)^## Where the host waits$(.*?)^## ", (SOURCE / "docs/gpu.md").read_text())[1]
        listed = set(re.findall(r"(?m)^\| ([^|]+?) \|", section)) - {"---"}
        self.assertGreater(len(declared), 5)
        self.assertEqual(declared, listed)


if __name__ == "__main__":
    unittest.main()
