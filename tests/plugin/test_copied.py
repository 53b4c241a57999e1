# label: unit
"""A form of somebody else's: plugins/zero under another name (cmake/tests.cmake makes the copy),
with an axis and a file of its own. Its plans are the original's but for the name, `ep` borrows its
ranks, the search for a plan that fits the memory offers its lighter variants, and `verify` calls
its plans equal to one rank."""

import os
import unittest

from cases import MODELS, ProgramCase

COPIED = os.environ["MESHWRIGHT_COPIED_PLUGINS"]

LLAMA = MODELS + """
local zero2 = mw.plugins("zero2")
local function plan(mix, more)
  local e = { model = models.llama, data = mw.synthetic { sequence = 8 }, plan = mix, batch = 8, microbatch = 1,
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
    "{ @ { 4, stage = 2 }, ep(2) }, { model = models.moe }",
)


class Copied(ProgramCase):
    def planned(self, name, mix):
        """The programs of a mix as `plan --program` lists them, and its result, under the name `zero`."""
        script = self.write(f"{LLAMA}mw.plan(plan({mix.replace('@', name)}))\n")
        shown = self.call("plan", "--program", "--plugin-path", COPIED, script)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        # Columns are as wide as the longest name in them.
        lines = [" ".join(line.split()) for line in shown.stdout.replace("zero2", "zero").splitlines()]
        first = next(i for i, line in enumerate(lines) if line.startswith("stage 0 of "))
        return lines[first:], self.only("plan", "--plugin-path", COPIED, script)

    def test_the_programs_are_the_same(self):
        for mix in MIXES:
            with self.subTest(mix):
                (own, own_plan), (copied, copied_plan) = (self.planned(name, mix) for name in ("zero", "zero2"))
                self.assertGreater(len(own), 100)
                self.assertEqual(own, copied)
                self.assertEqual(own_plan["memory"], copied_plan["memory"])

    def test_it_equals_one_rank(self):
        mixes = (mix.replace("@", "zero2").replace(', { precision = "bf16" }', "") for mix in MIXES)
        text = LLAMA + "".join(f"mw.verify(plan({mix}))\n" for mix in mixes)
        results = self.all("verify", "--plugin-path", COPIED, self.write(text))
        self.assertEqual([result["verdict"] for result in results], ["equal"] * len(MIXES))

    def test_the_search_for_memory_offers_it(self):
        calls = (f'mw.plan(plan({{ {name} {{ 2, stage = 1 }} }}, {{ memory = "1KiB" }}))\n' for name in ("zero", "zero2"))
        script = self.write(LLAMA + "".join(calls))
        own, copied = (plan["hint"] for plan in self.all("plan", "--plugin-path", COPIED, script))
        self.assertRegex(copied, r"zero2 \{ 2, [^}]*stage = 3")
        self.assertEqual(own, copied.replace("zero2", "zero"))


if __name__ == "__main__":
    unittest.main()
