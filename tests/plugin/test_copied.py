# label: unit
"""Forms of somebody else's: plugins/zero and plugins/pp with its schedulers, copied out of the
source folder under other names and built from the installed kit, each with an axis of its own.
Their plans are the originals' but for the names, `ep` borrows the copied zero's ranks, the search
for a plan that fits the memory offers its lighter variants, and `verify` calls their plans equal
to one rank."""

import re
import unittest

from cases import MODELS, SOURCE
from kit import PROJECT, KitCase

SCHEDULERS = ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zbv", "v-half", "v-min", "dualpipev")
# Names as C++ and scripts write them, in quotes; zero's axis and messages have it bare.
WEAVES = ("switch", "hide")
NAMED = re.compile('"(pp|%s)"' % "|".join(SCHEDULERS + WEAVES))
COPIED_NAME = re.compile(r"\b(zero|pp|%s)2(?![0-9a-z])" % "|".join(SCHEDULERS + WEAVES))

SCRIPT = MODELS + """
local zero2, pp2 = mw.plugins("zero2", "pp2")
local function plan(mix, more)
  local e = { model = models.llama, data = mw.synthetic { sequence = 8 }, plan = mix, batch = 8, microbatch = 1,
              optimizer = mw.adamw { lr = 1e-3 }, steps = 1 }
  for key, value in pairs(more or {}) do e[key] = value end
  return e
end
"""
# Each for the originals and for their copies: @ stands for the 2 of a copy's name.
MIXES = (
    "{ zero@ { 4, stage = 1, replicas = 2 } }",
    '{ zero@ { 2, stage = 2, offload = "optimizer" }, tp(2) }',
    '{ pp { 2, schedule = "1f1b" }, zero@ { 2, stage = 3, prefetch = 2 } }, { precision = "bf16" }',
    '{ zero@ { 2, stage = 3, keep = true, offload = "parameters" }, sp { 2 } }',
    "{ zero@ { 4, stage = 2 }, ep(2) }, { model = models.moe }",
    '{ pp@ { 2, memory = "64KiB" }, zero@ { 2, stage = 2 } }',
    *(f'{{ pp@ {{ 2, schedule = "{name}@" }} }}' for name in SCHEDULERS),
)
CHUNKS = {"interleaved": ", chunks = 2", "looped-bfs": ", chunks = 2"}
MIXES = tuple(re.sub(r'"([\w-]+)@" \}', lambda m: f'"{m[1]}@"{CHUNKS.get(m[1], "")} }}', mix) for mix in MIXES)


class Copied(KitCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        source = cls.around / "copies"
        project = PROJECT + "set(CMAKE_UNITY_BUILD ON)\n"
        for form, renamed in (("zero", lambda text: text.replace("zero", "zero2")),
                              ("pp", lambda text: NAMED.sub(r'"\g<1>2"', text))):
            folder = source / f"{form}2"
            folder.mkdir(parents=True)
            for file in (SOURCE / "plugins" / form).iterdir():
                name = file.name.replace("zero", "zero2") if form == "zero" else file.name
                (folder / name).write_text(renamed(file.read_text()))
            files = " ".join(str(file.relative_to(source)) for file in sorted(folder.glob("*.cpp")))
            project += f"meshwright_add_plugin({form}2 {files})\n"
        (source / "CMakeLists.txt").write_text(project)
        cls.copies = cls.build_in(source, cls.around / "build")

    def of(self, verb, text, *arguments):
        """What the installed program says of a script."""
        return self.shell(self.prefix / "bin/meshwright", verb, "--plugin-path", self.copies, *arguments,
                          self.write(SCRIPT + text)).stdout

    def results(self, verb, text):
        done = self.shell(self.prefix / "bin/meshwright", verb, "--plugin-path", self.copies, "--json",
                          self.write(SCRIPT + text))
        return self.lines(done)

    def planned(self, end):
        """The programs of all mixes as `plan --program` lists them, a list each, and their results."""
        text = "".join(f"mw.plan(plan({mix.replace('@', end)}))\n" for mix in MIXES)
        listings = []
        # Columns are as wide as the longest name in them.
        for line in COPIED_NAME.sub(r"\1", self.of("plan", text, "--program")).splitlines():
            if line.startswith("stage 0 of "):
                listings.append([])
            if line.startswith("plan "):
                listings.append(None)
            if listings and listings[-1] is not None:
                listings[-1].append(" ".join(line.split()))
        return [one for one in listings if one], self.results("plan", text)

    def test_the_programs_are_the_same(self):
        (own, own_plans), (copied, copied_plans) = self.planned(""), self.planned("2")
        self.assertEqual((len(own), len(copied)), (len(MIXES), len(MIXES)))
        for mix, *listings in zip(MIXES, own, copied):
            with self.subTest(mix):
                self.assertGreater(len(listings[0]), 100)
                self.assertEqual(*listings)
        self.assertEqual([plan["memory"] for plan in own_plans], [plan["memory"] for plan in copied_plans])
        self.assertNotEqual([plan["plan"] for plan in own_plans], [plan["plan"] for plan in copied_plans])

    def test_it_equals_one_rank(self):
        mixes = (mix.replace("@", "2").replace(', { precision = "bf16" }', "") for mix in MIXES)
        results = self.results("verify", "".join(f"mw.verify(plan({mix}))\n" for mix in mixes))
        self.assertEqual([result["verdict"] for result in results], ["equal"] * len(MIXES))

    def test_the_search_for_memory_offers_it(self):
        calls = (f'mw.plan(plan({{ {name} {{ 2, stage = 1 }} }}, {{ memory = "1KiB" }}))\n' for name in ("zero", "zero2"))
        own, copied = (plan["hint"] for plan in self.results("plan", "".join(calls)))
        self.assertRegex(copied, r"zero2 \{ 2, [^}]*stage = 3")
        self.assertEqual(own, copied.replace("zero2", "zero"))


if __name__ == "__main__":
    unittest.main()
