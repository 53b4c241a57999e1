"""Scripts that try to leave the sandbox, by Lua, by paths and by native code: none gets anywhere.
The same attempts outside of the sandbox succeed, so that each is known to be one."""
import ctypes
import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import unittest

import h5py
from cases import BIN, TEST_PLUGINS, ProgramCase
from problems import problems

HEAD = """\
local mw = require "meshwright"
local dp = mw.plugins("dp")
local OUTSIDE, OUT = "%s", "%s"
local function e(more)
  local made = {
    model = mw.llama { layers = 1, hidden = 8, heads = 2, ffn = 8, vocab = 256 }, data = mw.synthetic {}, sequence = 8,
    plan = { dp(1) }, batch = 1, optimizer = mw.sgd { lr = 0.1 }, steps = 1,
  }
  for key, value in pairs(more or {}) do made[key] = value end
  return made
end
"""

# Each yields true if it got out: what computes, loads or opens what it must not have.
LUA = [
    'return io.open(OUTSIDE .. "/canary.txt") ~= nil',
    'return io.popen("true") ~= nil',
    'return io.lines(OUTSIDE .. "/canary.txt") ~= nil',
    'return package.loaded.io ~= nil',
    'return require("io") ~= nil',
    'return _G["i" .. "o"] ~= nil',
    'return _ENV.io ~= nil',
    'local g = _G; return (function() local _ENV = g; return io end)() ~= nil',
    'return getmetatable(io.stdout).__index.write ~= nil',
    'return os.execute() ~= nil',
    'return os.getenv("PATH") ~= nil',
    'return os.tmpname() ~= nil',
    'return os.remove(OUTSIDE .. "/victim") ~= nil',
    'return os.rename(OUTSIDE .. "/victim2", OUTSIDE .. "/moved") ~= nil',
    'return os.setlocale ~= nil',
    'return package.loaded.os.execute ~= nil',
    'return load("return 1")() == 1',
    'return load(string.dump(function() return 1 end), "x", "t") == nil',
    'return loadfile(OUTSIDE .. "/canary.lua") ~= nil',
    'return dofile(OUTSIDE .. "/canary.lua") ~= nil',
    'return package.loaded._G.load ~= nil',
    'return package.loadlib("libc.so.6", "*") ~= nil',
    'return package.cpath ~= nil',
    'return package.searchpath("canary", OUTSIDE .. "/?.lua") ~= nil',
    'return #package.searchers > 2',
    'return package.searchers[3] ~= nil',
    'package.path = OUTSIDE .. "/?.lua"; return require "canary" ~= nil',
    'package.path = "./../outside/?.lua"; return require "canary" ~= nil',
    'package.path = OUTSIDE .. "/?.txt"; return pcall(require, "canary") or '
    'select(2, pcall(require, "canary")):find("CANARY") ~= nil',
    'return require "link.canary" ~= nil',
    'return require "leads_out" ~= nil',
    'return string.dump(print) ~= nil or true',
    'return ("").dump ~= nil',
    'return getmetatable("").__index.dump ~= nil',
    'getmetatable("").__index.dump = nil; return string.dump ~= nil or load ~= nil',
    'return debug.getregistry() ~= nil',
    'return debug.getinfo(1) ~= nil',
    'return debug.getupvalue(print, 1) ~= nil or debug ~= nil and debug.getupvalue ~= nil',
    'return debug.sethook() == nil',
    'return debug.setmetatable(1, nil) ~= nil',
    'return package.loaded.debug.getregistry ~= nil',
    'return require("debug").getlocal ~= nil',
    'return coroutine.wrap(function() return io end)() ~= nil',
    'return coroutine.wrap(function() return load end)() ~= nil',
    'return select(2, pcall(function() return io end)) ~= nil',
    'return select(2, xpcall(error, function() return io end)) ~= nil',
    'local t = setmetatable({}, { __gc = function() X = io end }); t = nil; collectgarbage(); return X ~= nil',
    'local t <close> = setmetatable({}, { __close = function() Y = load end }); return load ~= nil',
    'return setmetatable({}, { __index = _G }).dofile ~= nil',
    'return next({ loadfile }) ~= nil',
    'return collectgarbage("generational") ~= nil',
    'return collectgarbage("stop") ~= nil',
    'for k in pairs(package.loaded) do if k == "io" then return true end end',
    'for k in pairs(_G) do if k == "dofile" then return true end end',
    'return require("meshwright.settings")("io") ~= nil',
    'return require("meshwright.settings")("1 + 1") == 2',
    'return package.loaded["meshwright.settings"]("os.execute") ~= nil or true',
    # Memory that is free by then.
    'local _, why = pcall(mw.plan, {}); local meta = getmetatable(why); meta.__gc(why); meta.__gc(why); '
    'return pcall(meta.__index, why, "problems") or pcall(meta.__tostring, why) or pcall(meta.__index, {}, "problems")',
    'do local t = setmetatable({}, { __gc = function(t) Z = t.why.problems end }); t.why = select(2, pcall(mw.plan, {})) end; '
    'collectgarbage(); collectgarbage(); return Z ~= nil',
    # A number that would be taken for the address of a table.
    'local meta; local own = mw.strategy { name = "own", axis = { role = "model" }, rules = { { dim = "ffn", '
    'where = function(op) meta = getmetatable(op); return true end } } }; mw.plan(e { plan = { own(1) } }); '
    'return pcall(meta.__index, 1 << 20, "x") or not select(2, pcall(meta.__index, 1 << 20, "x")):find("table expected")',
    # An op that finds fewer values than it takes.
    'local ok, why = pcall(mw.plan, e { model = { kind = "model", name = "m", layers = 1, dims = { hidden = 8, vocab = 256 }, '
    'block = { ops = { { op = "add", inputs = { { 0, 1 } } } }, result = { 1, 1 } } } }); '
    'return ok or why.problems[1].code ~= "option.type"',
]

# Calls whose paths lead out: each must be refused with this code, or some other one of the list.
READ, WRITE = "sandbox.read", "sandbox.write"
PATHS = [
    ('mw.plan(e { data = mw.text { OUTSIDE .. "/canary.txt" } })', READ),
    ('mw.plan(e { data = mw.text { OUTSIDE } })', READ),
    ('mw.plan(e { data = mw.text { "../outside/canary.txt" } })', READ),
    ('mw.plan(e { data = mw.text { "link/canary.txt" } })', READ),
    ('mw.plan(e { data = mw.text { "canary_link.txt" } })', READ),
    ('mw.plan(e { data = mw.text { "./sub/../../outside/canary.txt" } })', READ),
    ('mw.plan(e { data = mw.text { "/proc/self/cwd/outside/canary.txt" } })', READ),
    ('mw.plan(e { data = mw.text { "/proc/self/environ" } })', READ),
    ('mw.plan(e { data = mw.shards { OUTSIDE .. "/*.bin" } })', "file.missing"),
    ('mw.plan(e { data = mw.shards { "link/tokens.bin" } })', "file.missing"),
    ('mw.plan(e { data = mw.shards { "~root/.ssh/id_*" } })', "file.missing"),
    ('mw.train(e { weights = OUTSIDE .. "/model.safetensors" })', READ),
    ('mw.train(e { weights = "link" })', READ),
    ('mw.cluster(OUTSIDE .. "/canary.lua")', READ),
    ('mw.cluster("../outside/canary.lua")', READ),
    ('mw.cluster("./link/canary.lua")', READ),
    ('mw.stack(OUTSIDE .. "/canary.lua")', READ),
    ('mw.plugin(OUTSIDE .. "/good.so")', READ),
    ('mw.plugin("../outside/good.so")', READ),
    ('mw.plugin("./link/good.so")', READ),
    ('mw.load(OUTSIDE .. "/run.h5")', READ),
    ('mw.load("link")', READ),
    ('mw.load "/etc"', READ),
    ('mw.plan(e { plan = { mw.plugins("pp") { 1, schedule = OUTSIDE .. "/schedule.csv" } } })', READ),
    ('mw.plan(e { plan = { mw.plugins("pp") { 1, schedule = "link/schedule.csv" } } })', READ),
    ('mw.train(e { checkpoint = { path = OUTSIDE .. "/made", every = 1 } })', WRITE),
    ('mw.train(e { checkpoint = { path = OUT .. "/../outside/made", every = 1 } })', WRITE),
    ('mw.train(e { checkpoint = { path = OUT .. "/link/made", every = 1 } })', WRITE),
    ('mw.train(e { log = OUTSIDE .. "/made.h5" })', WRITE),
    ('mw.train(e { log = OUT .. "/../outside/made.h5" })', WRITE),
    ('mw.train(e { log = OUT .. "/link/made.h5" })', WRITE),
    ('mw.train(e { log = OUT .. "/dangling.h5" })', WRITE),
    ('mw.train(e { log = OUT .. "/not_there/../link/made.h5" })', WRITE),
    ('mw.train(e { tensorboard = OUT .. "/not_there/../link/events" })', WRITE),
    ('mw.train(e { checkpoint = { path = OUT .. "/not_there/../link/made", every = 1 } })', WRITE),
    ('mw.train(e { log = "made.h5" })', WRITE),
    ('mw.train(e { log = "box/made.h5" })', WRITE),
    ('mw.train(e { log = "/dev/shm/made.h5" })', WRITE),
    ('mw.train(e { log = OUTSIDE .. "/folder/" })', WRITE),
    ('mw.train(e { tensorboard = OUTSIDE .. "/events" })', WRITE),
    ('mw.train(e { tensorboard = OUT .. "/link/events", overwrite = true })', WRITE),
    ('mw.train(e { export = OUTSIDE .. "/exported" })', WRITE),
    ('mw.train(e { export = OUT .. "/link/exported" })', WRITE),
    ('mw.bar_chart { file = OUTSIDE .. "/made.html", series = { "a" }, bars = { { "b", 1 } } }', WRITE),
    ('mw.bar_chart { file = OUT .. "/link/made.html", series = { "a" }, bars = { { "b", 1 } } }', WRITE),
]

# Acts of tests/plugins/escaping. The second list has those that a test may lack the rights for. HAS
# holds what the test has made outside of the sandbox.
NATIVE = [
    'act = "read", path = OUTSIDE .. "/canary.txt"',
    'act = "list", path = OUTSIDE',
    'act = "write", path = OUTSIDE .. "/canary.txt"',
    'act = "create", path = OUTSIDE .. "/native"',
    'act = "create", path = "/dev/shm/" .. HAS.name',
    'act = "truncate", path = OUTSIDE .. "/short"',
    'act = "remove", path = OUTSIDE .. "/victim3"',
    'act = "make folder", path = OUTSIDE .. "/native.d"',
    'act = "make folder", path = OUTSIDE .. "/../native.d"',
    'act = "move", path = OUTSIDE .. "/victim4", other = OUTSIDE .. "/moved4"',
    'act = "link", path = OUTSIDE .. "/canary.txt", other = OUT .. "/hard"',
    'act = "write behind a link", path = OUTSIDE .. "/behind", other = OUT .. "/soft" .. WHERE',
    'act = "change mode", path = OUTSIDE .. "/canary.txt"',
    'act = "change mode", path = OUTSIDE .. "/../box/mine"',
    'act = "change owner", path = OUTSIDE .. "/canary.txt"',
    'act = "change times", path = OUTSIDE .. "/canary.txt"',
    'act = "connect", path = HAS.port',
    'act = "local socket", path = OUTSIDE .. "/socket"',
    'act = "named socket", path = HAS.name',
    'act = "datagram", path = OUTSIDE .. "/datagrams"',
    'act = "signal", path = HAS.process',
    'act = "environment", path = HAS.process',
    'act = "priority", path = HAS.process',
    'act = "limit", path = HAS.process',
    'act = "run", path = "/bin/true"',
    'act = "watch", path = OUTSIDE',
    'act = "messages", path = HAS.messages',
    'act = "semaphores", path = HAS.semaphores',
    'act = "segments", path = HAS.segments',
]
SOMETIMES = [
    'act = "mark", path = OUTSIDE .. "/canary.txt"',
    'act = "trace", path = HAS.process',
    'act = "keys", path = HAS.name',
    'act = "set marks", path = OUTSIDE .. "/../box/mine"',
    'act = "namespace"',
]

TRY_ALL = """
for n, attempt in ipairs(attempts) do
  local ok, got = pcall(attempt)
  print("attempt", n, ok and got == true)
end
"""
TRY_PATHS = """
for n, attempt in ipairs(attempts) do
  local ok, why = pcall(attempt)
  print("attempt", n, ok and "done" or type(why) == "userdata" and why.problems[1].code or tostring(why))
end
"""
TRY_NATIVE = """
for n, entry in ipairs(attempts) do
  local ok, why = pcall(function() return mw.plan(e { plan = { entry() } }) end)
  print("attempt", n, ok and "planned" or type(why) == "userdata" and why.problems[1].message or tostring(why))
end
"""

# Each ends its process: the script, more options, and the code of what it ends with.
BOMBS = {
    "an endless loop": ("while true do end", ["--sandbox-time", "1"], "sandbox.time"),
    "an endless loop in pcall": ("while true do pcall(function() while true do end end) end", ["--sandbox-time", "1"],
                                 "sandbox.time"),
    "an endless loop in a coroutine": ("coroutine.wrap(function() while true do end end)()", ["--sandbox-time", "1"],
                                       "sandbox.time"),
    "an endless loop at the end": ("setmetatable({}, { __gc = function() while true do end end })",
                                   ["--sandbox-time", "1"], "sandbox.time"),
    "backtracking": ('local s = ("a"):rep(40); s:find((".-"):rep(30) .. "b")', ["--sandbox-cpu", "1"], "sandbox.cpu"),
    "computing": ("local x = 0; while true do x = x + 1 end", ["--sandbox-cpu", "1"], "sandbox.cpu"),
    "a long text": ('local s = ("x"):rep(1 << 29)', ["--sandbox-memory", "1GiB"], "sandbox.memory"),
    "doubled texts": ('local s = "x"; while true do s = s .. s end', [], "sandbox.memory"),
    "joined texts": ('local t = {}; for n = 1, 1 << 20 do t[n] = ("x"):rep(100) end; '
                     'while true do t[1] = table.concat(t) end', ["--sandbox-memory", "1GiB"], "sandbox.memory"),
    "a huge table": ("local t = {}; for n = 1, 1 << 40 do t[n] = n end", ["--sandbox-memory", "1GiB"], "sandbox.memory"),
    "a deep recursion": ("local function f() return 1 + f() end; f()", [], "script.error"),
    "deep brackets": ("local function f(n) return n == 0 and {} or { f(n - 1) } end; mw.plan(e { seed = f(1000) })", [],
                      "script.table"),
    "recursive matches": ("local function f(s) return (s:gsub('.', f)) end; f('x')", [], "script.error"),
}
NATIVE_BOMBS = {  # the code of the error, or a part of its message
    "memory": (["--sandbox-memory", "1GiB"], "Cannot allocate memory"),
    "shared memory": (["--sandbox-memory", "1GiB"], "Cannot allocate memory"),
    "stack memory": (["--sandbox-memory", "1GiB"], "Cannot allocate memory"),
    "tables": (["--sandbox-memory", "1GiB"], "Cannot allocate memory"),
    "crash": ([], "sandbox.crashed"),
    "compute": (["--sandbox-cpu", "1"], "sandbox.cpu"),
    "wait": (["--sandbox-time", "1"], "sandbox.time"),
}
if os.geteuid() != 0:  # the kernel lets root start any number
    NATIVE_BOMBS["threads"] = ([], "Resource temporarily unavailable")


class Sandbox(ProgramCase):
    def setUp(self):
        super().setUp()
        self.needs_namespaces()
        self.box, self.outside, self.out = (self.folder / name for name in ("box", "outside", "out"))
        for folder in (self.box / "sub", self.outside, self.out):
            folder.mkdir(parents=True)
        for name in ("canary.txt", "victim", "victim2", "victim3", "victim4", "short", "tokens.bin"):
            (self.outside / name).write_text("CANARY " * 100)
        (self.outside / "canary.lua").write_text('return { name = "CANARY" }')
        (self.outside / "schedule.csv").write_text("0F0,0B0\n")
        (self.outside / "good.so").write_bytes((pathlib.Path(TEST_PLUGINS) / "good.so").read_bytes())
        (self.box / "link").symlink_to("../outside")
        (self.box / "canary_link.txt").symlink_to("../outside/canary.txt")
        (self.box / "leads_out.lua").symlink_to("../outside/canary.lua")
        (self.out / "link").symlink_to("../outside")
        (self.out / "dangling.h5").symlink_to("../outside/made_by_link.h5")

    def state_outside(self):
        found = {}
        for path in sorted(self.outside.rglob("*")):
            info = path.stat()
            found[path.name] = (info.st_mode, info.st_mtime_ns, info.st_uid, path.is_file() and path.read_bytes())
        return found

    def command(self, text, *more):
        (self.box / "script.lua").write_text(HEAD % (self.outside, self.out) + text)
        return [BIN, "run", "box/script.lua", *more]

    def in_box(self, text, *more, **kwargs):
        return subprocess.run(self.command(text, "--sandbox", *more), cwd=self.folder, capture_output=True, text=True,
                              timeout=300, **kwargs)

    def without_namespaces(self):
        """The environment of a process in the sandbox, for one that no namespace keeps in: what it opens is checked."""
        inside = {"read": [str(self.box)], "write": [str(self.out)]}
        return {**os.environ, "MESHWRIGHT_SANDBOX": json.dumps(inside)}

    def trusted(self, text, *more):
        return subprocess.run(self.command(text, *more), cwd=self.folder, capture_output=True, text=True, timeout=300)

    def said(self, done, count):
        """What each attempt came to, in order."""
        lines = [line.split("\t", 2) for line in done.stdout.splitlines() if line.startswith("attempt\t")]
        self.assertEqual([int(number) for _, number, _ in lines], list(range(1, count + 1)), done.stdout + done.stderr)
        return [what for *_, what in lines]

    def test_lua_finds_nothing_that_leads_out(self):
        text = "local attempts = { " + ",\n".join(f"function() {one} end" for one in LUA) + " }" + TRY_ALL
        before = self.state_outside()
        for attempt, got in zip(LUA, self.said(self.in_box(text), len(LUA))):
            self.assertEqual(got, "false", attempt)
        self.assertEqual(self.state_outside(), before)
        known = self.said(self.trusted(text), len(LUA))
        self.assertGreaterEqual(known.count("true"), len(LUA) * 3 // 4,
                                [one for one, got in zip(LUA, known) if got != "true"])

    def test_no_path_leads_out(self):
        text = "local attempts = { " + ",\n".join(f"function() {call} end" for call, _ in PATHS) + " }" + TRY_PATHS
        before = self.state_outside()
        done = self.in_box(text, "--sandbox-write", "out")
        for (call, code), got in zip(PATHS, self.said(done, len(PATHS))):
            with self.subTest(call):
                self.assertEqual(got, code)
        self.assertEqual(self.state_outside(), before)
        self.assertEqual({path.name for path in self.out.iterdir()}, {"link", "dangling.h5"})
        done = self.in_box(text, "--sandbox-write", "out", env=self.without_namespaces())
        self.assertEqual(self.said(done, len(PATHS)), [code for _, code in PATHS])

    def test_what_it_may_do_works(self):
        (self.box / "sub" / "own.lua").write_text("return { seed = 3 }")
        (self.box / "text.txt").write_text("some text to train on " * 50)
        for name in ("train", "plan", "verify", "prove"):
            command = "run" if name == "train" else name
            text = 'mw.train(e { seed = require("sub.own").seed, data = mw.text { "text.txt" }, log = OUT .. "/run.h5", ' \
                   'tensorboard = OUT .. "/events", checkpoint = { path = OUT .. "/checkpoints", every = 1 } })'
            words = self.command(text, "--sandbox", "--sandbox-write", "out", "--json")
            done = subprocess.run([BIN, command, *words[2:]], cwd=self.folder, capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue((self.out / "run.h5").exists())
        for folder in ("checkpoints", "events"):
            self.assertTrue(any((self.out / folder).iterdir()), folder)
        text = 'print(mw.plan(e { cluster = mw.cluster("selene", { nodes = 1 }) }).step_seconds ~= nil, collectgarbage("count") > 0)'
        done = self.in_box(text, "--quiet", "--set", "batch=2*4")
        self.assertEqual((done.returncode, done.stdout), (0, "true\ttrue\n"), done.stderr)

    def test_without_a_folder_nothing_is_written(self):
        done = self.in_box('mw.train(e { log = "out/run.h5" })', "--json")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(problems(self.lines(done)), ["sandbox.write log"])
        done = subprocess.run([BIN, "plan", *self.command("mw.plan(e())")[2:], "--sandbox", "--html", "out/plan.html",
                               "--json"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(problems(self.lines(done)), ["sandbox.write"])
        self.assertFalse((self.out / "plan.html").exists())

    def test_folders_that_are_named_are_read(self):
        text = 'print(mw.plan(e { data = mw.text { OUTSIDE .. "/canary.txt" } }).kind)'
        done = self.in_box(text, "--sandbox-read", "outside", "--quiet")
        self.assertEqual((done.returncode, done.stdout), (0, "plan\n"), done.stderr)

    def test_bombs_end(self):
        running = {}
        for name, (text, more, code) in BOMBS.items():
            path = self.box / f"{name.replace(' ', '_')}.lua"
            path.write_text(HEAD % (self.outside, self.out) + text)
            running[name] = subprocess.Popen([BIN, "run", path, "--sandbox", "--json", *more], cwd=self.folder, text=True,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name, process in running.items():
            stdout, stderr = process.communicate(timeout=300)
            with self.subTest(name):
                process.stdout = stdout
                last = [line for line in self.lines(process) if line["kind"] == "error"][-1]
                self.assertEqual(last["code"], BOMBS[name][2], stdout + stderr)
                if last["code"].startswith("sandbox."):
                    problems([last])
                self.assertIn(process.returncode, (1, 2))

    def things_outside(self):
        """What native code may look for: sockets, a process, objects of System V and a key, as a table in Lua."""
        name = f"meshwright-escaping-{os.getpid()}"
        listening = []
        for family, kind, address in ((socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
                                      (socket.AF_UNIX, socket.SOCK_STREAM, str(self.outside / "socket")),
                                      (socket.AF_UNIX, socket.SOCK_STREAM, "\0" + name),
                                      (socket.AF_UNIX, socket.SOCK_DGRAM, str(self.outside / "datagrams"))):
            listening.append(socket.socket(family, kind))
            self.addCleanup(listening[-1].close)
            listening[-1].bind(address)
            if kind == socket.SOCK_STREAM:
                listening[-1].listen()
        process = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        libc = ctypes.CDLL(None)
        private, mode, remove, session = 0, 0o600, 0, -3
        messages, semaphores, segments = (libc.msgget(private, mode), libc.semget(private, 1, mode),
                                          libc.shmget(private, 4096, mode))
        self.addCleanup(libc.msgctl, messages, remove, None)
        self.addCleanup(libc.semctl, semaphores, 0, remove)
        self.addCleanup(libc.shmctl, segments, remove, None)
        libc.syscall(248, b"user", name.encode(), b"canary", 6, session)  # add_key()
        self.addCleanup(pathlib.Path("/dev/shm", name).unlink, missing_ok=True)
        return (f'local HAS = {{ name = "{name}", port = "{listening[0].getsockname()[1]}", process = "{process.pid}", '
                f'messages = "{messages}", semaphores = "{semaphores}", segments = "{segments}" }} ')

    def test_native_code_stays_in(self):
        text = self.things_outside() + 'local escaping, WHERE = mw.plugins("escaping"), arg[1] or "" local attempts = { ' + \
            ",\n".join(f"function() return escaping {{ {one} }} end" for one in NATIVE + SOMETIMES) + " }" + TRY_NATIVE
        (self.box / "mine").write_text("mine")
        before = self.state_outside()
        done = self.in_box(text, "--sandbox=require", "--sandbox-write", "out", "--plugin-path", TEST_PLUGINS)
        for attempt, got in zip(NATIVE + SOMETIMES, self.said(done, len(NATIVE + SOMETIMES))):
            with self.subTest(attempt):
                self.assertIn("not done", got)
        self.assertEqual(self.state_outside(), before)
        # Outside they are done, so each can be.
        known = self.said(self.trusted(text, "--plugin-path", TEST_PLUGINS, "--", "er"), len(NATIVE + SOMETIMES))
        for attempt, got in zip(NATIVE, known):
            with self.subTest(attempt):
                self.assertIn("done", got)
                self.assertNotIn("not done", got)

    def test_native_bombs_end(self):
        running = {}
        for act, (more, _) in NATIVE_BOMBS.items():
            path = self.box / f"{act.replace(' ', '_')}.lua"
            path.write_text(HEAD % (self.outside, self.out) +
                            f'mw.plan(e {{ plan = {{ mw.plugins("escaping") {{ act = "{act}" }} }} }})')
            running[act] = subprocess.Popen([BIN, "run", path, "--sandbox", "--json", "--plugin-path", TEST_PLUGINS, *more],
                                            cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for act, process in running.items():
            stdout, stderr = process.communicate(timeout=300)
            with self.subTest(act):
                process.stdout = stdout
                errors = [line for line in self.lines(process) if line["kind"] == "error"]
                expected = NATIVE_BOMBS[act][1]
                if expected.startswith("sandbox."):
                    self.assertEqual(problems(errors[-1:]), [expected], stdout + stderr)
                else:
                    self.assertIn(expected, errors[0]["message"])
                self.assertNotEqual(process.returncode, 0)

    def locked(self, file):
        """Whether the process that the plugin has left behind is there. It has been there, or comes in a moment."""
        for _ in range(600):
            if file.exists() and file.read_text() == "locked":
                break
            time.sleep(0.1)
        with open(file) as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                return True

    def assert_ends(self, file):
        """The process left behind ends. Pipes of a namespace's first process close before the kernel ends the others."""
        for _ in range(600):
            if not self.locked(file):
                return
            time.sleep(0.1)
        self.fail(f"a process still holds {file}")

    def test_nothing_outlives_a_sweep(self):
        """Plugins of its script may start processes, as the sweep does."""
        text = ('pcall(mw.plan, e { plan = { mw.plugins("escaping") { act = "fork", path = OUT .. "/lock" } } })\n'
                'mw.sweep { name = "s", base = e(), over = { seed = { 1, 2 } } }')
        self.command(text)
        done = subprocess.run([BIN, "sweep", "../box/script.lua", "--sandbox", "--sandbox-write", ".", "--plugin-path",
                               TEST_PLUGINS, "--json"], cwd=self.out, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([line["status"] for line in self.lines(done) if line["kind"] == "cell"], ["done", "done"])
        self.assert_ends(self.out / "lock")

    def started(self, text, *more):
        process = subprocess.Popen(self.command(text, "--sandbox", "--sandbox-write", "out", "--json", *more), cwd=self.folder,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        return process

    def test_nothing_outlives_the_process_outside(self):
        """Which is killed, and neither the script nor what its plugin has started listens to any other signal."""
        process = self.started('local escaping = mw.plugins("escaping")\n'
                               'pcall(mw.plan, e { plan = { escaping { act = "fork", path = OUT .. "/lock" } } })\n'
                               'mw.plan(e { plan = { escaping { act = "wait" } } })', "--plugin-path", TEST_PLUGINS)
        self.assertTrue(self.locked(self.out / "lock"))
        process.kill()
        process.communicate(timeout=60)
        self.assert_ends(self.out / "lock")

    def test_a_signal_reaches_the_script(self):
        process = self.started('mw.train(e { steps = 1 << 30, log = OUT .. "/run.h5" })')
        for line in process.stderr:
            if line.startswith("step "):
                break
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, stdout + stderr)
        self.assertIn("interrupted by SIGINT", stdout)

    def made_run_file(self):
        self.trusted('mw.train(e { log = OUTSIDE .. "/run.h5" })')
        return self.outside / "run.h5"

    def test_run_files_hold_their_own_data(self):
        """HDF5 itself would read what a run file says to be its data from any file."""
        made = self.made_run_file()
        text = 'print(pcall(function() return mw.load("taken.h5").series.taken[1] end))'
        for source in ("/proc/self/environ", str(self.outside / "canary.txt")):
            shutil.copy(made, self.box / "taken.h5")
            with h5py.File(self.box / "taken.h5", "r+") as file:
                file["series/step"].resize((4,))
                file["series"].create_dataset("taken", (4,), "f8", external=[(source, 0, 32)])
            for more in ({}, {"env": self.without_namespaces()}):
                with self.subTest(source, more=more):
                    done = self.in_box(text, "--quiet", **more)
                    self.assertTrue(done.stdout.startswith("false"), done.stdout + done.stderr)
        self.assertTrue(self.trusted(text).stdout.startswith("false"))

    def test_no_link_leads_out_without_namespaces(self):
        """What the program itself reads, copies and writes beside what a script names: only the paths' checks are there."""
        self.trusted('mw.train(e { export = OUT .. "/../box/model" })')
        (self.outside / "secret.json").write_text('{"vocab_size": 31337, "name": "CANARY", "cells": []}')
        shutil.copytree(self.box / "model", self.box / "other")
        (self.box / "model" / "tokenizer.json").symlink_to("../../outside/secret.json")
        (self.box / "other" / "config.json").unlink()
        (self.box / "other" / "config.json").symlink_to("../../outside/secret.json")
        (self.box / "sweep").mkdir()
        (self.box / "sweep" / "sweep.json").symlink_to("../../outside/secret.json")
        (self.folder / "own.csv").write_text("CANARY,1\n")  # in the working directory, which is not the script's
        left = self.folder / ".out.exporting"
        left.mkdir()
        attempts = [
            'mw.train(e { weights = "model", export = OUT .. "/copied" })',
            'mw.plan(e { weights = "other" })',
            'error(#mw.load("sweep") .. " cells")',
            'mw.plan(e { plan = { mw.plugins("pp") { 1, schedule = "own.csv" } } })',
            'mw.train(e { export = OUT, overwrite = true })',
            f'mw.plugin("./{"x" * 300}.so")',
        ]
        expected = [READ, READ, "runs.unreadable", "file.missing", WRITE, READ]
        text = "local attempts = { " + ",\n".join(f"function() {call} end" for call in attempts) + " }" + TRY_PATHS
        done = self.in_box(text, "--sandbox-write", "out", env=self.without_namespaces())
        for call, code, got in zip(attempts, expected, self.said(done, len(attempts))):
            with self.subTest(call):
                self.assertIn(code, got)
        self.assertNotIn("CANARY", done.stdout + done.stderr)
        self.assertNotIn("31337", done.stdout + done.stderr)
        self.assertFalse((self.out / "copied").exists())
        self.assertTrue(left.exists())

    def test_a_script_that_is_a_link_opens_no_folder(self):
        (self.outside / "other.lua").write_text(HEAD % (self.outside, self.out) + "mw.train(e())")
        (self.box / "other.lua").symlink_to("../outside/other.lua")
        self.command('print(pcall(mw.plan, e { data = mw.text { OUTSIDE .. "/canary.txt" } })); mw.train(e())')
        words = ["compare", "box/script.lua", "box/other.lua", "--sandbox"]
        self.assertIn(f"--sandbox-read {self.outside.resolve()}", self.refused(2, "sandbox.read", *words)["hint"])
        done = self.call(*words, "--sandbox-read", "outside")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_machine_without_bubblewrap(self):
        (self.folder / "bin").mkdir()
        path = {**os.environ, "PATH": str(self.folder / "bin")}
        for fails in ("does not start: No such file", "lets bwrap make no user namespaces"):
            done = self.in_box("print(1)", "--json", env=path)
            line, = self.lines(done)
            self.assertEqual((done.returncode, problems([line])), (5, ["sandbox.kernel"]))
            self.assertIn(fails, line["message"])
            (self.folder / "bin" / "bwrap").write_text("#!/bin/sh\necho bwrap: No permissions >&2; exit 1\n")
            (self.folder / "bin" / "bwrap").chmod(0o755)

    def test_a_script_is_found_by_the_name_that_it_is_called_by(self):
        """Through links, from standard input, and in a working directory that it may not read."""
        (self.box / "text.txt").write_text("some text to train on " * 50)
        (self.folder / "linked").symlink_to("box")
        text = 'print(mw.plan(e { data = mw.text { "text.txt" } }).kind)'
        self.command(text)
        for name in ("linked/script.lua", self.folder / "linked/script.lua", self.box / "script.lua"):
            for where in (self.folder, self.outside, self.box):
                if not (where / name).exists():
                    continue
                done = subprocess.run([BIN, "run", name, "--sandbox", "--quiet"], cwd=where, capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout), (0, "plan\n"), (name, where, done.stderr))
        done = subprocess.run([BIN, "run", "-", "--sandbox", "--sandbox-read", "linked", "--quiet"], cwd=self.folder,
                              input=(HEAD + text.replace("text.txt", "linked/text.txt")) % ("", ""), capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "plan\n"), done.stderr)

    def test_plugins_that_others_may_write_are_refused(self):
        """In every mode."""
        folder = self.folder / "plugins"
        folder.mkdir()
        file = folder / "good.so"
        file.write_bytes((pathlib.Path(TEST_PLUGINS) / "good.so").read_bytes())
        self.command('mw.plugins("good")')
        words = ["run", "box/script.lua", "--plugin-path", "plugins"]
        self.assertEqual(self.call(*words).returncode, 0)
        for path, mode in ((file, 0o646), (file, 0o666), (folder, 0o757), (folder, 0o777)):
            before = path.stat().st_mode
            path.chmod(mode)
            line = self.refused(2, "plugin.writable", *words)
            self.assertIn(f"chmod o-w {path.resolve()}", line["hint"])
            path.chmod(before)
        folder.chmod(0o1777)  # each may remove his own files alone
        self.assertEqual(self.call(*words).returncode, 0)
        folder.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(file, -1, 54321)
            file.chmod(0o664)
            self.assertIn(f"chmod g-w {file.resolve()}", self.refused(2, "plugin.writable", *words)["hint"])
            os.chown(file, 54321, 0)
            file.chmod(0o644)
            folder.chmod(0o1777)
            self.refused(2, "plugin.writable", *words)

    def test_what_is_left_out_is_named(self):
        for line, name in (('io.open "x"', "global 'io'"), ('os.execute "true"', "field 'execute'")):
            error, = self.lines(self.in_box(line, "--json"))
            self.assertIn(f"--sandbox leaves the {name} out", error["hint"])
            self.assertNotIn("sandbox", self.trusted("nothing()", "--json").stdout)

    def test_options_that_do_not_go_together(self):
        for more in (["--processes", "2"], ["--max-restarts", "1"]):
            done = self.in_box("mw.train(e())", "--json", *more)
            self.assertEqual((done.returncode, problems(self.lines(done))), (2, ["usage.option"]))


if __name__ == "__main__":
    unittest.main()
