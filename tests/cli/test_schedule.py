"""`meshwright schedule`, schedules of a script's own and from files, and what a pipeline's plan
refuses."""
import csv
import json
import re
import unittest
import xml.etree.ElementTree

from cases import SOURCE, ProgramCase

NAMES = ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zbv", "v-half", "v-min", "dualpipev")


class ScheduleCommand(ProgramCase):
    def schedule(self, *arguments):
        return self.only("schedule", *arguments)

    def test_every_schedule_in_json(self):
        for name in NAMES:
            with self.subTest(name=name):
                made = self.schedule(name, "--stages", 4, "--microbatches", 8)
                self.assertEqual(set(made), {"kind", "name", "stages", "microbatches", "chunks", "makespan",
                                             "bubble_fraction", "inner_idle", "high_water", "order"})
                self.assertEqual((made["kind"], made["name"]), ("schedule", name))
                self.assertEqual((made["stages"], made["microbatches"]), (4, 8))
                self.assertEqual(made["chunks"], 2 if name in ("zbv", "v-half", "v-min", "dualpipev") else 1)
                for key in ("inner_idle", "high_water", "order"):
                    self.assertEqual(len(made[key]), 4)
                # Each stage does every microbatch of each of its chunks once: forward and backward.
                for row in made["order"]:
                    works = [re.fullmatch(r"(\d+)([FBIW])(\d+)", cell).groups() for cell in re.split("[ +]", row)]
                    self.assertEqual(len(works), len(set(works)))
                    forwards = [(v, m) for v, work, m in works if work == "F"]
                    weights = [(v, m) for v, work, m in works if work in "BW"]
                    self.assertEqual(len(forwards), 8 * made["chunks"])
                    self.assertEqual(set(forwards), set(weights))

    def test_closed_forms(self):
        for p, m in ((2, 2), (4, 8), (8, 24)):
            for name in ("gpipe", "1f1b"):
                made = self.schedule(name, "--stages", p, "--microbatches", m)
                self.assertAlmostEqual(made["bubble_fraction"], (p - 1) / (m + p - 1))
                self.assertAlmostEqual(made["makespan"], 3 * (m + p - 1))
                held = [m] * p if name == "gpipe" else [min(m, p - i) for i in range(p)]
                self.assertEqual(made["high_water"], held)
        # Chunks take their share: the same work in all, and a bubble that is smaller by
        # their number.
        one = self.schedule("1f1b", "--stages", 4, "--microbatches", 8)
        two = self.schedule("interleaved", "--stages", 4, "--microbatches", 8, "--chunks", 2)
        self.assertAlmostEqual(two["makespan"] - 24, (one["makespan"] - 24) / 2)

    def test_times_and_sends(self):
        made = self.schedule("1f1b", "--stages", 2, "--microbatches", 1, "--times", "1,2,4", "--send", "0.5")
        self.assertAlmostEqual(made["makespan"], 2 * 7 + 2 * 0.5)
        self.assertAlmostEqual(made["inner_idle"][0], (7 + 1) / 15)
        self.assertAlmostEqual(made["inner_idle"][1], 0)

    def test_memory(self):
        for name in ("zb-h1", "zb-h2", "zbv"):
            made = self.schedule(name, "--stages", 4, "--microbatches", 12, "--memory", 4)
            self.assertLessEqual(max(made["high_water"]), 4)
        self.assertGreater(max(self.schedule("zb-h2", "--stages", 4, "--microbatches", 12)["high_water"]), 4)
        self.refused(3, "schedule.memory memory", "schedule", "gpipe", "--stages", 4, "--microbatches", 12,
                     "--memory", 4)

    def test_files(self):
        made = self.schedule("zbv", "--stages", 2, "--microbatches", 4, "--csv", "out/a.csv", "--svg", "out/a.svg",
                             "--trace", "out/a.json")
        with open(self.folder / "out/a.csv", newline="") as f:
            rows = list(csv.reader(f))
        self.assertEqual([" ".join(row) for row in rows], made["order"])
        again = self.schedule("out/a.csv")
        for key in set(made) - {"name"}:
            self.assertEqual(again[key], made[key], key)
        self.assertEqual(again["name"], "out/a.csv")
        text = (self.folder / "out/a.svg").read_text()
        self.assertEqual(xml.etree.ElementTree.fromstring(text).tag, "{http://www.w3.org/2000/svg}svg")
        self.assertIn("zbv: 2 stages, 4 microbatches, 2 chunks a stage", text)
        trace = json.loads((self.folder / "out/a.json").read_text())["traceEvents"]
        slices = [e for e in trace if e["ph"] == "X"]
        self.assertEqual(len(slices), sum(len(row.split()) for row in made["order"]))
        self.assertAlmostEqual(max(e["ts"] + e["dur"] for e in slices) / 1e6, made["makespan"])

    def test_for_people(self):
        done = self.call("schedule", "1f1b", "--stages", 4, "--microbatches", 8, COLUMNS="80")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("\033", done.stdout)
        self.assertIn("1f1b: 4 stages, 8 microbatches\n", done.stdout)
        grid = [line for line in done.stdout.splitlines() if re.match(r"[0-3 ]\|", line)]
        self.assertGreaterEqual(len(grid), 4)
        self.assertTrue(all(len(line) <= 80 for line in grid))
        self.assertRegex(done.stdout, r"(?m)^ +0 +27\.3 % +[0-9.]+ % +4$")
        self.assertIn("bubble 27.3 %, makespan 33", done.stdout)

    def test_usage(self):
        for code, problem, arguments in (
                (2, "option.choice", ("1f1", "--stages", 2)),
                (2, "file.missing", ("none.csv",)),
                (2, "usage.missing", ("1f1b", "--stages", 2)),
                (2, "usage.option", ("1f1b", "--stage", 2)),
                (2, "usage.option", ("1f1b", "--stages", 0, "--microbatches", 2)),
                (2, "usage.value", ("1f1b", "--stages", 2, "--microbatches", 2, "--times", "1,2")),
                (2, "usage.option", ("1f1b", "--stages", 2, "--microbatches", 2, "--times", "1,-2,3")),
                (2, "plan.size", ("1f1b", "--stages", 65536, "--microbatches", 1 << 20)),
                (2, "file.write", ("1f1b", "--stages", 2, "--microbatches", 2, "--svg", ".")),
                (3, "schedule.chunks chunks", ("zbv", "--stages", 2, "--microbatches", 2, "--chunks", 3))):
            with self.subTest(arguments=arguments):
                self.refused(code, problem, "schedule", *arguments)

    def test_files_that_are_refused(self):
        for text, problem, arguments in (
                ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "schedule.deadlock [1]", ()),
                ("0F0,0B0,0B0\n1F0,1B0\n", "schedule.doubled [1][3]", ()),
                ("0F0,0I0\n1F0,1B0\n", "schedule.missing [1]", ()),
                ("0B0,0F0\n1F0,1B0\n", "schedule.order [1][1]", ()),
                ("0F0,0X0\n", "schedule.cell schedule[1][2]", ()),
                ("0F0,0F1,0B0,0B1\n", "schedule.memory [1][2]", ("--memory", 1)),
                ("0F0,0B0\n", "schedule.microbatches", ("--microbatches", 2)),
                ("0F0,0B0\n", "schedule.stages", ("--stages", 2)),
                ("0F0,0B0\n", "schedule.chunks", ("--chunks", 2))):
            with self.subTest(text=text):
                (self.folder / "a.csv").write_text(text)
                self.refused(3, problem, "schedule", "a.csv", *arguments)

    def test_pairs(self):
        apart = self.schedule("1f1b", "--stages", 4, "--microbatches", 12)
        pairs = self.schedule("1f1b", "--stages", 4, "--microbatches", 12, "--option", "pair=true")
        self.assertEqual(pairs["order"][3].split()[:3], ["3F0", "3F1+3B0", "3F2+3B1"])
        self.assertNotIn("+", "".join(apart["order"]))
        # One after the other nothing is gained. To hide a quarter makes up for the longer way in.
        self.assertGreaterEqual(pairs["makespan"], apart["makespan"])
        joint = self.schedule("1f1b", "--stages", 4, "--microbatches", 12, "--option", "pair=true", "--joint", 0.75)
        self.assertLess(joint["makespan"], apart["makespan"])
        self.assertEqual(joint["order"], pairs["order"])
        self.assertIn("+", "".join(self.schedule("dualpipev", "--stages", 2, "--microbatches", 6)["order"]))
        self.assertNotIn("+", "".join(self.schedule("dualpipev", "--stages", 2, "--microbatches", 6, "--option", "pair=false")["order"]))
        # As a file, and back.
        self.schedule("interleaved", "--stages", 2, "--chunks", 2, "--microbatches", 4, "--option", "pair=true", "--csv", "pairs.csv")
        self.assertRegex((self.folder / "pairs.csv").read_text(), r",\(\dF\d;\dB\d\)OVERLAP_F_B,")
        self.assertRegex(self.schedule("pairs.csv")["order"][0], r" \dF\d\+\dB\d ")
        self.schedule("dualpipev", "--stages", 2, "--microbatches", 6, "--svg", "pairs.svg", "--trace", "pairs.json")
        self.assertIn('height="12"', (self.folder / "pairs.svg").read_text())
        self.assertIn("stage 0, work 2", (self.folder / "pairs.json").read_text())
        (self.folder / "needs.csv").write_text("0F0,(0F1;0B1)OVERLAP_F_B,0B0\n")
        self.refused(3, "schedule.group [1][3]", "schedule", "needs.csv")
        self.refused(2, "option.unknown pairs", "schedule", "1f1b", "--stages", 2, "--microbatches", 2, "--option", "pairs=true")
        self.refused(2, "usage.value", "schedule", "1f1b", "--stages", 2, "--microbatches", 2, "--option", "pair")
        self.refused(2, "usage.value", "schedule", "pairs.csv", "--option", "pair=true")


HEAD = """\
local mw = require "meshwright"
local pp = mw.plugin "pp"
local function try(verb, plan, layers)
  return verb { model = mw.llama { layers = layers or 2, hidden = 32, heads = 4, ffn = 64, vocab = 64 }, plan = plan,
    data = mw.synthetic {}, sequence = 16, batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-3 }, steps = 4,
    log = verb == mw.train and "runs/run.h5" or nil }
end
"""


class PipelinePlans(ProgramCase):
    def refuse(self, *cases, verbs=("train",)):
        """Plans, exit codes, problems: refused before any rank starts, and nothing is written."""
        cases = [(f"try(mw.{verb}, {{ {plan} }})", code, problem) for plan, code, problem in cases for verb in verbs]
        errors = self.all_refused(HEAD, *cases)
        self.assertFalse((self.folder / "runs").exists())
        for n, error in enumerate(errors):
            self.assertEqual((error["file"], error["line"]), (str(self.folder / "script.lua"), HEAD.count("\n") + 1 + n))
        return errors

    def test_sizes(self):
        self.refuse(("pp(5)", 3, "pipeline.layers plan[1].ways"), verbs=("train", "plan", "verify"))
        self.refuse(
            ('pp { 3, schedule = "zbv" }', 3, "pipeline.layers plan[1].ways"),
            ('pp { 2, schedule = "zbv", chunks = 3 }', 3, "schedule.chunks plan[1].chunks"),
            ("pp { 2, chunks = 2 }", 3, "schedule.chunks plan[1].chunks"),
            ("pp { 2, layout = { 1, 2 } }", 3, "pipeline.layers plan[1].layout"),
            ("pp { 2, layout = { 2 } }", 3, "pipeline.layers plan[1].layout"),
            ("pp { 2, layout = { 3, -1 } }", 2, "option.value plan[1].layout"),
            ('pp { 2, layout = { "all" } }', 2, "option.value plan[1].layout"),
            ("pp(0)", 2, "option.range plan[1].ways"))

    def test_names(self):
        self.refuse(
            ('pp { 2, schedule = "1f1" }', 2, "option.choice plan[1].schedule"),
            ("pp { 2, schedule = 3 }", 2, "option.value plan[1].schedule"),
            ('pp { 2, schedule = "none.csv" }', 2, "file.missing plan[1].schedule"),
            ('pp { 2, scedule = "1f1b" }', 2, "option.unknown plan[1].scedule"))

    def test_times_and_memory(self):
        *_, error = self.refuse(
            ("pp { 2, times = { 1, 2 } }", 2, "option.value plan[1].times"),
            ("pp { 2, times = { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 } } }", 3, "pipeline.times plan[1].times"),
            ('pp { 2, memory = "1KiB" }', 3, "schedule.memory plan[1].memory"),
            ('pp { 2, schedule = "zb-h1", memory = "1KiB" }', 3, "schedule.memory plan[1].memory"))
        # What the hint says is enough.
        enough = re.search(r"raise the limit to (\d+)", error["hint"]).group(1)
        self.only("plan", self.write(HEAD + f'try(mw.plan, {{ pp {{ 2, schedule = "zb-h1", memory = {enough} }} }})'))

    def test_csv_files(self):
        rows = ["0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3", "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"]

        def write(name, *lines):
            (self.folder / name).write_text("\n".join(lines) + "\n")

        write("good.csv", *rows)
        write("two.csv", "0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1")
        write("doubled.csv", rows[0] + ",0B3", rows[1])
        write("missing.csv", rows[0], rows[1].replace(",1B2", ""))
        verified = self.only("verify", self.script('pp { 2, schedule = "good.csv" }'))
        self.assertEqual(verified["verdict"], "equal")
        self.refuse(
            ('pp { 2, schedule = "two.csv" }', 3, "schedule.microbatches plan[1].schedule"),
            ('pp { 2, schedule = "doubled.csv" }', 3, "schedule.doubled plan[1].schedule[1][9]"),
            ('pp { 2, schedule = "missing.csv" }', 3, "schedule.missing plan[1].schedule[2]"),
            ('pp { 3, schedule = "good.csv" }', 3, "schedule.stages plan[1].schedule"))

    # --- A schedule of the script's own ---

    def own(self, body, name=""):
        return f"pp {{ 2, schedule = mw.schedule({name}function(s) {body} end) }}"

    def test_a_deadlock_is_refused_with_its_cycle(self):
        rows = '"0F0 0B0 0F1 0F2 0F3 0B1 0B2 0B3", "1F0 1F1 1B0 1B1 1F2 1F3 1B2 1B3"'
        self.refuse((self.own(f"return {{ {rows} }}"), 3, "schedule.deadlock plan[1].schedule[1]"),
                    verbs=("train", "plan", "verify"))

    def test_what_a_function_may_return(self):
        rows = [" ".join(f"{v}F{k} {v}B{k}" for k in range(4)) for v in range(2)]
        as_texts = f'return {{ "{rows[0]}", "{rows[1]}" }}'
        as_lists = "return { %s }" % ", ".join("{ %s }" % ", ".join(f'"{a}"' for a in row.split()) for row in rows)
        as_text = f'return "{rows[0]}\\n{rows[1]}"'
        plans = [plan for body in (as_texts, as_lists, as_text)
                 for plan in (self.own(body), self.own(body, '"mine", '), f"pp {{ 2, schedule = function(s) {body} end }}")]
        runs = self.all("run", self.write(HEAD.replace('"runs/run.h5"', "nil") + "".join(f"try(mw.train, {{ {plan} }})\n" for plan in plans)))
        self.assertEqual([run["status"] for run in runs], ["done"] * 9)
        self.assertEqual(len({tuple(run["losses"]) for run in runs}), 1)
        self.refuse(*((self.own(body), 3, problem) for body, problem in (
            ("", "function.result plan[1].schedule"), ("return 3", "function.result plan[1].schedule"),
            ('return { "0F0", "1F0", "2F0" }', "function.result plan[1].schedule"),
            ('return { "0F0 nix", "1F0" }', "schedule.cell plan[1].schedule[1][2]"),
            ("return { 3 }", "function.result plan[1].schedule"))))
        chunked = self.own('return { "0F0 0F1", "1F0" }', '"mine", ').replace("2,", "2, chunks = 2,")
        self.all_refused(HEAD, (f"try(mw.plan, {{ {chunked} }}, 4)", 3, "schedule.stages plan[1].schedule"))
        self.refuse((self.own("return s.nix.there"), 2, "script.error"),
                    ('pp { 2, schedule = mw.schedule("mine") }', 2, "script.argument"))

    def test_what_a_function_is_asked(self):
        told = self.folder / "told"
        body = f"""
          local f = io.open({json.dumps(str(told))}, "w")
          f:write(s.stages, " ", s.chunks, " ", s.microbatches, " ", #s.times, " ", tostring(s.memory), " ",
                  s.times[1].forward ~= s.times[2].forward and "told" or "unit", "\\n")
          f:close()
          local rows = {{}}
          for v = 0, 1 do
            rows[v + 1] = {{}}
            for k = 0, s.microbatches - 1 do
              table.insert(rows[v + 1], v .. "F" .. k)
              table.insert(rows[v + 1], v .. "B" .. k)
            end
          end
          return rows"""
        self.only("plan", self.script(self.own(body)))
        self.assertEqual(told.read_text(), "2 1 4 2 nil told\n")

    def test_the_script_of_the_repository(self):
        text = (SOURCE / "scripts/my_schedule.lua").read_text()
        function = re.search(r"(?ms)^local \w+ = mw\.schedule\(.*?^end\)$", text).group(0)
        self.assertLessEqual(function.count("\n") + 1, 15)
        for name in ("scripts", ".deps"):
            (self.folder / name).symlink_to(SOURCE / name)
        verified = self.only("verify", "scripts/my_schedule.lua")
        self.assertEqual(verified["verdict"], "equal")
        self.assertLessEqual(max(verified["max_relative_error"].values()), 1e-10)
        run = self.only("run", "scripts/my_schedule.lua", "--set", "steps=5")
        self.assertLess(run["losses"][-1], run["losses"][0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
