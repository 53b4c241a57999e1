# label: cli
"""`calibrate --from` describes a cluster by logs of nccl-tests and by measured steps: what was
measured is found again, in the file that it writes; what cannot be is refused, all at once."""
import csv
import json
import math
import re
import unittest

from cases import SOURCE, ProgramCase
from problems import problems

GPU = "NVIDIA H100 80GB HBM3"
BUS = {"all_reduce": lambda n: 2 * (n - 1) / n, "alltoall": lambda n: (n - 1) / n}

# dgx-h100's numbers as somebody else would have guessed them.
GUESSED = """\
local include = ...
local made = include "dgx-h100"
made.node.curves, made.node.curve_bandwidth, made.node.curve_share = nil, nil, nil
made.node.share, made.network.share, made.network.latency = 0.4, 0.5, 50e-6
return made
"""

# A step of 8 devices, whose parts --set changes.
STEP = """\
local mw = require "meshwright"
local dp, tp = mw.plugins("dp", "tp")
mw.plan {
  model = mw.gpt { layers = 8, hidden = 4096, heads = 32, vocab = 51200 }, data = mw.synthetic {}, sequence = 2048,
  plan = { dp(2), tp(4) }, batch = 32, microbatch = 4, precision = "bf16", recompute = "full",
  optimizer = mw.adamw { lr = 1e-4 }, steps = 1,
}
"""
STEPS = [[], ["model.hidden=1024", "microbatch=1"], ["plan[1].ways=1", "plan[2].ways=8"],
         ["plan[1].ways=8", "plan[2].ways=1", "microbatch=2", "model.layers=4"]]


def log(collective, nodes, rows, of_node=8, gpu=GPU):
    """What <collective>_perf prints; rows: bytes and seconds."""
    ranks = nodes * of_node
    lines = [f"# Collective test starting: {collective}_perf", "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824",
             "#", "# Using devices"]
    lines += [f"#  Rank {r:2} Group  0 Pid {r + 70:6} on    node{r // of_node} device {r % of_node:2} [0x0f] {gpu}"
              for r in range(ranks)]
    lines += ["#", "#" + " " * 62 + "out-of-place" + " " * 23 + "in-place",
              "#       size         count      type   redop    root" + "     time   algbw   busbw #wrong" * 2,
              "#        (B)    (elements)" + " " * 31 + "(us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"]
    for size, seconds in rows:
        rate = 1e-9 * size / seconds
        time = f"{1e6 * seconds:9.2f} {rate:7.2f} {BUS[collective](ranks) * rate:7.2f}      0"
        lines.append(f"{size:12} {size // 4:13}     float     sum      -1 {time} {time}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1", "#", ""])


def h100_curve():
    """dgx-h100's all-reduce of 8 devices: the A100's curve, whose link is 1.5 times slower."""
    text = (SOURCE / "clusters/devices/nvlink_a100.lua").read_text().split("ranks = 8")[1]
    points = [(int(size) << 20, float(seconds)) for size, seconds in re.findall(r"{ (\d+) \* MiB, ([\d.e-]+) }", text)]

    def seconds(size):
        size /= 1.5
        if size <= points[0][0]:
            return 20e-6 + (points[0][1] - 20e-6) * size / points[0][0]
        for (a, low), (b, high) in zip(points, points[1:]):
            if size <= b:
                return low * (high / low) ** (math.log(size / a) / math.log(b / a))
        return points[-1][1] * size / points[-1][0]
    return seconds


def h100_logs():
    """Logs of a machine that is dgx-h100 as docs/prediction.md says it is priced."""
    inside, own = h100_curve(), 50e9 * 0.88

    def over(nodes, size):
        n = 8 * nodes
        ring = 2 * (n - 1) / n * size / min(8 * own, 450e9 * 0.78) + 2 * (n - 1) * 6e-6
        tree = inside(size) + 2 * (nodes - 1) / nodes * size / 8 / own + 2 * math.log2(nodes) * 15e-6 + 20e-6
        return min(ring, tree)

    sizes = [1 << k for k in range(10, 32)]
    rows = lambda seconds: [(size, seconds(size)) for size in sizes]
    return {"all_reduce-1.txt": log("all_reduce", 1, rows(inside)),
            "alltoall-1.txt": log("alltoall", 1, rows(lambda size: 20e-6 + size * 7 / 8 / (450e9 * 0.78))),
            **{f"all_reduce-{nodes}.txt": log("all_reduce", nodes, rows(lambda size: over(nodes, size)))
               for nodes in (2, 4, 16)}}


class From(ProgramCase):
    def put(self, files):
        for name, text in files.items():
            (self.folder / name).write_text(text)
        return list(files)

    def described(self, *arguments):
        result = self.only("calibrate", "--from", *arguments)
        self.assertEqual(result["kind"], "description")
        return result

    def refused(self, *arguments):
        done = self.call("calibrate", "--json", "--from", *arguments)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return problems(self.lines(done))

    def near(self, one, other, share=0.01):
        self.assertLess(abs(one / other - 1), share, f"{one} and {other}")

    def test_a_cluster_that_ships_is_found_again_from_a_wrong_guess(self):
        files = self.put(h100_logs())
        (self.folder / "guess.lua").write_text(GUESSED)
        result = self.described(*files, "--cluster", "./guess.lua", "-o", "mine.lua")
        self.assertEqual(len(result["rows"]), 22 * 5)
        for row in result["rows"]:
            if row["bytes"] >= 64 << 10:
                with self.subTest(f'{row["collective"]} {row["ranks"]} {row["bytes"]}'):
                    self.near(row["predicted_seconds"], row["seconds"])
        # The file says so too, where a plan reads it.
        text = (self.folder / "mine.lua").read_text()
        for part, share in (("network", 0.88), ("node", 0.78)):
            self.near(float(re.search(rf"  {part} = {{.*?  share = ([\d.]+),", text, re.DOTALL)[1]), share)
        self.assertIn("alltoall-1.txt:", text)
        script = self.write(STEP)
        whole = ["--set", "plan[1].ways=1", "--set", "plan[2].ways=8"]
        steps = [self.only("plan", script, "--cluster", name, "--nodes", "1", *whole)["step_seconds"]
                 for name in ("dgx-h100", "./mine.lua")]
        self.near(*steps)

    def test_logs_alone_name_the_devices_and_what_they_do_not_tell_is_said(self):
        rows = [[int(cell) for cell in (row[0], row[3])] for row in
                csv.reader((SOURCE / "tests/reference/nccl_ar_a100_8gpu.csv").read_text().splitlines()[1:])]
        powers = [(size, 1e-9 * time) for size, time in rows if size & (size - 1) == 0]
        self.put({"one.txt": log("all_reduce", 1, powers, gpu="NVIDIA A100-SXM4-80GB")})
        result = self.described("one.txt", "-o", "mine.lua")
        self.assertEqual(result["base"], "dgx-a100-80")
        self.assertTrue(any("the network stays that of dgx-a100-80" in said for said in result["unknown"]))
        # Rows that became the curve say nothing of how well it predicts.
        self.assertTrue(all(row["is_curve"] for row in result["rows"]))
        self.assertEqual(result["doubts"], [])
        self.assertEqual(self.refused("one.txt", "-o", "mine.lua"), ["calibration.exists -o"])
        self.described("one.txt", "-o", "mine.lua", "--overwrite")
        # Two nodes of the same kind, as they were published.
        published = SOURCE / "scripts/my_cluster/all_reduce-2nodes.txt"
        result = self.described(published, "-o", "two.lua")
        self.assertEqual(result["base"], "dgx-a100-40")
        self.assertTrue(all(row["is_curve"] for row in result["rows"]))
        for row in result["rows"]:
            self.near(row["predicted_seconds"], row["seconds"], 1e-4)
        missed, = (said for said in result["unknown"] if said.startswith("groups of other nodes"))
        self.assertLess(float(re.search(r"by ([\d.]+) % on average", missed)[1]), 25)
        # NCCL's tree over two nodes goes beyond the ring's rate: that makes no NIC faster.
        self.assertIn("nic = 25e9", (self.folder / "two.lua").read_text())

    def test_a_plan_takes_what_was_measured_wherever_the_library_changes_its_way(self):
        """NCCL's protocols and trees make steps that no latency and rate have: each plan's gradients lie between the
        measured sizes next to theirs."""
        step = lambda size: 120e-6 + size / (17e9 if size < 1 << 25 else 90e9)
        rows = [(1 << k, step(1 << k)) for k in range(10, 31)]
        self.put({"two.txt": log("all_reduce", 2, rows)})
        self.described("two.txt", "-o", "mine.lua")
        sizes = "256, 512, 720, 1024, 1440, 2048"
        script = self.write(f"""local mw = require "meshwright"
local dp = mw.plugins("dp")
for _, h in ipairs {{ {sizes} }} do
  mw.plan {{ model = mw.llama {{ layers = 1, hidden = h, heads = 8, ffn = h, vocab = 64 }}, data = mw.synthetic {{}},
    sequence = 16, plan = {{ dp {{ 16, bucket = "8GiB" }} }}, batch = 16, optimizer = mw.sgd {{ lr = 0 }}, steps = 1,
    cluster = mw.cluster("./mine.lua", {{ nodes = 2 }}) }}
end
""")
        tried = 0
        for plan in self.all("plan", script):
            for row in plan["communication"]:
                if row["phase"] != "gradients":
                    continue
                tried += 1
                size = row["bytes"] * 16 / 30  # of the buffer, of which each rank sends 2 * 15 / 16
                (low, before), (high, behind) = next(pair for pair in zip(rows, rows[1:]) if pair[1][0] >= size)
                expected = before + (behind - before) * (size - low) / (high - low)
                with self.subTest(size):
                    self.near(row["seconds"], expected, 0.15)
                    self.assertEqual(row["basis"], "measured")
        self.assertEqual(tried, 6)

    def test_a_log_that_ends_in_a_failure(self):
        whole = h100_logs()["all_reduce-2.txt"]
        cut = whole[:whole.index("# Out of bounds")]
        self.put({"failed.txt": cut + "ha: Test NCCL failure common.cu:1038 'unhandled system error'\n"})
        self.assertEqual(self.refused("failed.txt", "-o", "mine.lua"), ["calibration.log --from"])
        self.assertFalse((self.folder / "mine.lua").exists())

    def test_steps_that_other_shares_made_are_found_again(self):
        (self.folder / "step.lua").write_text(STEP)
        made = ["--cluster", "dgx-h100", "--stack", "megatron-core", "--set", "cluster.device.gemm=0.52",
                "--set", "stack.host=0.9"]
        words = [[word for setting in settings for word in ("--set", setting)] for settings in STEPS]
        steps = [self.only("plan", "step.lua", *made, *each)["step_seconds"] for each in words]
        (self.folder / "steps.json").write_text(json.dumps(
            [{"script": "step.lua", "step": step, "nodes": 1, "set": settings} for step, settings in zip(steps, STEPS)]))
        result = self.described("steps.json", "--cluster", "dgx-h100", "--stack", "megatron-core", "-o", "mine.lua")
        before = [abs(step["before_seconds"] / step["seconds"] - 1) for step in result["steps"]]
        self.assertGreater(max(before), 0.1)
        self.near(result["fitted"]["device.gemm"]["value"], 0.52, 0.02)
        self.assertIn("left_out_seconds", result["steps"][0])
        for step, each in zip(result["steps"], words):
            self.near(step["predicted_seconds"], step["seconds"])
            again = self.only("plan", "step.lua", "--cluster", "./mine.lua", "--stack", "./mine-stack.lua", *each)
            self.near(again["step_seconds"], step["predicted_seconds"], 1e-4)
            self.assertIn("mine: 1 node of 8 H100-80GB, stack mine-stack", again["priced_for"])

    def test_all_that_is_wrong_is_said_at_once(self):
        good = h100_logs()["all_reduce-1.txt"]
        lines = good.splitlines()
        self.put({"good.txt": good, "none.txt": "no table\n", "short.txt": good.replace(lines[-6], lines[-6][:60]),
                  "wrong.txt": re.sub("0$", "7", lines[-6]).join(good.split(lines[-6])),
                  "slow.txt": log("all_reduce", 1, [(1 << k, 1.0) for k in range(20, 31)]),
                  "other.txt": good.replace(GPU, "NVIDIA A100-SXM4-80GB"),
                  "few.txt": "\n".join(lines[:18] + lines[-4:]), "steps.json": '[{ "script": "no.lua", "step": 0 }]'})
        found = self.refused("good.txt", "none.txt", "short.txt", "wrong.txt", "slow.txt", "other.txt", "few.txt",
                             "gone.txt", "steps.json", "-o", "mine.json")
        self.assertEqual(sorted(set(found)), [
            "calibration.base --stack", "calibration.contradiction --from", "calibration.devices --from",
            "calibration.log --from", "calibration.output -o", "calibration.sizes --from",
            "calibration.wrong-results --from", "option.missing steps.json[1].nodes", "option.range steps.json[1].step"])
        self.assertEqual(len(found), 11, found)
        self.assertFalse((self.folder / "mine.json").exists())

    def steps(self, entries, name="steps.json"):
        (self.folder / "step.lua").write_text(STEP)
        (self.folder / name).write_text(json.dumps([{"script": "step.lua", "nodes": 1, **each} for each in entries]))

    def test_steps_that_no_fit_explains(self):
        base = ["--cluster", "dgx-h100", "--stack", "megatron-core", "-o", "mine.lua"]
        (self.folder / "step.lua").write_text(STEP)
        step = self.only("plan", "step.lua", *base[:4])["step_seconds"]
        cases = (("milliseconds", [{"step": 1e3 * step}]), ("minutes", [{"step": step / 60}]),
                 ("one of three", [{"step": step}, {"step": 1e3 * step / 2, "set": ["batch=16"]},
                                   {"step": 2 * step, "set": ["batch=64"]}]),
                 ("no room for it", [{"step": step, "set": ["model.layers=96", "recompute=none"]}]),
                 ("no text", [{"step": step, "set": [5]}]))
        for name, entries in cases:
            with self.subTest(name):
                self.steps(entries)
                places = {"one of three": "steps.json[2].step", "no room for it": "steps.json[1]",
                          "no text": "steps.json[1].set"}
                self.assertEqual(self.refused("steps.json", *base),
                                 ["calibration.steps " + places.get(name, "steps.json[1].step")])
        self.assertFalse((self.folder / "mine.lua").exists())
        # What a fit explains only by shares that no hardware of the kind has is written, and said.
        self.steps([{"step": 3 * step}])
        result = self.described("steps.json", *base)
        self.assertEqual(len([said for said in result["doubts"] if said.startswith("steps.json[1] took 3 times")]), 1)
        self.assertIn("Doubtful: steps.json[1] took 3 times", (self.folder / "mine.lua").read_text().replace("\n-- ", " "))

    def test_what_a_driver_would_report_is_said_of_steps_that_fill_devices(self):
        steps = SOURCE / "scripts/my_cluster/steps.json"
        result = self.described(steps, "--cluster", "dgx-a100-40", "--stack", "fsdp-mpt", "-o", "mine.lua")
        self.assertEqual(len(result["doubts"]), 1, result["doubts"])
        self.assertRegex(result["doubts"][0], r"^a driver would report more than the 40 GiB of .* for 5 of 5 measured steps, "
                                             r"up to 4\d(\.\d)? GiB")

    def test_inputs_given_twice_or_about_to_be_replaced(self):
        good = h100_logs()["all_reduce-1.txt"]
        lines = good.splitlines(keepends=True)
        self.put({"good.txt": good, "log.lua": good, "cut.txt": "".join(lines[:-4]),
                  "unknown.txt": good.replace(GPU, "NVIDIA Graphics Device"), "part.txt": good.replace(GPU, "NVIDIA GH100")})
        self.assertEqual(self.refused("good.txt", "./good.txt", "-o", "mine.lua"), ["calibration.twice --from"])
        self.assertEqual(self.refused("log.lua", "-o", "log.lua", "--overwrite"), ["file.write"])
        self.assertEqual((self.folder / "log.lua").read_text(), good)
        self.steps([{"step": 1}, {"step": 1.1}])
        base = ["--cluster", "dgx-h100", "--stack", "megatron-core"]
        self.assertEqual(self.refused("steps.json", *base, "-o", "mine.lua"), ["calibration.twice --from"])
        self.steps([{"step": 1}])
        self.assertEqual(self.refused("steps.json", *base, "-o", "step.lua", "--overwrite"), ["file.write"])
        self.assertEqual(self.refused("good.txt", "-o", "none/mine.lua"), ["calibration.output -o"])
        self.assertFalse((self.folder / "none").exists())
        self.assertEqual(self.refused(".", "-o", "mine.lua"), ["calibration.log --from"])
        self.assertEqual(self.refused("gone.json", *base, "-o", "mine.lua"), ["calibration.log --from"])
        # Logs that are cut off, and devices that are not known to be the base's.
        for name, words in (("cut.txt", "ends with 1 GiB"), ("unknown.txt", "NVIDIA Graphics Device"),
                            ("part.txt", "NVIDIA GH100")):
            with self.subTest(name):
                [doubt] = self.described(name, "--cluster", "dgx-h100", "-o", name + ".lua")["doubts"]
                self.assertIn(words, doubt)

    def test_only_descriptions_that_it_has_made_are_replaced(self):
        self.put({"good.txt": h100_logs()["all_reduce-1.txt"], "mine.lua": GUESSED, "empty.lua": "", "own-stack.lua": GUESSED})
        self.steps([{"step": 1}])
        for more in ((), ("--overwrite",)):
            self.assertEqual(self.refused("good.txt", "-o", "mine.lua", *more), ["page.foreign"])
            # The file of the stack too, which no option names.
            self.assertEqual(self.refused("steps.json", "--cluster", "dgx-h100", "--stack", "megatron-core", "-o", "own.lua", *more),
                             ["page.foreign"])
        for name in ("mine.lua", "own-stack.lua"):
            self.assertEqual((self.folder / name).read_text(), GUESSED)
        self.described("good.txt", "-o", "empty.lua", "--overwrite")
        self.described("good.txt", "-o", "empty.lua", "--overwrite")

    def test_problems_name_what_the_user_wrote(self):
        self.steps([{"step": 1, "set": ["batch=x"]}, {"step": 1, "set": ["plan[1].ways=16", "microbatch=1"]}])
        done = self.call("calibrate", "--from", "steps.json", "--cluster", "dgx-h100", "--stack", "megatron-core",
                         "-o", "mine.lua")
        self.assertIn("error: steps.json[1]: --set batch=x: ", done.stderr)
        self.assertIn("error: steps.json[2]: --cluster dgx-h100 --nodes 1: ", done.stderr)
        self.put({"good.txt": h100_logs()["all_reduce-1.txt"]})
        done = self.call("calibrate", "--from", "good.txt", "--cluster", "tpu", "-o", "mine.txt")
        self.assertIn("error: --cluster tpu: ", done.stderr)
        self.assertIn("error: -o mine.txt: ", done.stderr)

    def test_what_is_missing_of_python_is_said(self):
        self.put({"good.txt": h100_logs()["all_reduce-2.txt"], "broken.lua": "return { name = 'mine', device = 5 }"})
        (self.folder / "numpy").mkdir()
        (self.folder / "numpy/__init__.py").write_text("raise ModuleNotFoundError('none', name='numpy')\n")
        for changed, code, words in (({"MESHWRIGHT_PYTHON": "no-such-python"}, "program.missing", "no-such-python"),
                                     ({"PYTHONPATH": str(self.folder)}, "python.missing", "cannot import numpy")):
            with self.subTest(code):
                done = self.call("calibrate", "--json", "--from", "good.txt", "-o", "mine.lua", **changed)
                self.assertEqual((done.returncode, self.lines(done)[-1]["code"]), (5, code), done.stderr)
                self.assertIn("--from: ", done.stderr)
                self.assertIn(words, done.stderr)
        self.assertFalse((self.folder / "mine.lua").exists())
        # What the program refuses of a description that Python asks about keeps its code and key.
        self.assertIn("option.type cluster.device",
                      self.refused("good.txt", "--cluster", "./broken.lua", "-o", "mine.lua"))

    def test_bases_that_cannot_be(self):
        self.put({"good.txt": h100_logs()["all_reduce-2.txt"], "step.lua": STEP,
                  "other.txt": log("all_reduce", 1, [(1 << k, 1e-3) for k in range(20, 31)], gpu="NVIDIA L40S"),
                  "steps.json": '[{ "script": "step.lua", "step": 1, "nodes": 1 }]'})
        self.assertEqual(self.refused("other.txt", "-o", "mine.lua"), ["calibration.base --cluster"])
        self.assertEqual(self.refused("good.txt", "--cluster", "tpu-v4", "-o", "mine.lua"), ["calibration.base --cluster"])
        self.assertEqual(self.refused("good.txt", "--devices", "4", "-o", "mine.lua"), ["calibration.devices --devices"])
        self.assertEqual(self.refused("steps.json", "--stack", "megatron-core", "-o", "mine.lua"),
                         ["calibration.base --cluster"])
        self.assertEqual(self.refused("good.txt", "--stack", "megatron-core", "-o", "mine.lua"), ["calibration.base --stack"])
        # A script of two plans is no measured step.
        (self.folder / "step.lua").write_text(STEP + STEP.replace("local ", "").replace("mw =", "local mw ="))
        self.assertEqual(self.refused("steps.json", "--cluster", "dgx-h100", "--stack", "megatron-core", "-o", "mine.lua"),
                         ["calibration.steps steps.json[1].script"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
