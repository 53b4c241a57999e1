"""A folder of runs for the tests that read them: some tiny ones, made once, and copies of them in
every state that a file can be in."""
import json
import os
import pathlib
import shutil

import h5py

import loaded
from cases import BIN

SCRIPT = """\
local mw = require "meshwright"
local dp, tp, pp = mw.plugins("dp", "tp", "pp")
local function experiment(log, plan, change)
  local e = {
    model = mw.llama { layers = 2, hidden = 16, heads = 2, ffn = 32, vocab = 32 },
    data = mw.synthetic {}, sequence = 8, plan = plan, batch = 4, microbatch = 2,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 6, timeout = 300, log = log, name = log:match("([^/]+)%.h5$"),
  }
  for key, value in pairs(change or {}) do e[key] = value end
  return e
end
mw.train(experiment("runs/dp.h5", { dp(2) }, {
  observe = function(step)
    return { accuracy = step / 10, ["loss/late"] = step >= 3 and 1 / (step - 3) or nil, step = step }
  end,
}))
mw.train(experiment("runs/slow.h5", { dp(2) }, { steps = 4, optimizer = mw.adamw { lr = 1e-2 }, seed = 7 }))
mw.train(experiment("runs/stages.h5", { pp(2) }))
mw.train(experiment("runs/worse.h5", { dp(2) }, { optimizer = mw.sgd { lr = 1e30 }, on_nan = "continue" }))
"""


def mark_of(pid):
    """What the attribute `process` is of a process that is there."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return f"{pid} {fields[19]}"


def set_text(file, name, value):
    """An attribute as the program writes it: of fixed length."""
    del file.attrs[name]
    file.attrs.create(name, value.encode(), dtype=f"S{max(len(value.encode()), 1)}")


def changed(source, target, **texts):
    """A copy of a run file with other attributes, named for its file or, of a run's folder, for that."""
    texts["name"] = target.parent.name if target.name == "run.h5" else target.stem
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    with h5py.File(target, "r+", locking=False) as f:
        for name, value in texts.items():
            set_text(f, name, value)
    return target


def make(folder):
    """Makes `runs` in the folder. Returns the results of the four runs that were trained."""
    script = folder / "made.lua"
    script.write_text(SCRIPT)
    done = loaded.run([BIN, "run", script, "--json"], cwd=folder, text=True, timeout=900)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]  # the worse one
    results = {pathlib.Path(r["log"]).stem: r for r in map(json.loads, done.stdout.splitlines())}
    runs = folder / "runs"
    good = runs / "dp.h5"
    changed(good, runs / "killed.h5", status="running", process="999999999 1", created="2026-01-02T03:04:05Z")
    changed(good, runs / "live.h5", status="running", process=mark_of(os.getpid()))
    changed(good, runs / "elsewhere.h5", status="running", process="999999999 1", host="another machine")
    changed(good, runs / "future.h5", schema="meshwright.run/2")
    whole = good.read_bytes()
    (runs / "cut.h5").write_bytes(whole[: len(whole) // 2])
    (runs / "empty.h5").write_bytes(b"")
    (runs / "words.h5").write_text("no run\n")
    h5py.File(runs / "foreign.h5", "w").close()
    # A run folder, and a sweep whose cells ended in every way.
    changed(good, runs / "whole/run.h5")
    sweep = runs / "mixes"
    changed(good, sweep / "aaaa/run.h5")
    changed(runs / "slow.h5", sweep / "bbbb/run.h5", status="running", process="999999999 1")
    changed(runs / "slow.h5", sweep / "cccc/run.h5")
    cell = lambda id, plan, status, reason=None: {
        "id": id, "name": f"mix-{id}", "values": {"plan": plan, "seed": "1"}, "status": status, "reason": reason,
        "folder": f"runs/mixes/{id}", "seconds": 1.5}
    sweep.joinpath("sweep.json").write_text(json.dumps({
        "schema": "meshwright.sweep/1", "name": "mixes", "script": "made.lua", "created": "2026-01-02T03:04:05Z",
        "axes": [{"key": "plan", "values": ["dp(2)", "tp(2)"]}], "cells": [
            cell("cccc", "slow", "failed", "its loss is not that of dp8"), cell("aaaa", "dp(2)", "done"),
            cell("bbbb", "slow", "failed", "took longer than 5 s"), cell("dddd", "tp(2)", "skipped", "too wide"),
            cell("eeee", "pp(2)", "queued")]}))
    return results
