"""The kit, as someone from outside has it: installed, and nothing of the source folder. What
`plugins new` writes of each kind builds and passes, the examples and the docs' snippets do, a form
that ships passes as a stranger's, and what is wrong with a plugin is said with what to do.

A compile takes most of its time for headers. So one kind and the stranger's form are built as
their authors do; of all else the text is compiled as one file."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import cases
from cases import SOURCE, TEST_PLUGINS
from problems import problems

BUILD = os.environ["MESHWRIGHT_BUILD"]
KINDS = ["strategy", "scheduler", "hook", "optimizer", "model", "op", "data", "recompute", "microbatch", "lr_schedule"]
LUA_KINDS = ["strategy", "scheduler", "model"]
EXAMPLES = ["tp2d", "kfkb", "topk", "lion", "parallel"]
SCRIPT = """\
local mw = require "meshwright"
local %s = mw.plugins("%s")
mw.train {
  model = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 32, vocab = 32 }, data = mw.synthetic {},
  sequence = 8, plan = { %s }, batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
}
"""
PROJECT = """\
cmake_minimum_required(VERSION 3.25)
project(own LANGUAGES CXX)
set(CMAKE_BUILD_TYPE Release)
find_package(Meshwright REQUIRED)
%s
"""
STRANGERS = """\
local mw = require "meshwright"
local mine, zero, ep, tp, pp = mw.plugins("mine", "zero", "ep", "tp", "pp")
local sizes = { layers = 4, hidden = 24, heads = 4, kv_heads = 2, ffn = 40, vocab = 50 }
local moe = { experts = 4, top_k = 2 }
for key, value in pairs(sizes) do moe[key] = value end
local function e(plan, more)
  local table = { model = mw.llama(sizes), data = mw.synthetic {}, sequence = 8, plan = plan, batch = 8, microbatch = 1,
                  optimizer = mw.adamw { lr = 1e-3 }, steps = 2 }
  for key, value in pairs(more or {}) do table[key] = value end
  return table
end
mw.verify(e { mine { 2, stage = 3, prefetch = 2 }, tp(2) })
mw.verify(e { mine { 2, stage = 1, offload = "optimizer" } })
mw.verify(e({ mine { 4, stage = 2 }, ep(2) }, { model = mw.moe(moe) }))
mw.verify(e { pp(2), mine { 2, stage = 3 } })
mw.plan(e({ zero { 2, stage = 1 } }, { memory = "1KiB" }))
mw.plan(e({ mine { 2, stage = 1 } }, { memory = "1KiB" }))
"""


class Kit(cases.ProgramCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.prefix = pathlib.Path(temporary.name, "prefix")
        done = subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.environment = dict(os.environ, MESHWRIGHT_PREFIX=str(cls.prefix), CMAKE_BUILD_PARALLEL_LEVEL="1",
                               PATH=f"{cls.prefix}/bin:{os.environ['PATH']}")
        if shutil.which("ccache"):
            cls.environment |= {
                "CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_BASEDIR": temporary.name, "CCACHE_NOHASHDIR": "1",
                "CCACHE_PCH_EXTSUM": "1", "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime"}

    def shell(self, *command, code=0):
        done = subprocess.run(list(map(str, command)), cwd=self.folder, env=self.environment, capture_output=True,
                              text=True, timeout=900)
        self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
        return done

    def build(self, source):
        self.shell("cmake", "-S", source, "-B", self.folder / "build", "-G", "Ninja",
                   f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.shell("cmake", "--build", self.folder / "build")
        return self.folder / "build"

    def tried_out(self, *arguments, code=0):
        """The checks of plugins test, by name: their status."""
        done = self.shell(self.prefix / "bin/meshwright", "plugins", "test", *arguments, "--json", code=code)
        lines = self.lines(done)
        self.assertEqual(lines[-1]["kind"], "test")
        checks = [line for line in lines if line["kind"] == "check"]
        self.assertEqual(lines[-1]["failed"], sum(check["status"] == "failed" for check in checks))
        return {check["check"]: check for check in checks}

    def passed(self, checks):
        for name, check in checks.items():
            self.assertNotEqual(check["status"], "failed", check)
        self.assertIn("ok", {check["status"] for name, check in checks.items() if name.startswith("equals one rank")})
        for what in ("bytes and memory as predicted", "nothing is kept", "all ranks agree"):
            self.assertIn("ok", {check["status"] for name, check in checks.items() if name.startswith(what)}, what)

    def test_new_passes_at_once(self):
        self.shell("meshwright", "plugins", "new", "my_strategy", "--kind", "strategy")
        done = self.shell(self.folder / "my_strategy/test.sh", "--json")
        self.assertIn('"kind":"test"', done.stdout)
        symbols = subprocess.run(["nm", "-D", "--defined-only", self.folder / "my_strategy/build/my_strategy.so"],
                                 capture_output=True, text=True)
        self.assertEqual([line.split()[-1] for line in symbols.stdout.splitlines()], ["meshwright_plugin"])
        for kind in LUA_KINDS:
            with self.subTest(f"{kind} in Lua"):
                self.shell("meshwright", "plugins", "new", f"lua_{kind}", "--kind", kind, "--lua")
                self.shell(self.folder / f"lua_{kind}/test.sh")

    def together(self, name, project, texts):
        """One plugin that registers what each of these files registers: each in a namespace of its own, all that they
        include before them. `project`: its CMakeLists."""
        includes = sorted({line for text in texts.values() for line in re.findall(r"(?m)^#include .*$", text)})
        whole = "\n".join(includes) + "\n#undef MESHWRIGHT_PLUGIN\n" + (
            "#define MESHWRIGHT_PLUGIN(name, version, summary, ...) \\\n"
            "  constexpr auto brought = ::mw::registrations_of(name, summary, __VA_ARGS__);\n")
        for number, text in enumerate(texts.values()):
            whole += f"namespace of_{number} {{\n{text}\n}}\n"
        descriptor = re.search(r"(?ms)^#define MESHWRIGHT_PLUGIN\(.*?meshwright_plugin\)$",
                               (self.prefix / "include/meshwright/plugin.h").read_text())[0]
        whole += f"#undef MESHWRIGHT_PLUGIN\n{descriptor}\nMESHWRIGHT_PLUGIN({json.dumps(name)}, \"0.1.0\", \"together\", "
        whole += ", ".join(f"of_{number}::brought" for number in range(len(texts))) + ")\n"
        source = self.folder / name
        source.mkdir()
        (source / f"{name}.cpp").write_text(whole)
        (source / "CMakeLists.txt").write_text(project)
        return self.build(source)

    def test_each_kind_each_example_and_the_docs_plugin_pass(self):
        blocks = dict(re.findall(r"(?ms)^```(cpp|cmake|lua)\n(.*?)^```$", (SOURCE / "docs/plugins.md").read_text()))
        texts = {"narrow": blocks["cpp"]}
        for kind in KINDS:
            self.shell("meshwright", "plugins", "new", f"my_{kind}", "--kind", kind)
            texts[f"my_{kind}"] = (self.folder / f"my_{kind}/my_{kind}.cpp").read_text()
        examples = self.prefix / "share/meshwright/examples/plugins"
        for name in EXAMPLES:
            texts[name] = (examples / name / f"{name}.cpp").read_text()
            self.assertLess(texts[name].count("\n"), 150)
        build = self.together("narrow", blocks["cmake"], texts)
        done = self.shell("meshwright", "plugins", "test", build / "narrow.so", "--json", code=1)
        checks = {}
        for line in self.lines(done):
            if line["kind"] == "check":
                checks.setdefault(line["of"], {})[line["check"]] = line
        self.assertEqual(len(checks), len(texts))
        for of, own in checks.items():
            with self.subTest(of):
                if of == "op my_op":  # its operands only a model knows
                    self.assertEqual(own["runs somewhere"]["status"], "failed")
                else:
                    self.passed(own)
        script = (self.folder / "my_op/my_op.lua").read_text().replace('mw.plugins("my_op")', 'mw.plugins("narrow")')
        tried = self.tried_out(self.write(script), "--plugin-path", build)
        self.passed(tried)
        self.assertEqual(tried["gradients are the loss's derivative"]["status"], "ok")
        self.assertIn("over one axis", self.shell("meshwright", "plugins", "show", build / "narrow.so").stdout)
        result, = self.lines(self.shell("meshwright", "run", self.write(blocks["lua"]), "--plugin-path", build, "--json"))
        self.assertEqual(result["verdict"], "equal")

    def test_new_refuses(self):
        def refused(problem, *arguments):
            done = self.shell(self.prefix / "bin/meshwright", "plugins", "new", *arguments, "--json", code=2)
            self.assertEqual(problems(self.lines(done)), [problem])

        (self.folder / "there").mkdir()
        refused("kit.folder", "there", "--kind", "strategy")
        for name in ("", "Mine", "a b", "../x", "end", "1st", "a" * 61, "mine-too"):
            refused("kit.name", name, "--kind", "strategy")
        refused("plugin.taken", "dp", "--kind", "strategy")
        refused("plugin.taken", "adamw", "--kind", "optimizer")
        refused("kit.kind", "mine", "--kind", "stratgy")
        refused("kit.kind", "mine", "--kind", "communicator")
        refused("kit.kind", "mine", "--kind", "cluster")
        refused("kit.kind", "mine", "--kind", "optimizer", "--lua")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["there"])

    def test_the_examples_are_a_project(self):
        source = self.prefix / "share/meshwright/examples/plugins"
        self.shell("cmake", "-S", source, "-B", self.folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        said = self.shell("cmake", "--build", self.folder / "build", "--target", "help").stdout
        for name in EXAMPLES:
            self.assertIn(f"plugin_{name}: phony", said)

    def test_a_strangers_form(self):
        """plugins/zero, copied under another name and built by its author: it is what ours is."""
        source = self.folder / "strangers"
        source.mkdir()
        for file in (SOURCE / "plugins/zero").iterdir():
            (source / file.name.replace("zero", "mine")).write_text(file.read_text().replace("zero", "mine"))
        (source / "CMakeLists.txt").write_text(PROJECT % (
            "set(CMAKE_UNITY_BUILD ON)\nmeshwright_add_plugin(mine mine.cpp shard_storage.cpp)"))
        build = self.build(source)
        results = self.lines(self.shell("meshwright", "run", self.write(STRANGERS), "--plugin-path", build, "--json"))
        verdicts, hints = ([line for line in results if line["kind"] == kind] for kind in ("verify", "plan"))
        self.assertEqual([line["verdict"] for line in verdicts], ["equal"] * 4)
        own, copied = (line["hint"] for line in hints)
        self.assertRegex(copied, r"mine \{ 2, [^}]*stage = 3")
        self.assertEqual(own, copied.replace("mine", "zero"))

    def test_nothing_points_into_the_source_folder(self):
        """But for libtorch, which the kit can have too."""
        for path in self.prefix.rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            for name in re.findall(rb"%s/[\w./-]*" % re.escape(str(SOURCE).encode()), path.read_bytes()):
                self.assertIn(b"/.deps", name, path)
        self.assertNotIn("not found", self.shell("ldd", self.prefix / "bin/meshwright").stdout)
        there = self.prefix / "share/meshwright"
        for name in ("README.md", "docs/plugins.md", "docs/architecture.md", "examples/plugins/lion/lion.cpp"):
            self.assertTrue((there / name).is_file(), name)

    def test_the_quickstart_runs_from_the_kit(self):
        if not (SOURCE / ".deps/text/gcide.txt").exists():
            self.skipTest("./meshwright build has not fetched the text")
        script = self.prefix / "share/meshwright/scripts/quickstart.lua"
        settings = ("steps=1", "log=nil", "sequence=16", "data.sequence=nil", "model.layers=1")
        done = self.shell("meshwright", "run", script, "--json", *(word for one in settings for word in ("--set", one)))
        self.assertEqual([line["status"] for line in self.lines(done)], ["done"])

    def test_mistakes_are_said(self):
        """With what to do: what cannot be loaded, what throws, what computes something else."""
        for name, code in (("wrong_abi", "plugin.abi"), ("other_torch", "plugin.torch"),
                           ("other_toolchain", "plugin.toolchain"), ("undefined_symbol", "plugin.needs-symbol"),
                           ("no_symbol", "plugin.foreign"), ("taken", "plugin.taken"), ("reserved", "plugin.kind")):
            with self.subTest(name):
                done = self.shell("meshwright", "plugins", "test", f"{TEST_PLUGINS}/{name}.so", "--json", code=2)
                line, = self.lines(done)
                self.assertEqual(line["code"], code)
                self.assertTrue(line["hint"], line)

        def failed(arguments, beginning, *words):
            checks = self.tried_out(*arguments, "--plugin-path", TEST_PLUGINS, code=1)
            bad = [check for name, check in checks.items() if check["status"] == "failed"]
            self.assertTrue(any(check["check"].startswith(beginning) for check in bad), bad)
            for check in bad:
                self.assertTrue(check["look_at"], check)
            for word in words:
                self.assertTrue(any(word in check["found"] for check in checks.values()), checks)

        failed([f"{TEST_PLUGINS}/throws_in_place.so"], "equals one rank", "throws_in_place", "cannot be made")
        for plugin, plan, beginning, words in (
                ("throws_in_place", "throws_in_place { late = true }", "equals one rank", ["cannot edit"]),
                ("hostile", 'hostile { 2, at = "no such dim" }', "runs somewhere", ["no such dim"]),
                ("broken_adjoint", 'broken_adjoint { 2, fault = "drop_backward" }', "equals one rank", ["gradient"])):
            with self.subTest(plan):
                failed([self.write(SCRIPT % (plugin, plugin, plan))], beginning, *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
