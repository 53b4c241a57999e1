"""Runs in the formats of other tools: event files, which a run writes, read by TensorBoard's own
reader; and folders of Weights & Biases, which the package makes, read by its messages."""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

# Nothing of wandb's is sent or kept in the user's folders.
os.environ.update(WANDB_MODE="offline", WANDB_ERROR_REPORTING="false", WANDB_SILENT="true")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # noqa: E402

import h5py
import numpy as np
from wandb.proto import wandb_internal_pb2

from cases import SOURCE, ProgramCase

HASH = r"[0-9a-f]{16}"
MORE = """e.tensorboard, e.log, e.name = "runs/tb", "runs/a.h5", "small"
e.observe = function(step) return { accuracy = step / 10, ["loss/odd"] = step % 2 == 1 and step or nil } end
"""


def events_of(folder):
    """What TensorBoard shows of a folder."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def points(events, tag):
    return [(point.step, point.value) for point in events.Scalars(tag)]


def texts(events, tag):
    return [event.tensor_proto.string_val[0].decode() for event in events.Tensors(f"{tag}/text_summary")]


class TensorBoard(ProgramCase):
    def table(self, log, name):
        with h5py.File(self.folder / log, locking=False) as file:
            return file[name][:]

    def files(self, folder="runs/tb"):
        return sorted(path.name for path in (self.folder / folder).iterdir())

    def test_events_are_those_of_the_run_file(self):
        result = self.only("run", self.script("pp(2), dp(2)", MORE))
        self.assertEqual(result["tensorboard"], "runs/tb")
        name, = self.files()
        self.assertRegex(name, rf"^events\.out\.tfevents\.\d{{10}}\.[^/]+\.\d+\.{HASH}$")
        self.assertTrue(name.endswith(result["hash"]))
        events = events_of(self.folder / "runs/tb")
        self.assertEqual(events.file_version, 2.0)
        steps = self.table("runs/a.h5", "steps")
        for column in steps.dtype.names:
            if column == "step" or np.isnan(steps[column].astype(float)).any():
                continue
            found = points(events, f"steps/{column}")
            self.assertEqual([step for step, _ in found], list(range(4)), column)
            self.assertEqual([value for _, value in found], steps[column].astype(np.float32).tolist(), column)
        self.assertEqual(points(events, "series/accuracy"), [(n, float(np.float32(n / 10))) for n in range(4)])
        self.assertEqual(points(events, "series/loss/odd"), [(1, 1.0), (3, 3.0)])
        self.assertEqual({value for _, value in points(events, "memory/peak_bytes")}, {result["peak_bytes"]})
        for category, peak in result["memory"].items():
            self.assertEqual(points(events, f"memory/{category}")[-1], (3, peak))
        for use in result["communication"]:
            tag = f"communication/{use['axis']} {use['op']}, {use['phase']}"
            self.assertEqual(points(events, tag)[-1], (3, use["bytes"]))
        script, = texts(events, "script")
        self.assertEqual(script, f"```lua\n{(self.folder / 'script.lua').read_text()}\n```")
        experiment, = texts(events, "experiment")
        self.assertEqual(json.loads(experiment.removeprefix("```json\n").removesuffix("\n```")), result["experiment"])
        self.assertEqual(result["experiment"]["tensorboard"], "runs/tb")
        self.assertIn("events: runs/tb", self.call("run", self.folder / "script.lua").stdout)

    def test_no_record_is_damaged(self):
        """The loader of the library checks both checksums of each record."""
        self.only("run", self.script("dp(2)", MORE))
        path = self.folder / "runs/tb" / self.files()[0]
        self.assertEqual(len(list(EventFileLoader(str(path)).Load())), 2 + 2 + 2 * 4)
        whole = path.read_bytes()
        at = whole.index(b"steps/loss")
        damaged = self.folder / "tfevents.damaged"
        damaged.write_bytes(whole[:at] + b"S" + whole[at + 1:])
        self.assertLess(len(list(EventFileLoader(str(damaged)).Load())), 2 + 2 + 2 * 4)

    def test_nothing_without_the_option(self):
        self.only("run", self.script("dp(2)"))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["script.lua"])
        self.all("plan", self.script("dp(2)", MORE))
        self.all("verify", self.script("dp(2)", "e.tensorboard = 'runs/tb'"))
        self.assertFalse((self.folder / "runs").exists())

    def test_whose_events_a_folder_has(self):
        script = self.script("dp(2)", MORE + "e.log = nil")
        first = self.only("run", script)
        earlier, = self.files()
        again = self.only("run", script)  # the same experiment replaces its own
        self.assertEqual(first["hash"], again["hash"])
        self.assertEqual(len(self.files()), 1)
        self.assertNotEqual(self.files(), [earlier])
        kept = self.files()
        self.refused(2, "log.taken tensorboard", "run", script, "--set", "seed=1")
        self.assertEqual(self.files(), kept)
        other = self.only("run", script, "--set", "seed=1", "--set", "overwrite=true")
        name, = self.files()
        self.assertTrue(name.endswith(other["hash"]))
        # A foreign one is nobody's to remove.
        (self.folder / "runs/foreign").mkdir()
        (self.folder / "runs/foreign/events.out.tfevents.1700000000.host").write_bytes(b"")
        self.refused(2, "log.taken tensorboard", "run", script, "--set", "tensorboard=runs/foreign")
        filled = self.only("run", script, "--set", 'tensorboard="tb/{name}-{seed}"')
        self.assertEqual(filled["tensorboard"], "tb/small-0")
        self.assertEqual(len(self.files("tb/small-0")), 1)
        self.refused(2, "log.word tensorboard", "run", script, "--set", 'tensorboard="tb/{nam}"')
        (self.folder / "word").write_text("")
        self.refused(1, "file.write tensorboard", "run", script, "--set", "tensorboard=word")

    def test_a_run_that_goes_on(self):
        more = MORE + "e.threads, e.checkpoint, e.resume = 1, { path = 'runs/checkpoints', every = 1 }, true\n"
        script = self.script("dp(2)", more)
        self.only("run", script, "--set", "observe=function(step) return { stop = step == 1 } end")
        self.only("run", script)
        self.assertEqual(len(self.files()), 2)  # the first has the steps before
        events = events_of(self.folder / "runs/tb")
        whole = self.table("runs/a.h5", "steps")["loss"].astype(np.float32).tolist()
        self.assertEqual(points(events, "steps/loss"), list(enumerate(whole)))

    def test_events_of_a_run_that_fails(self):
        done = self.call("run", self.script("dp(2)", MORE + "e.optimizer = mw.sgd { lr = 1e30 }\ne.on_nan = 'continue'"),
                         "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        losses = [value for _, value in points(events_of(self.folder / "runs/tb"), "steps/loss")]
        self.assertEqual(len(losses), 4)
        self.assertFalse(all(map(np.isfinite, losses)))

    def test_cells_of_a_sweep_have_their_own(self):
        script = self.write((SOURCE / "scripts/quickstart.lua").read_text().split("local run")[0] + """
            mw.sweep { name = "two", base = {
              model = mw.llama { layers = 1, hidden = 16, heads = 2, ffn = 32, vocab = 32 }, data = mw.synthetic {},
              sequence = 8, batch = 4, optimizer = mw.adamw { lr = 1e-3 }, steps = 2, tensorboard = "runs/tb",
            }, over = { plan = { { dp(2) }, { tp(2) } } } }:go { reruns = 0 }""")
        cells = [line for line in self.all("sweep", script) if line["kind"] == "cell"]
        self.assertEqual([cell["status"] for cell in cells], ["done", "done"])
        self.assertFalse((self.folder / "runs/tb").exists())
        for cell in cells:
            events = events_of(pathlib.Path(self.folder, cell["folder"], "tensorboard"))
            self.assertEqual([value for _, value in points(events, "steps/loss")],
                             np.float32(cell["losses"]).tolist())


def records_of(path):
    """The records of a .wandb file: a log of LevelDB's, whose blocks have 32 KiB."""
    data, at, parts = path.read_bytes(), 7, []
    assert data[:4] == b":W&B", data[:7]
    while at + 7 <= len(data):
        left = 0x8000 - at % 0x8000
        if left < 7:
            at += left
            continue
        check, length, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + 7:at + 7 + length]
        assert zlib.crc32(bytes([kind]) + body) == check, at
        at += 7 + length
        parts = [body] if kind in (1, 2) else [*parts, body]
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(b"".join(parts))


class WeightsAndBiases(ProgramCase):
    def converted(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(SOURCE / "python/src"), "HOME": str(self.folder)}
        return subprocess.run([sys.executable, "-m", "meshwright", "to-wandb", *arguments], cwd=self.folder,
                              capture_output=True, text=True, env=environment, timeout=300)

    def test_a_folder_to_sync(self):
        result = self.only("run", self.script("dp(2)", MORE))
        done = self.converted("runs/a.h5", "--project", "mixes")
        self.assertEqual(done.returncode, 0, done.stderr)
        folder = pathlib.Path(done.stdout.strip())
        self.assertEqual(folder.parent, self.folder / "wandb")
        self.assertEqual((folder / "files/script.lua").read_text(), (self.folder / "script.lua").read_text())
        records = list(records_of(next(folder.glob("*.wandb"))))
        run = next(record.run for record in records if record.HasField("run"))
        self.assertEqual((run.project, run.display_name), ("mixes", "small"))
        self.assertTrue(run.run_id.startswith(result["hash"]))
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        self.assertEqual(config["optimizer"]["lr"], 1e-3)
        self.assertEqual(config["plan"][0]["plugin"], "dp")
        rows = []
        for record in records:
            if record.HasField("history"):
                rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json)
                             for item in record.history.item})
        self.assertEqual([row["loss"] for row in rows], result["losses"])
        self.assertEqual([row["_step"] for row in rows], list(range(4)))
        self.assertEqual([row["series/accuracy"] for row in rows], [n / 10 for n in range(4)])
        self.assertEqual([row.get("series/loss/odd") for row in rows], [None, 1.0, None, 3.0])
        self.assertEqual([record.exit.exit_code for record in records if record.HasField("exit")], [0])

    def test_what_cannot_be_written(self):
        done = self.converted("gone.h5")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no such file", done.stderr)
        with tempfile.TemporaryDirectory() as empty:  # a module that hides the package
            pathlib.Path(empty, "wandb.py").write_text("raise ImportError")
            self.only("run", self.script("dp(2)", MORE))
            done = subprocess.run([sys.executable, "-m", "meshwright", "to-wandb", "runs/a.h5"], cwd=self.folder,
                                  capture_output=True, text=True,
                                  env={**os.environ, "PYTHONPATH": f"{empty}:{SOURCE / 'python/src'}"})
        self.assertEqual(done.returncode, 5)
        self.assertIn("pip install wandb", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
