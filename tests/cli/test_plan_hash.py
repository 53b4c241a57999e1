"""A plan's hash: another for whatever makes another run, whichever functions say so; the same in
every process, and for what a run begins with and how long it lasts."""
import json
import shutil
import subprocess
import unittest
from pathlib import Path

from cases import BIN, ProgramCase

SCRIPT = """\
local mw = require "meshwright"
local dp, tp, sp, zero, pp = mw.plugins("dp", "tp", "sp", "zero", "pp")
local function hash(change)
  local e = {
    model = mw.llama { layers = 2, hidden = 16, heads = 2, ffn = 32, vocab = 16 },
    data = mw.synthetic {}, sequence = 8, plan = { dp(2) }, batch = 8, microbatch = 2,
    optimizer = mw.adamw { lr = 1e-3 }, steps = 4, precision = "fp32", memory = "1GiB",
  }
  for key, value in pairs(change) do e[key] = value end
  return mw.plan(e).plan_hash
end
local function every(n) return function(op) return op.layer % n == 0 end end
local function decays(rate) return function(step) return rate * 0.5 ^ step end end
local function order(back) return function(s)
  return { "0F0 0F1 0F2 0F3 " .. back, "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3" } end end
"""

# Each is another run than every other.
DIFFERENT = """{}
{ optimizer = mw.sgd { lr = 1e-3 } }
{ optimizer = mw.sgd { lr = 1e-3, momentum = 0.9 } }
{ optimizer = mw.muon { lr = 1e-3 } }
{ optimizer = mw.adamw { lr = 2e-3 } }
{ optimizer = mw.adamw { lr = 1e-3, clip = 1.0 } }
{ optimizer = mw.adamw { lr = 1e-3, betas = { 0.9, 0.99 } } }
{ schedule = mw.cosine { warmup = 2 } }
{ schedule = decays(1e-3) }
{ schedule = decays(2e-3) }
{ schedule = function(step) return 1e-3 / (step + 1) end }
{ recompute = "selective" }
{ recompute = "full" }
{ recompute = function(op) return op.kind == "linear" end }
{ recompute = every(2) }
{ offload = "full" }
{ offload = function(op) return op.kind == "linear" end }
{ offload = function(op) return op.layer == 0 end }
{ precision = "bf16" }
{ precision = "bf16", main_gradients = "fp32" }
{ precision = "fp16" }
{ precision = "fp16", loss_scale = 128 }
{ batch = 16 }
{ microbatch = 4 }
{ microbatch = { 1, 3 } }
{ microbatch = function(step) return step < 2 and 1 or 2 end }
{ microbatch = function(step) return step < 3 and 1 or 2 end }
{ microbatch = mw.microbatch.ramp { from = 4, steps = 2, size = 2 } }
{ microbatch = mw.microbatch.ramp { from = 4, steps = 3, size = 2 } }
{ plan = { dp { 2, bucket = "1KiB" } } }
{ plan = { dp { 2, overlap = false } } }
{ plan = { dp { 2, hook = "bf16" } } }
{ plan = { dp { 2, hook = function(bucket) return bucket.bytes > 2000 and "bf16" or "none" end } } }
{ plan = { dp { 2, hook = "powersgd" } } }
{ plan = { dp { 2, hook = dp.powersgd { rank = 2 } } } }
{ plan = { zero(2) } }
{ plan = { zero { 2, stage = 3 } } }
{ plan = { tp(2) } }
{ plan = { tp(2), sp() } }
{ plan = { pp { 2, schedule = "1f1b" } } }
{ plan = { pp { 2, schedule = "gpipe" } } }
{ plan = { pp { 2, schedule = order "0B0 0B1 0B2 0B3" } } }
{ plan = { pp { 2, schedule = order "0B0 0I1 0W1 0B2 0B3" } } }
{ model = mw.llama { layers = 2, hidden = 16, heads = 2, ffn = 32, vocab = 16, rope_theta = 5000 } }
{ model = mw.gpt { layers = 2, hidden = 16, heads = 2, vocab = 16 } }""".splitlines()

# The same plan as the first.
SAME = """{ seed = 3 }
{ steps = 9 }
{ data = mw.synthetic { seed = 5 } }
{ timeout = 7 }
{ check = true }
{ memory = "2GiB" }
{ threads = 1 }
{ force = true }
{ name = nil, optimizer = mw.adamw { lr = 0.001, weight_decay = 0.1 } }""".splitlines()


class PlanHash(ProgramCase):
    def hashes(self, changes, first=""):
        text = SCRIPT + first + "".join(f"print((hash {change}))\n" for change in changes)
        done = self.call("run", self.write(text))
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        found = [line for line in done.stdout.splitlines() if len(line) == 16]
        self.assertEqual(len(found), len(changes), done.stdout[-2000:])
        return found

    def test_each_run_that_differs_has_its_own(self):
        seen = {}
        for change, value in zip(DIFFERENT, self.hashes(DIFFERENT), strict=True):
            self.assertNotIn(value, seen, f"{change} has the hash of {seen.get(value)}")
            seen[value] = change

    def test_what_a_run_begins_with_is_no_part_of_a_plan(self):
        first, *others = self.hashes(["{}", *SAME])
        for change, value in zip(SAME, others, strict=True):
            self.assertEqual(value, first, change)

    def test_every_process_says_the_same(self):
        # Other dims, functions and plans first: numbers that a process hands out are no part of it.
        before = ('hash { plan = { tp(2), sp() }, schedule = function() return 1 end,\n'
                  '       model = mw.moe { layers = 2, hidden = 16, heads = 2, ffn = 8, vocab = 16, experts = 2,\n'
                  '                        top_k = 1 } }\n')
        some = DIFFERENT[::4]
        self.assertEqual(self.hashes(some), self.hashes(list(some), before))

    def test_a_function_is_all_that_it_reaches(self):
        """Modules, globals, what is nested deep, keys and numbers to their last bit; and no comment."""
        lines = """
          local rates = require "rates"
          base, scale = 1e-3, { 1 }
          local box = { { { { { { 0.1 } } } } } }
          local keyed = { [true] = 1, [0.5] = 2, [print] = 3 }
          local ring = { name = "a" } ring.ring = ring
          local class = setmetatable({}, { __index = { rate = function() return 1 end } })
          local root = math.sin
          local function inner() return box[1][1][1][1][1][1] end
          local function middle() return inner() end
          local picked = mw.cosine { warmup = 1 }
          function global_rate() return base end
          print((hash { schedule = function(s) return 1e-3 * (rates.at(s) + middle() + keyed[true] + #ring.name + class.rate()
            + root(0) + (picked and 1 or 0)) + global_rate() + scale[1] + require("later").rate + (loadfile "plain.lua")() end }))
          print((hash { plan = { pp { 2, schedule = "1f1b", weave = mw.weave(function() end) } } }))"""
        files = {"rates.lua": "local M = {} local k = 1 function M.at(s) return k end return M", "later.lua": "return { rate = 1 }",
                 "plain.lua": "return 2"}
        changes = (("rates.lua", "k = 1", "k = 2"), ("later.lua", "rate = 1", "rate = 2"), ("plain.lua", "2", "3"),
                   (None, "base, scale = 1e-3", "base, scale = 2e-3"), (None, "{ 0.1 }", "{ 0.10000000000000002 }"),
                   (None, "[true] = 1", "[true] = 2"), (None, "[0.5] = 2", "[0.25] = 2"), (None, "[print] = 3", "[print] = 4"),
                   (None, 'name = "a"', 'name = "b"'), (None, "rate = function() return 1", "rate = function() return 2"),
                   (None, "math.sin", "math.tan"), (None, "warmup = 1", "warmup = 2"), (None, "scale = 1e-3, { 1 }", "scale = 1e-3, { 2 }"))
        same = ((None, "base, scale", "-- a comment\n\n base, scale"), ("rates.lua", "function", "-- a comment\n function"),
                ("later.lua", "return", "-- a comment\n return"), (None, "local ring", "unused = 3 local ring"))

        def hashes(change=None):
            text = dict(files, **{"script.lua": SCRIPT + lines})
            if change is not None:
                name, old, new = change
                self.assertEqual(text[name or "script.lua"].count(old), 1, change)
                text[name or "script.lua"] = text[name or "script.lua"].replace(old, new)
            for name, content in text.items():
                (self.folder / name).write_text(content)
            done = self.call("run", self.folder / "script.lua")
            self.assertEqual(done.returncode, 0, done.stderr[-2000:])
            return [line for line in done.stdout.splitlines() if len(line) == 16]

        first = hashes()
        self.assertEqual((len(first), hashes()), (2, first))
        for change in same:
            self.assertEqual(hashes(change), first, change)
        for change in changes:
            self.assertNotEqual(hashes(change)[0], first[0], change)

    def test_keys_that_are_tables_and_functions(self):
        """They have no order that every process shares; each is looked into once, however many know it."""
        values = """
          local function of(value) print((hash { schedule = function() return value and 1 or 0 end })) end
          for _, deep in ipairs { true, 1 } do
            local nest = {}
            for i = 1, 40 do nest = { [nest] = i == 5 and deep or true } end
            of(nest)
          end
          for _, last in ipairs { "a", "b" } do
            local nodes = {}
            for i = 1, 200 do nodes[i] = { name = i == 200 and last, peers = {} } end
            for _, one in ipairs(nodes) do
              for _, other in ipairs(nodes) do one.peers[other] = true end
            end
            of(nodes[1])
            of(nodes)
          end
          for _, value in ipairs { 1, 2 } do  -- 50 that nothing tells apart
            local ring, set = {}, {}
            for i = 1, 50 do ring[i] = {} end
            for i = 1, 50 do ring[i].next, set[ring[i]] = ring[i % 50 + 1], value end
            of(set)
          end
          local function keyed(rate) local inner = { rate = rate } return function() return inner.rate end end
          for _, rate in ipairs { 0.1, 0.2 } do of { [{ cfg = { rate = 0.3 } }] = 1, [{ cfg = { rate = rate } }] = 1 } end
          for _, rate in ipairs { 0.1, 0.2 } do of { [keyed(0.3)] = 1, [keyed(rate)] = 1 } end
          for _, rate in ipairs { 0.1, 0.2 } do of { [{}] = { { { { { { { 0.3 } } } } } } }, [{}] = { { { { { { { rate } } } } } } } } end"""
        script = self.write(SCRIPT + values)
        first, second = (self.call("run", script).stdout for _ in range(2))
        hashes = [line for line in first.splitlines() if len(line) == 16]
        self.assertEqual((len(hashes), len(set(hashes)), second), (14, 14, first))

    def test_other_releases_of_the_library_are_the_same(self):
        """Functions of its Lua files count by their names, and by the functions of scripts that they were given."""
        script = self.write(SCRIPT + """
          for _, held in ipairs { mw.microbatch.ramp, mw.llama, mw.gpt, mw.weave } do
            print((hash { schedule = function() return held and 1 or 0 end }))
          end
          local function woven(order) print((hash { plan = { pp { 2, schedule = "1f1b", weave = mw.weave(order) } } })) end
          woven(function() end)
          woven(function() return nil end)""")
        share = Path(BIN).parent.parent / "share/meshwright"
        (self.folder / "bin").mkdir()
        (self.folder / "lib").symlink_to(Path(BIN).parent.parent / "lib")
        shutil.copy(BIN, self.folder / "bin/meshwright")
        (self.folder / "share/meshwright").mkdir(parents=True)
        for path in share.iterdir():
            if path.name != "lua":
                (self.folder / "share/meshwright" / path.name).symlink_to(path)
        lua = self.folder / "share/meshwright/lua"
        shutil.copytree(share / "lua", lua)
        for name, old, new in (("init.lua", "return make(constructor.tag,", "local _ = 0 return make(constructor.tag,"),
                               ("weave.lua", "local lanes, taken = {}, {}", "local lanes, taken, _ = {}, {}, 0")):
            text = (lua / "meshwright" / name).read_text()
            self.assertEqual(text.count(old), 1, name)
            (lua / "meshwright" / name).write_text(text.replace(old, new))
        found = []
        for program in (BIN, self.folder / "bin/meshwright"):
            done = subprocess.run([program, "run", script], cwd=self.folder, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            found.append([line for line in done.stdout.splitlines() if len(line) == 16])
        self.assertEqual((len(set(found[0])), found[1]), (6, found[0]))

    def test_run_plan_and_verify_agree(self):
        text = SCRIPT.replace("return mw.plan(e).plan_hash", "return mw.train(e)") + "hash {}\n"
        said = {json.loads(line)["plan_hash"]
                for command in ("run", "plan", "verify")
                for line in self.call(command, self.write(text), "--json").stdout.splitlines()}
        self.assertEqual(said, set(self.hashes(["{}"])))


if __name__ == "__main__":
    unittest.main(verbosity=2)
