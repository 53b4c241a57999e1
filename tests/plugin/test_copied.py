# label: unit
"""A form of somebody else's: plugins/zero under another name (cmake/tests.cmake makes the copy), with an axis and a file
of its own. Its plans are the original's but for the name, and `verify` calls them equal to one rank."""

import os
import unittest

from cases import MODELS, ProgramCase

COPIED = os.environ["MESHWRIGHT_COPIED_PLUGINS"]

LLAMA = MODELS + """
local zero2 = mw.plugins("zero2")
local function plan(mix, more)
  local e = { model = models.llama, data = mw.synthetic { sequence = 8 }, plan = mix, batch = 8, microbatch = 4,
              optimizer = mw.adamw { lr = 1e-3 }, steps = 1 }
  for key, value in pairs(more or {}) do e[key] = value end
  return e
end
"""
# Each for zero and for its copy: @ is the name.
MIXES = (
    "{ @ { 4, stage = 1, replicas = 2 } }",
    '{ @ { 2, stage = 2, offload = "optimizer" }, tp(2) }',
    '{ pp { 2, schedule = "1f1b" }, @ { 2, stage = 3, prefetch = 2 } }, { precision = "bf16" }',
    '{ @ { 2, stage = 3, keep = true, offload = "parameters" }, sp { 2 } }',
)


class Copied(ProgramCase):
    def plans(self, name):
        """What `plan --program` prints of all mixes, and the lines of --json, under the name `zero`."""
        script = self.write(LLAMA + "".join(f"mw.plan(plan({mix.replace('@', name)}))\n" for mix in MIXES))
        shown = self.call("plan", "--program", "--plugin-path", COPIED, script)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        # Columns are as wide as the longest name in them.
        text = [" ".join(line.split()) for line in shown.stdout.replace("zero2", "zero").splitlines()]
        return text, self.all("plan", "--plugin-path", COPIED, script)

    def test_the_programs_are_the_same(self):
        (own, own_lines), (copied, copied_lines) = self.plans("zero"), self.plans("zero2")
        self.assertEqual(len(own_lines), len(MIXES))
        self.assertGreater(len(own), 100 * len(MIXES))
        self.assertEqual(own, copied)
        for one, other in zip(own_lines, copied_lines, strict=True):
            self.assertEqual(one["predicted"]["stages"], other["predicted"]["stages"])

    def test_it_equals_one_rank(self):
        mixes = (mix.partition(", { precision")[0].replace("@", "zero2") for mix in MIXES)
        text = LLAMA + "".join(f"mw.verify(plan({mix}))\n" for mix in mixes)
        results = self.all("verify", "--plugin-path", COPIED, self.write(text))
        self.assertEqual([result["verdict"] for result in results], ["equal"] * len(MIXES))

    def test_it_lends_its_ranks_and_is_offered_where_memory_is_short(self):
        text = LLAMA + "local e = plan({ zero2 { 4, stage = 3 }, ep(2) }, { model = models.moe, microbatch = 1 })\n"
        results = self.all("verify", "--plugin-path", COPIED, self.write(text + "mw.verify(e)\n"))
        self.assertEqual([result["verdict"] for result in results], ["equal"])
        stages = "".join(f"mw.plan(plan({{ zero2 {{ 4, stage = {stage} }} }}, {{ microbatch = 1 }}))\n" for stage in (1, 2, 3))
        peaks = [max(stage["peak"] for stage in result["memory"])
                 for result in self.all("plan", "--plugin-path", COPIED, self.write(LLAMA + stages))]
        self.assertEqual(peaks, sorted(peaks, reverse=True))
        short = f"mw.plan(plan({{ zero2(4) }}, {{ microbatch = 1, memory = {peaks[2]} }}))\n"
        result = self.only("plan", "--plugin-path", COPIED, self.write(LLAMA + short))
        self.assertTrue(result["hint"].startswith("plan = { zero2 { 4, stage = 3 } } would fit: "), result["hint"])


if __name__ == "__main__":
    unittest.main()
