"""`meshwright trace`: a run's step as a Chrome trace and a drawing, measured beside predicted;
runs with pipelines that end before their time."""
import collections
import json
import re
import signal
import subprocess
import time
import unittest
import xml.etree.ElementTree

import h5py
import numpy as np
import pandas

from cases import BIN, TEST_PLUGINS, ProgramCase

NANOSECOND = 1e-3  # of the trace's microseconds
LANES = 1 << 24    # from this track on: ops and transfers


class Trace(ProgramCase):
    def run_once(self, plan='pp { 2, schedule = "zb-h1" }, dp(2)', more=""):
        return self.only("run", self.script(plan, 'e.log, e.overwrite = "run.h5", true\n' + more))

    def trace(self, *arguments):
        result = self.only("trace", "run.h5", "-o", "trace.json", *arguments)
        return result, json.loads((self.folder / "trace.json").read_text())["traceEvents"]

    def check(self, events):
        """Sorted, no overlap in a row, every flow has both ends, in slices of the right work."""
        timed = [e for e in events if e["ph"] != "M"]
        times = [e["ts"] for e in timed]
        self.assertEqual(times, sorted(times))
        rows = collections.defaultdict(list)
        for e in timed:
            if e["ph"] == "X":
                self.assertGreaterEqual(e["dur"], 0)
                rows[e["pid"], e["tid"]].append(e)
        for row in rows.values():
            for before, after in zip(row, row[1:]):
                self.assertLessEqual(before["ts"] + before["dur"], after["ts"] + NANOSECOND / 2)
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.assertEqual(set(names), set(rows))
        flows = collections.defaultdict(dict)
        for e in timed:
            if e["ph"] in "sf":
                self.assertNotIn(e["ph"], flows[e["id"]])
                flows[e["id"]][e["ph"]] = e
        for flow in flows.values():
            self.assertEqual(set(flow), {"s", "f"})
            self.assertEqual(flow["s"]["pid"], flow["f"]["pid"])
            self.assertEqual(flow["f"]["bp"], "e")
            self.assertLessEqual(flow["s"]["ts"], flow["f"]["ts"])
            ends = []
            for e in flow["s"], flow["f"]:
                around = [x for x in rows[e["pid"], e["tid"]]
                          if x["ts"] - NANOSECOND / 2 <= e["ts"] < x["ts"] + x["dur"] - NANOSECOND / 2]
                self.assertEqual(len(around), 1, e)
                ends.append(around[0])
            one, other = ends
            self.assertEqual(one["args"]["microbatch"], other["args"]["microbatch"])
            self.assertNotEqual(one["args"]["stage"], other["args"]["stage"])
            forward = one["cat"] == "F"
            self.assertEqual(other["cat"] == "F", forward)
            self.assertIn(one["cat"], "FBI")
            self.assertEqual(other["args"]["vstage"] - one["args"]["vstage"], 1 if forward else -1)
        return rows, names, flows

    def test_measured_and_predicted(self):
        self.run_once(more="e.steps = 9")
        with h5py.File(self.folder / "run.h5", locking=False) as f:
            seconds = f["steps"]["seconds"]
            actions = f["actions"][:]
        result, events = self.trace("--svg", "step.svg")
        self.assertEqual(result["kind"], "trace")
        # Of the steps with every op, the third and the last, that nearer to the median one.
        median = np.sort(seconds[2:])[3]
        self.assertEqual(result["step"], min((2, 8), key=lambda step: abs(seconds[step] - median)))
        self.assertEqual(result["seconds"], seconds[result["step"]])
        rows, names, flows = self.check(events)
        processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.assertEqual(processes, {1: "measured", 2: "predicted"})
        names = {key: name for key, name in names.items() if key[1] < LANES}
        self.assertEqual(names, {(1, 0): "rank 0, stage 0", (1, 1): "rank 1, stage 0", (1, 2): "rank 2, stage 1",
                                 (1, 3): "rank 3, stage 1", (2, 0): "rank 0, stage 0", (2, 2): "rank 2, stage 1"})
        # Two copies of the pipeline measured, one predicted; two microbatches there and back.
        count = collections.Counter(flow["s"]["pid"] for flow in flows.values())
        self.assertEqual(count, {1: 2 * 2 * 2, 2: 2 * 2})
        # Every row of /actions is there with its times.
        own = actions[actions["step"] == result["step"]]
        for rank in range(4):
            mine = own[own["rank"] == rank]
            self.assertEqual([e["cat"] for e in rows[1, rank]], [a.decode() for a in mine["action"]])
            np.testing.assert_allclose([e["ts"] for e in rows[1, rank]], 1e6 * mine["start"], atol=NANOSECOND)
            np.testing.assert_allclose([e["dur"] for e in rows[1, rank]], 1e6 * (mine["end"] - mine["start"]),
                                       atol=2 * NANOSECOND)
        self.assertEqual({e["cat"] for e in rows[1, 0]}, {"F", "I", "W", "receive B", "reduce", "totals", "update"})
        self.assertEqual({e["cat"] for e in rows[1, 2]}, {"F", "I", "W", "receive F", "reduce", "totals", "update"})
        # No work starts before its sender has begun.
        self.assertGreaterEqual(min(e["ts"] for e in events if e["ph"] == "X"), 0)
        text = (self.folder / "step.svg").read_text()
        xml.etree.ElementTree.fromstring(text)
        for words in ("measured: rank 3, stage 1", "predicted: rank 2, stage 1", f"step {result['step']}",
                      "along the axis: milliseconds"):
            self.assertIn(words, text)
        ticks = [float(t) for t in re.findall(r'class="soft n"[^>]*>([\d.e+-]+)<', text)]
        last = 1e3 * max(float(own["end"].max()), result["predicted_seconds"])
        self.assertTrue(0.4 * last < ticks[-1] <= 1.001 * last, (ticks, last))

    def test_predicted_actions_for_readers(self):
        self.run_once()
        frame = pandas.read_hdf(self.folder / "run.h5", "predicted_actions")
        self.assertEqual(list(frame.columns), "rank stage chunk action microbatch start end".split())
        with h5py.File(self.folder / "run.h5", locking=False) as f:
            table = f["predicted_actions"][:]
            measured = f["actions"][:]
            predicted_step = json.loads(self.call("plan", "script.lua", "--json").stdout)["step_seconds"]
            self.assertEqual(f["predicted_actions"].attrs["units_start"], b"s")
        self.assertEqual(frame["start"].tolist(), table["start"].tolist())
        self.assertAlmostEqual(table["end"].max() / predicted_step, 1, places=6)
        # The predicted works of a stage are, in their order, those that its ranks did.
        for stage, rank in ((0, 1), (1, 3)):
            mine = measured[(measured["rank"] == rank) & (measured["step"] == 0)]
            predicted = table[table["stage"] == stage]
            for column in ("action", "microbatch", "chunk"):
                self.assertEqual(mine[column].tolist(), predicted[column].tolist(), column)

    def test_v_shaped_chunks(self):
        self.run_once('pp { 2, schedule = "zbv" }', "e.model.layers = 4")
        _, events = self.trace()
        rows, _, flows = self.check(events)
        names = {e["name"] for row in rows.values() for e in row}
        self.assertLessEqual({"0F0", "3F0", "3I3", "2W1"}, names)
        # A V of two stages: forwards cross at 0 -> 1 and 2 -> 3, 1 -> 2 stays on its stage.
        count = collections.Counter(flow["s"]["pid"] for flow in flows.values())
        self.assertEqual(count, {1: 2 * 2 * 4, 2: 2 * 2 * 4})

    def test_without_a_pipeline(self):
        self.run_once("dp(2)")
        _, events = self.trace()
        rows, _, flows = self.check(events)
        self.assertEqual((len([k for k in rows if k[0] == 1 and k[1] < LANES]), len(flows)), (2, 0))

    def test_of_a_plan_that_never_ran(self):
        """The same events as of its run, of the prediction alone; of several plans one beside the other."""
        plan = 'pp { 2, schedule = "1f1b" }, dp(2)'
        self.run_once(plan, "e.trace = { 2 }")
        self.trace("--predicted")
        of_run = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        script = self.script(plan)
        done = self.call("plan", script, "--trace", "plan.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("plan.json: written", done.stderr)
        of_plan = json.loads((self.folder / "plan.json").read_text())["traceEvents"]
        self.check([e for e in of_plan if e["ph"] != "C"])
        self.assertEqual([e["args"]["name"] for e in of_plan if e["name"] == "process_name"], ["{ pp(2), dp(2) }"])
        named = "process_name"
        self.assertEqual([e for e in of_plan if e["name"] != named], [e for e in of_run if e["name"] != named])
        self.assertIn("dp", {lane for _, lane in self.lanes(of_plan, 1)})
        self.assertEqual(len(self.counters(of_plan, 1)), 2)
        # A cluster's ranks, of a machine that is not there; two plans.
        text = (self.folder / script).read_text()
        (self.folder / script).write_text(text + "e.plan, e.microbatch = { dp(8) }, 1\nmw.plan(e)\n")
        done = self.call("plan", script, "--cluster", "dgx-h100", "--nodes", "1", "--trace", "plan.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        of_plan = json.loads((self.folder / "plan.json").read_text())["traceEvents"]
        self.assertEqual([e["args"]["name"] for e in of_plan if e["name"] == named], ["{ pp(2), dp(2) }", "dp(8)"])
        self.assertNotEqual(self.call("plan", script, "--trace", "script.lua/x.json").returncode, 0)

    def test_chosen_step_and_prediction_alone(self):
        self.run_once()
        result, events = self.trace("--step", "3")
        self.assertEqual(result["step"], 3)
        result, events = self.trace("--predicted")
        self.assertIsNone(result["step"])
        self.check(events)
        self.assertEqual({e["args"]["name"] for e in events if e["name"] == "process_name"}, {"predicted"})
        done = self.call("trace", "run.h5", "-o", "t.json")
        self.assertIn("nearest to the median", done.stdout)
        with h5py.File(self.folder / "run.h5", "r+", locking=False) as f:
            f["trace"].resize((0,))
        self.assertIn("the median step after the warm-up", self.call("trace", "run.h5", "-o", "t.json").stdout)

    def lanes(self, events, process):
        """Slices of each lane of ops and transfers: (rank, lane) -> [event]."""
        names = {e["tid"]: e["args"]["name"].split() for e in events
                 if e["name"] == "thread_name" and e["pid"] == process and e["tid"] >= LANES}
        found = collections.defaultdict(list)
        for e in events:
            if e["ph"] == "X" and e["pid"] == process and e["tid"] in names:
                _, rank, lane, *_ = names[e["tid"]]
                found[int(rank), lane].append(e)
        return found

    def test_ops_and_transfers(self):
        run = self.run_once("zero { 2, stage = 3 }, tp(2)", "e.trace = { 1 }")
        result, events = self.trace()
        self.assertEqual(result["step"], 1)
        self.check(events)
        measured, predicted = self.lanes(events, 1), self.lanes(events, 2)
        self.assertEqual(set(measured), {(rank, lane) for rank in range(4) for lane in ("ops", "zero", "tp", "world")})
        self.assertEqual({lane for _, lane in predicted}, {"ops", "zero", "tp", "world"})
        # Every op of the step is there, by kind and piece; what is sent is what the books have.
        work = pandas.read_hdf(self.folder / "run.h5", "work")
        sent = pandas.read_hdf(self.folder / "run.h5", "communication")
        for rank in range(4):
            mine = work[(work.step == 1) & (work["rank"] == rank)]
            count = collections.Counter(e["name"] for e in measured[rank, "ops"])
            for row in mine.itertuples():
                self.assertEqual(count[f"{row.op} {row.piece}"], row.calls, row)
            booked = sent[(sent.step == 1) & (sent["rank"] == rank)].groupby("axis")["bytes"].sum()
            for axis in ("zero", "tp"):
                self.assertEqual(sum(e["args"]["bytes"] for e in measured[rank, axis]), booked[axis])
                self.assertTrue(all(e["args"]["axis"] == axis for e in measured[rank, axis]))
        predicted_rank = next(rank for rank, lane in predicted if lane == "zero")
        for axis in ("zero", "tp"):
            self.assertEqual(sum(e["args"]["bytes"] for e in predicted[predicted_rank, axis]),
                             sum(c["bytes"] for c in run["predicted"]["communication"] if c["axis"] == axis))
        # What an op takes lies within the actions of its rank.
        for process in (1, 2):
            whole = [e for e in events if e["ph"] == "X" and e["pid"] == process and e["tid"] < LANES]
            for (rank, lane), slices in self.lanes(events, process).items():
                mine = [e for e in whole if e["tid"] == rank]
                first, last = min(e["ts"] for e in mine), max(e["ts"] + e["dur"] for e in mine)
                for e in slices if lane == "ops" else ():
                    self.assertGreaterEqual(e["ts"], first - 2 * NANOSECOND)
                    self.assertLessEqual(e["ts"] + e["dur"], last + 2 * NANOSECOND)
        # Overlap is seen: a gather is under way while ops compute.
        for lanes, rank in ((measured, 0), (predicted, predicted_rank)):
            beside = [one["name"] for one in lanes[rank, "ops"] if one["cat"] == "op" and one["name"].startswith("linear")
                      for other in lanes[rank, "zero"] if other["name"] == "all-gather"
                      and other["ts"] <= one["ts"] and one["ts"] + one["dur"] <= other["ts"] + other["dur"]]
            self.assertTrue(beside)

    def test_what_is_gathered_for_backward_is_labelled_so(self):
        """Measured and predicted: transfers of one pending that begin in both ways, and the waits for them."""
        self.run_once("zero { 2, stage = 3 }", "e.trace = { 1 }")
        books = pandas.read_hdf(self.folder / "run.h5", "communication")
        books = books[(books["step"] == 1) & (books["rank"] == 0) & (books["op"] == "all-gather")]
        booked = {row.phase: row.bytes for row in books.itertuples()}
        for name in ("trace", "predicted_trace"):
            rows = pandas.read_hdf(self.folder / "run.h5", name)
            rows = rows[(rows["name"] == "all-gather") & (rows["rank"] == 0)]
            for kind in ("transfer", "wait"):
                count = rows[rows["kind"] == kind]["phase"].value_counts()
                with self.subTest(f"{name} {kind}"):
                    self.assertEqual(set(count.index), {"forward", "backward"})
            sent = rows[rows["kind"] == "transfer"].groupby("phase")["bytes"].sum()
            self.assertEqual(dict(sent), booked, name)

    @staticmethod
    def counters(events, process):
        memory = collections.defaultdict(list)
        for e in events:
            if e["ph"] == "C" and e["pid"] == process:
                memory[e["name"]].append(e["args"])
        return memory

    def test_memory_over_the_step(self):
        run = self.run_once("dp(2)", "e.trace = { 2 }")
        _, events = self.trace()
        memory = self.counters(events, 1)
        self.assertEqual(set(memory), {"rank 0 memory", "rank 1 memory"})
        for values in memory.values():
            self.assertGreater(len(values), 10)
            for category, peak in run["memory"].items():
                if category == "scratch":  # is let go of before an instruction ends
                    continue
                if category not in ("activations", "buffers"):  # whose peaks lie within instructions
                    self.assertEqual(max(v[category] for v in values), peak, category)
                self.assertLessEqual(max(v[category] for v in values), peak)

    def test_memory_measured_and_predicted(self):
        for plan, more in (("dp(2)", ""), ('pp { 2, schedule = "1f1b" }, tp(2)', ""),
                           ("zero { 2, stage = 3 }", 'e.recompute = "full"')):
            with self.subTest(plan):
                self.run_once(plan, "e.trace = { 2 } " + more)
                _, events = self.trace()
                self.check([e for e in events if e["ph"] != "C"])
                measured, predicted = self.counters(events, 1), self.counters(events, 2)
                self.assertEqual(len(predicted), 2 if "pp" in plan else 1)
                for rank, values in predicted.items():
                    self.assertEqual(values, measured[rank])  # after every instruction, to the byte

    def test_steps_that_are_traced(self):
        for given, steps in (("", [2, 3]), ("e.trace = {}", []), ("e.trace = { 0, 3.0, 99 }", [0, 3]),
                             ("e.steps = 1", [0])):
            with self.subTest(given):
                self.run_once("dp(2)", given + " e.overwrite = true")
                frame = pandas.read_hdf(self.folder / "run.h5", "trace")
                self.assertEqual(sorted(set(frame["step"])), steps)
                self.assertTrue((frame["end"] >= frame["start"]).all())
        for wrong in ("{ -1 }", "{ 0.5 }", '{ "last" }'):
            self.refused(2, "option.value trace", "run", self.script("dp(2)", f"e.trace = {wrong}"))

    def test_steps_beyond_the_end_are_told(self):
        for given, told in (("{ 0, 99 }", "the run ends after step 3, so that step 99 is not traced"),
                            ("{ 4, 99 }", "steps 4, 99 are not traced"), ("{ 0, 3 }", None)):
            with self.subTest(given):
                done = self.call("run", self.script("dp(2)", f'e.log, e.overwrite = "run.h5", true e.trace = {given}'))
                self.assertEqual(done.returncode, 0, done.stderr)
                if told:
                    self.assertIn(told, done.stderr)
                else:
                    self.assertNotIn("traced", done.stderr)
        for given, told in (("e.trace = { 1 }", True), ("e.trace = {}", False), ("", False)):
            done = self.call("run", self.script("dp(2)", "e.log = nil " + given))
            self.assertEqual("trace: no step is traced" in done.stderr, told, done.stderr)
        # What is no step is one problem, though an account of steps was asked for.
        self.refused(2, "option.value trace", "run",
                     self.script("dp(2)", 'e.log, e.account, e.trace = "run.h5", true, { -1 }'))

    def test_transfers_between_stages(self):
        self.run_once("pp(2)", "e.trace = { 1 }")
        _, events = self.trace()
        for process in (1, 2):
            sends = [e for (_, lane), slices in self.lanes(events, process).items() if lane == "pp" for e in slices
                     if e["name"] == "send"]
            self.assertEqual(len(sends), 2 * 4)  # forward and back, of four microbatches

    def test_refusals(self):
        self.run_once()
        (self.folder / "text.h5").write_text("no")
        h5py.File(self.folder / "other.h5", "w").close()
        for problem, arguments in (
                ("file.missing", ("none.h5", "-o", "t.json")),
                ("run-file.foreign", ("text.h5", "-o", "t.json")),
                ("run-file.schema", ("other.h5", "-o", "t.json")),
                ("trace.missing", ("run.h5", "-o", "t.json", "--step", 7)),
                ("trace.missing", ("run.h5", "-o", "t.json", "--step", "-1")),
                ("usage.missing", ("run.h5",)),
                ("file.write", ("run.h5", "-o", "run.h5")),
                ("file.write", ("run.h5", "--svg", "."))):
            with self.subTest(arguments=arguments):
                self.refused(2, problem, "trace", *arguments)
        with h5py.File(self.folder / "run.h5", "r+", locking=False) as f:
            f["actions"].resize((0,))
        self.refused(2, "trace.missing", "trace", "run.h5", "-o", "t.json")
        with h5py.File(self.folder / "run.h5", "r+", locking=False) as f:
            f["steps"].resize((0,))
        self.refused(2, "trace.missing", "trace", "run.h5", "-o", "t.json")
        with h5py.File(self.folder / "run.h5", "r+", locking=False) as f:
            del f["predicted_actions"]  # as in run files of before
        self.refused(2, "trace.missing", "trace", "run.h5", "-o", "t.json", "--predicted")


class EndedEarly(ProgramCase):
    def start(self, plan, more=""):
        # Each argument of io.stderr:write is written by itself: lines of the run may come between.
        script = self.script(plan, 'e.log, e.overwrite = "run.h5", true e.steps = 1000000\n' + more +
                             'e.observe = function(step) io.stderr:write("finished " .. step .. "\\n") end')
        process = subprocess.Popen([BIN, "run", str(script), "--json", "--plugin-path", TEST_PLUGINS],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, process, step):
        for line in process.stderr:
            if line.startswith("finished ") and int(line.split()[1]) >= step:
                return
        self.fail("the run ended")

    def written(self):
        """How many steps the run file has while it grows."""
        with h5py.File(self.folder / "run.h5", "r", locking=False) as f:
            return len(f["steps"])

    def read(self, status):
        with h5py.File(self.folder / "run.h5", locking=False) as f:
            self.assertEqual(f.attrs["status"], status.encode())
            steps, actions = f["steps"][:], f["actions"][:]
            self.assertGreater(len(f["predicted_actions"]), 0)
        self.assertTrue((steps["step"] == np.arange(len(steps))).all())
        self.assertEqual(set(actions["step"].tolist()), set(steps["step"].tolist()))
        return len(steps)

    def test_killed(self):
        for plan in ('pp { 2, schedule = "zb-h1" }, dp(2)', "pp(2), tp(2)"):
            process = self.start(plan)
            self.wait_for(process, 3)
            while not self.written():
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            process.kill()
            process.communicate(timeout=300)
            self.assertEqual(process.returncode, -signal.SIGKILL)
            self.assertGreater(self.read("running"), 0)
            self.only("trace", "run.h5", "-o", "trace.json")

    def test_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start('pp { 2, schedule = "zb-h1" }, dp(2)')
            self.wait_for(process, 3)
            process.send_signal(number)
            stdout, _ = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 130)
            run, = map(json.loads, stdout.splitlines())
            self.assertEqual(run["status"], "interrupted")
            self.assertEqual(self.read("interrupted"), run["steps"])

    def test_a_failed_rank_ends_all_stages(self):
        # The last norm runs on the last stage alone, once for each microbatch: the 10th call of
        # four in each step is in the third step.
        for plan in ("pp(2)", 'pp { 2, schedule = "zb-h1" }, dp(2)'):
            with self.subTest(plan=plan):
                began = time.monotonic()
                calls = 10
                process = self.start(plan + f', mw.plugin "failing_rank" ({calls})')
                stdout, stderr = process.communicate(timeout=300)
                self.assertEqual(process.returncode, 1, stderr)
                run, error = map(json.loads, stdout.splitlines())
                self.assertEqual((run["status"], error["stage"]), ("failed", "run"))
                self.assertEqual(error["code"], "run.exception")
                self.assertIn("in the forward of norm, microbatch ", error["message"])
                self.assertEqual(self.read("failed"), 2)
                self.assertLess(time.monotonic() - began, 120)  # collectives wait for 300 s


if __name__ == "__main__":
    unittest.main(verbosity=2)
