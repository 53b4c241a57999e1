"""scripts/long_context.lua: what is predicted to be the longest sequence within the limit runs
within it, and the chart shows it."""
import json
import re
import unittest

from cases import SOURCE, ProgramCase

LIMIT = 48  # MiB
FORMS = ["one rank", "tp", "tp, sp", "Ulysses", "gathered keys", "ring", "ring, no zigzag", "ring x Ulysses"]


class LongContext(ProgramCase):
    def test_long_context(self):
        (self.folder / ".deps").symlink_to(SOURCE / ".deps")
        done = self.call("run", SOURCE / "scripts/long_context.lua")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = re.findall(r"(?m)^  (\S.*?) +(\d+) +([\d.]+) +(~?[\d.]+) +[\d.]+ +[\d.]+ +[\d.]+$", done.stdout)
        self.assertEqual([name for name, *_ in found], FORMS)
        tokens = {name: int(count) for name, count, *_ in found}
        for name, _, peak, predicted in found:
            with self.subTest(name):
                near = float(predicted.strip("~"))
                if "~" in predicted:  # an estimate, of scratch alone
                    self.assertAlmostEqual(float(peak), near, delta=0.08 * near)
                else:
                    self.assertEqual(peak, predicted)
                self.assertLessEqual(float(peak), LIMIT)
                self.assertGreater(near, 0.97 * LIMIT)  # 64 tokens more would not fit
                self.assertEqual(tokens[name] % 64, 0)
        for name in FORMS[1:]:
            self.assertGreater(tokens[name], 2 * tokens["one rank"])
        self.assertGreater(tokens["tp, sp"], tokens["tp"])
        self.assertGreater(tokens["ring"], tokens["gathered keys"])
        # The chart has the numbers.
        page = (self.folder / "runs/long_context.html").read_text()
        chart = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])
        self.assertEqual(chart["bars"], [[name, count, count] for name, count in tokens.items()])


if __name__ == "__main__":
    unittest.main(verbosity=2)
