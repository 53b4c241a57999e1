"""Odd numbers in every option that takes one: no signal, no bare exception, no long wait for a
plan that cannot be, and no number that wrapped in a plan that was made.

Options are those that the program declares (`lua-types`). Some thousand scripts are planned in
few processes: each tells which it is at before it begins, so that a crash has a name. The normal
run takes a sample by a seed; MESHWRIGHT_FUZZ=all (or --all) takes every option with every number
in every surrounding, and pairs of them."""

import collections
import itertools
import json
import math
import os
import pathlib
import random
import re
import selectors
import subprocess
import sys
import tempfile
import time
import unittest

import loaded

BIN = os.environ["MESHWRIGHT_BIN"]
ALL = os.environ.get("MESHWRIGHT_FUZZ") == "all" or "--all" in sys.argv
SEED = int(os.environ.get("MESHWRIGHT_FUZZ_SEED", "14"))
SAMPLE = 500
PAIRS = 3000 if ALL else 60
CPU_SECONDS = 10  # for a plan that cannot be, whatever runs beside it
MOST_CPU_SECONDS = 60  # for one that can: what this machine does may have to be measured for it
STUCK_SECONDS = 400  # without a word
AT_A_TIME = 200  # scripts of a process

ODD = ["0", "1", "-1", "-0.0", "0.5", "2^3", "3", "7", "1000", "2^15", "2^20", "2^30", "2^31-1", "2^31", "2^32",
       "2^32+2", "2^53", "2^62", "2^63", "math.maxinteger", "math.mininteger", "1e-300", "1e12", "1e18", "1e300",
       "math.huge", "-math.huge", "0/0", '"8"', '"1e30"', "true", "{}", "{ 2^31, 3 }"]
ODD_BYTES = ['"1EiB"', '"99999999999TiB"', '"0"', '"-1"', '"1e30"', '"8MiB"']

# The tables around an option. `plan` is replaced by entries that hold the option of a plugin.
MODELS = {
    "llama": {"layers": "2", "hidden": "16", "heads": "2", "ffn": "24", "vocab": "97"},
    "gpt": {"layers": "2", "hidden": "16", "heads": "2", "vocab": "97"},
    "moe": {"layers": "2", "hidden": "16", "heads": "2", "ffn": "24", "vocab": "97", "experts": "4", "top_k": "2"},
    "moe latent": {"layers": "2", "hidden": "16", "heads": "2", "ffn": "24", "vocab": "97", "experts": "4",
                   "top_k": "2", "kv_lora_rank": "8", "q_lora_rank": "8", "qk_nope_head_dim": "8",
                   "qk_rope_head_dim": "4", "v_head_dim": "8"},
}
PLANS = {"one rank": "", "dp": "dp(2)", "pp": "pp(2)", "tp": "tp(2)", "zero": "zero { 2, stage = 3 }",
         "ring": "sp { 2, form = \"ring\" }", "mix": "pp { 2, chunks = 1 }, dp(2), tp(2)"}
OTHERS = {
    "synthetic": {"sequence": "16"}, "adamw": {"lr": "1e-3"}, "sgd": {"lr": "1e-3"}, "muon": {"lr": "1e-3"},
    "shampoo": {"lr": "1e-3"},
    "cosine": {}, "microbatch.fit": {"memory": '"1GiB"'}, "microbatch.ramp": {"from": "2", "steps": "2"},
}
PLACES = {"synthetic": "data", "adamw": "optimizer", "sgd": "optimizer", "muon": "optimizer", "cosine": "schedule",
          "shampoo": "optimizer",
          "microbatch.fit": "microbatch", "microbatch.ramp": "microbatch"}
PLUGINS = {  # the option's plugin, what stands beside it, and which model
    "dp": ("2", "", "llama"), "tp": ("2", "", "llama"), "zero": ("2, stage = 3", "", "llama"),
    "sp": ('2, form = "ring"', "", "llama"), "pp": ("2", "", "llama"), "ep": ("2", "dp(2)", "moe"),
    "coshard": ('"ffn", slices = 2', "", "llama"),
}
# Numbers that no option declares: in lists, in tables of `any`, and what functions return.
# %s is the number.
NESTED = {
    "recompute": ["{ every = %s }", "{ fit = %s }", "%s", "function() return %s end"],
    "offload": ["{ layers = %s }", "{ least = %s }", "{ least = 1, prefetch = %s }", "%s"],
    "loss_scale": ["%s", "{ init = %s }", "{ growth = %s }", "{ backoff = %s }", "{ interval = %s }",
                   "function() return %s end"],
    "microbatch": ["%s", "{ %s, 1 }", "{ 2, %s }", "function() return %s end", "function() return { %s, 2 } end",
                   "function() return { batch = %s, microbatch = 1 } end",
                   "function() return { batch = 4, microbatch = %s } end", "mw.microbatch.fit(%s)"],
    "schedule": ["function() return %s end"],
    "optimizer": ["mw.adamw { lr = 1e-3, betas = { %s, 0.9 } }", "mw.muon { lr = 1e-3, adamw = { lr = %s } }",
                  "mw.muon { lr = 1e-3, adamw = { eps = %s } }"],
    "plan": ["{ pp { 2, layout = { 1, %s } } }", "{ pp { 2, layout = { %s, %s } } }", "{ pp { 2, times = { 1, %s, 1 } } }",
             '{ pp { 2, schedule = "zb-h1", times = { { %s, 1, 1 }, { 1, 1, 1 } } } }',
             '{ pp { 2, schedule = "interleaved", chunks = %s } }', '{ pp { 2, schedule = "zbv", memory = %s } }',
             '{ pp { 2, schedule = "zb-h2", memory = %s } }', "{ dp(%s), tp(%s) }", "{ dp(%s), pp(%s) }",
             "{ zero { %s, replicas = %s } }", "{ sp { %s, ulysses = %s } }", "{ tp(%s), sp() }", "%s", "{ %s }"],
}
BASE = {"batch": "4", "microbatch": "1", "steps": "1", "timeout": "20"}

BARE = re.compile(r"std::|_M_|bad_alloc|length_error|map::at|json\.exception|inside the program|basic_string|^\s*$")

DRIVER = """\
local mw = require "meshwright"
local dp, zero, tp, sp, pp, ep, coshard = mw.plugins("dp", "zero", "tp", "sp", "pp", "ep", "coshard")
local verb = %s
local function fine(x) return type(x) ~= "number" or (x == x and x >= 0 and x < math.huge) end
local function try(number, make)
  io.stdout:write("@begin ", number, "\\n") io.stdout:flush()
  local clock = os.clock()
  local ok, r = pcall(function()
    local e = make()
    if verb == "compare" then return mw.compare(e, e) end
    return mw[verb](e)
  end)
  local said = ok and "" or tostring(r)
  if ok and r.kind == "plan" then
    local peak = 0
    for _, stage in ipairs(r.memory) do
      for _, bytes in pairs(stage) do if not fine(bytes) then said = "a stage has " .. bytes .. " bytes" end end
      peak = math.max(peak, stage.peak)
    end
    for _, c in ipairs(r.communication) do
      if not (fine(c.bytes) and fine(c.calls) and fine(c.seconds)) then said = "a rank sends " .. c.bytes .. " bytes" end
    end
    for _, key in ipairs { "step_seconds", "flops_per_step", "parameters", "tokens_per_second", "mfu" } do
      if not fine(r[key]) then said = key .. " is " .. tostring(r[key]) end
    end
    r = ("%%d %%s %%d %%d"):format(r.parameters, r.fits, r.memory_limit, peak)
  else
    r = "-"
  end
  io.stdout:write(("@end %%d %%s %%.2f %%s | %%s\\n"):format(number, ok, os.clock() - clock, r, (said:gsub("\\n", " / "))))
  io.stdout:flush()
end
"""

Case = collections.namedtuple("Case", "name lua model")


def table(entries):
    return "{ " + ", ".join(f"{key} = {value}" for key, value in entries.items()) + " }"


def declared():
    """class -> {option: type}, of all options that take a number."""
    text = loaded.run([BIN, "lua-types"], text=True).stdout
    options, at = {}, None
    for line in text.splitlines():
        if found := re.match(r"---@class meshwright\.(\S+)", line):
            at = options.setdefault(found[1].removeprefix("plugin."), {})
        elif found := re.match(r"---@field (\w+)\?? (\S+)", line):
            if at is not None and re.search(r"integer|number|any|table", found[2]):
                at[found[1]] = found[2]
    return options


def odd_of(kind):
    return ODD + (ODD_BYTES if "integer|string" in kind else [])


def experiment(model="llama", plan="", **keys):
    """Lua of an experiment; `model`: a name, or a name and options of its own."""
    name, options = model if isinstance(model, tuple) else (model, {})
    merged = {**MODELS[name], **options}
    data = "mw.synthetic { seed = 1, sequence = 16 }"
    return {"model": f"mw.{name.split()[0]} {table(merged)}", "data": data, "plan": f"{{ {plan} }}",
            "optimizer": "mw.adamw { lr = 1e-3 }", **BASE, **keys}


def singles(options):
    """One odd number each, in every surrounding that it makes sense in."""
    for key, kind in options["Experiment"].items():
        if key in ("model", "data", "plan", "optimizer"):
            continue
        for value, (name, plan) in itertools.product(odd_of(kind), PLANS.items()):
            given = experiment(plan=plan, **{key: value})
            if key == "sequence":
                given["data"] = "mw.synthetic {}"
            yield Case(f"{key} = {value} ({name})", table(given), None)
    for model, around in MODELS.items():
        for key, kind in options[model.split()[0]].items():
            for value, (name, plan) in itertools.product(odd_of(kind), PLANS.items()):
                merged = {**around, key: value}
                yield Case(f"mw.{model} {key} = {value} ({name})", table(experiment((model, {key: value}), plan)),
                           merged if model == "llama" else None)
    for name, around in OTHERS.items():
        for key, kind in options[name].items():
            for value in odd_of(kind):
                given = experiment(plan="dp(2)", **{PLACES[name]: f"mw.{name} {table({**around, key: value})}"})
                yield Case(f"mw.{name} {key} = {value}", table(given), None)
    for name, (around, beside, model) in PLUGINS.items():
        for key, kind in options[name].items():
            for value in odd_of(kind):
                entry = f"{name} {{ {key} = {value} }}" if key == "ways" else f"{name} {{ {around}, {key} = {value} }}"
                plan = f"{beside}, {entry}" if beside else entry
                yield Case(f"{name} {key} = {value}", table(experiment(model, plan)), None)
                yield Case(f"{name} {key} = {value}, a large batch", table(experiment(model, plan, batch="2^20", microbatch="2^18")), None)
    for key, forms in NESTED.items():
        for form, value in itertools.product(forms, ODD + ODD_BYTES):
            given = {**experiment(plan="dp(2)"), key: form.replace("%s", value)}
            if key == "loss_scale":
                given["precision"] = '"fp16"'
            yield Case(f"{key} = {form}: {value}", table(given), None)


def pairs(options, count, chance):
    """Two or three odd numbers at once: products of what each alone may be."""
    large = [v for v in ODD if re.match(r"^(2\^|1e1|1000|math.max|7|3)", v)]
    for number in range(count):
        name = chance.choice(list(MODELS))
        model = {chance.choice(list(options[name.split()[0]])): chance.choice(large) for _ in range(chance.choice((1, 2, 2)))}
        keys = {key: chance.choice(large) for key in chance.sample(["batch", "microbatch", "steps", "seed"], chance.choice((0, 1, 2)))}
        if chance.random() < 0.4:
            keys["data"] = f"mw.synthetic {{ sequence = {chance.choice(large)} }}"
        if chance.random() < 0.3:
            keys["microbatch"] = chance.choice(["mw.microbatch.fit \"1GiB\"", "mw.microbatch.ramp { from = 1, steps = 9 }",
                                                "function(s) return 1 + s % 3 end"])
        if chance.random() < 0.2:
            keys["recompute"] = chance.choice(['"full"', "{ fit = 2^30 }", "{ every = 3 }"])
        plan = chance.choice(list(PLANS.values()) + ["pp(%s)" % chance.choice(large), "dp(%s)" % chance.choice(large),
                                                     "tp(%s)" % chance.choice(large), "zero(%s), tp(2)" % chance.choice(large),
                                                     "pp { 2, chunks = %s, schedule = \"interleaved\" }" % chance.choice(large)])
        given = experiment((name, model), plan, **keys)
        yield Case(f"pair {number}: {table(given)}", table(given), {**MODELS[name], **model} if name == "llama" else None)


def number_of(lua):
    """What Lua makes of one of ODD, as an exact number; None if it is none."""
    if lua in ("math.maxinteger", "math.mininteger"):
        return 2**63 - 1 if lua == "math.maxinteger" else -(2**63)
    try:
        value = eval(lua.replace("^", "**").replace("math.huge", "math.inf").replace("true", "None"))  # of ODD alone
    except (NameError, SyntaxError, ZeroDivisionError, TypeError):
        return None
    return value if isinstance(value, (int, float)) and value == value else None


def llama_parameters(options):
    """Of the numbers as they are written; None if one of them is no number."""
    n = {key: number_of(value) for key, value in options.items() if key != "tied"}
    if any(v is None for v in n.values()) or "tied" in options:
        return None
    n = {key: int(v) for key, v in n.items() if math.isfinite(v)}
    hidden, kv = n["hidden"], n.get("kv_heads", n["heads"])
    layer = 2 * hidden * hidden + 2 * hidden * kv * (hidden // n["heads"]) + 3 * hidden * n["ffn"] + 2 * hidden
    return 2 * n["vocab"] * hidden + n["layers"] * layer + hidden


class FuzzNumbers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.options = declared()
        cls.chance = random.Random(SEED)
        cls.faults = []

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def write(self, cases, verb):
        path = self.folder / f"{verb}.lua"
        lines = [f"try({i}, function() return {case.lua} end)" for i, case in enumerate(cases)]
        path.write_text(DRIVER % json.dumps(verb) + "\n".join(lines) + "\n")
        return path

    def run_all(self, cases, verb="plan"):
        """{index: (accepted, CPU seconds, facts, what was said)}; faults of the process itself are noted."""
        results, first = {}, 0
        while first < len(cases):
            part = cases[first : first + AT_A_TIME]
            path = self.write(part, verb)
            with open(self.folder / "stderr", "wb") as errors:
                child = subprocess.Popen([BIN, "run", str(path)], stdout=subprocess.PIPE, stderr=errors, cwd=self.folder)
            at, ended = self.follow(child, part, first, results)
            first += len(part) if ended else at + 1
        return results

    def follow(self, child, part, first, results):
        at, buffer, heard = -1, b"", time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(timeout=1):
                    if time.monotonic() - heard > STUCK_SECONDS:
                        child.kill()
                        self.fault(part[max(at, 0)], f"no answer in {STUCK_SECONDS} s")
                        break
                    continue
                chunk = os.read(child.stdout.fileno(), 1 << 16)
                if not chunk:
                    break
                heard = time.monotonic()
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    words = line.decode(errors="replace").split(" ", 3)
                    if words[0] == "@begin":
                        at = int(words[1])
                    elif words[0] == "@end":
                        seconds, rest = words[3].split(" ", 1)
                        facts, said = rest.split("|", 1)
                        said = re.sub(r"\S+\.lua:\d+: ", "", said.strip())  # the place
                        results[first + int(words[1])] = (words[2] == "true", float(seconds), facts.split(), said)
        code = child.wait()
        child.stdout.close()
        ended = first + len(part) - 1 in results
        if at >= 0 and first + at not in results:
            stderr = (self.folder / "stderr").read_text(errors="replace")
            self.fault(part[at], f"the process ended with {code}: {stderr[-300:]}")
        elif not ended:
            self.fail(f"the process ended with {code}: " + (self.folder / "stderr").read_text(errors="replace")[-600:])
        return at, ended

    def fault(self, case, what):
        self.faults.append(f"{case.name}: {what}")
        if ALL:
            print("FAULT", self.faults[-1], file=sys.stderr, flush=True)

    def judge(self, case, result):
        accepted, seconds, facts, said = result
        if seconds > (MOST_CPU_SECONDS if accepted else CPU_SECONDS):
            self.fault(case, f"{seconds} s of CPU before the answer {said[:200]}")
        if accepted and said:
            self.fault(case, f"accepted, but {said}")
        if not accepted and BARE.search(said):
            self.fault(case, f"says {said[:300]}")
        if accepted and case.model is not None and facts != ["-"]:
            parameters, fits, memory = int(facts[0]), facts[1] == "true", int(facts[2])
            expected = llama_parameters(case.model)
            if expected is not None and expected != parameters:
                self.fault(case, f"has {parameters} parameters, and should have {expected}")
            if fits and 4 * parameters > memory:
                self.fault(case, f"fits, with {parameters} parameters in {memory} bytes")

    def cases(self):
        every = list(singles(self.options))
        if ALL:
            return every + list(pairs(self.options, PAIRS, self.chance))
        # Of every option at least one.
        by_option = collections.defaultdict(list)
        for case in every:
            by_option[case.name.split(" = ")[0]].append(case)
        some = [self.chance.choice(cases) for cases in by_option.values()]
        return some + self.chance.sample(every, SAMPLE - len(some)) + list(pairs(self.options, PAIRS, self.chance))

    def test_odd_numbers(self):
        cases, begun = self.cases(), time.monotonic()
        results = self.run_all(cases)
        for index, result in results.items():
            self.judge(cases[index], result)
        refused = [i for i, r in results.items() if not r[0]]
        # What a plan refuses, the verbs that would run it refuse too, in the same words.
        chosen = self.chance.sample(refused, min(len(refused), 2000 if ALL else 80))
        for verb in ("train", "verify", "compare"):
            again = self.run_all([cases[i] for i in chosen], verb)
            for at, result in again.items():
                self.judge(cases[chosen[at]], result)
                said = results[chosen[at]][3]
                if result[0] or (verb != "compare" and result[3] != said):
                    self.fault(cases[chosen[at]], f"mw.{verb} says {result[3]!r}, mw.plan {said!r}")
        slowest = max(results, key=lambda i: results[i][1])
        print(f"{len(cases)} scripts planned, {len(refused)} refused, all in {time.monotonic() - begun:.0f} s; "
              f"the slowest took {results[slowest][1]:.1f} s of CPU: {cases[slowest].name}")
        self.assertGreater(len(refused), len(cases) // 4)
        self.assertLess(len(refused), len(cases))
        self.assertFalse(self.faults, "\n".join(self.faults[:20]) + f"\n{len(self.faults)} faults")

    def test_numbers_of_the_command_line(self):
        odd = ["0", "-1", "1e3", "1.5", "2147483648", "9223372036854775808", "inf", "nan", "x", "65536"]
        base = {"--stages": "4", "--microbatches": "8"}
        options = ["--stages", "--microbatches", "--chunks", "--times", "--send", "--memory"]
        every = list(itertools.product(options, odd))
        for option, value in every if ALL else self.chance.sample(every, 16):
            given = {**base, option: f"1,{value},1" if option == "--times" else value}
            words = [f"{key}={number}" for key, number in given.items()]
            done = loaded.run([BIN, "schedule", "interleaved" if option == "--chunks" else "zb-h1", *words, "--json"],
                              text=True, timeout=STUCK_SECONDS)
            with self.subTest(option=option, value=value):
                self.assertIn(done.returncode, (0, 2, 3), done.stderr)
                if done.returncode:
                    self.assertNotRegex(json.loads(done.stdout.splitlines()[0])["message"], BARE)
                else:
                    self.assertTrue(0 < json.loads(done.stdout)["makespan"] < math.inf)


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--all"])
