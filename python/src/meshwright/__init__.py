"""Runs, sweeps and plans of Meshwright as pandas data frames, and the program called from Python.

Experiments are Lua scripts, and stay that: this package starts them and reads what they leave.

    import meshwright as mw

    run = mw.read_run("runs/quickstart.h5")     # a run file, or the folder of a run
    run.steps.plot(x="step", y="loss")
    mw.read_sweep("runs/mixes").cells           # a row for each cell
    mw.plan("scripts/quickstart.lua", set={"plan": "{tp(2), dp(2)}"}).memory
    mw.run("scripts/quickstart.lua", set={"steps": 20}).summary
"""

from meshwright.errors import MeshwrightError, Problem
from meshwright.plans import Plan, Plans, plan
from meshwright.program import find_program, lua_value
from meshwright.runs import Run, read_run
from meshwright.starting import StartedRun, run
from meshwright.sweeps import Sweep, read_sweep

__all__ = [
    "MeshwrightError",
    "Plan",
    "Plans",
    "Problem",
    "Run",
    "StartedRun",
    "Sweep",
    "find_program",
    "lua_value",
    "plan",
    "read_run",
    "read_sweep",
    "run",
]
