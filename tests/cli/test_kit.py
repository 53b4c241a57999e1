"""The kit, as someone from outside has it: installed, and nothing of the source folder. Each kind's
`plugins new` builds and passes its test at once, the examples and the docs' snippets do, and what
is wrong with a plugin is said with what to do."""
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
KINDS = ["strategy", "scheduler", "hook", "optimizer", "model", "op"]
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

    def test_new_of_each_kind_passes_at_once(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.shell("meshwright", "plugins", "new", f"my_{kind}", "--kind", kind)
                done = self.shell(self.folder / f"my_{kind}/test.sh", "--json")
                self.assertIn('"kind":"test"', done.stdout)
        for kind in LUA_KINDS:
            with self.subTest(f"{kind} in Lua"):
                self.shell("meshwright", "plugins", "new", f"lua_{kind}", "--kind", kind, "--lua")
                self.shell(self.folder / f"lua_{kind}/test.sh")

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

    def test_examples(self):
        build = self.build(self.prefix / "share/meshwright/examples/plugins")
        for name in EXAMPLES:
            with self.subTest(name):
                self.passed(self.tried_out(build / f"{name}.so"))
                text = (self.prefix / f"share/meshwright/examples/plugins/{name}/{name}.cpp").read_text()
                self.assertLess(text.count("\n"), 150)

    def test_the_docs_plugin(self):
        blocks = dict(re.findall(r"(?ms)^```(cpp|cmake|lua)\n(.*?)^```$", (SOURCE / "docs/plugins.md").read_text()))
        source = self.folder / "narrow"
        source.mkdir()
        (source / "narrow.cpp").write_text(blocks["cpp"])
        (source / "CMakeLists.txt").write_text(blocks["cmake"])
        build = self.build(source)
        symbols = subprocess.run(["nm", "-D", "--defined-only", build / "narrow.so"], capture_output=True, text=True)
        self.assertEqual([line.split()[-1] for line in symbols.stdout.splitlines()], ["meshwright_plugin"])
        self.passed(self.tried_out(build / "narrow.so"))
        self.assertIn("over one axis", self.shell("meshwright", "plugins", "show", build / "narrow.so").stdout)
        script = self.write(blocks["lua"])
        result, = self.lines(self.shell("meshwright", "run", script, "--plugin-path", build, "--json"))
        self.assertEqual(result["verdict"], "equal")

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

    def test_mistakes_are_said(self):
        """With what to do: what cannot be loaded, what throws, what computes something else."""
        for name, code in (("wrong_abi", "plugin.abi"), ("other_torch", "plugin.torch"),
                           ("other_toolchain", "plugin.toolchain"), ("undefined_symbol", "plugin.needs-symbol"),
                           ("no_symbol", "plugin.foreign"), ("taken", "plugin.taken")):
            with self.subTest(name):
                done = self.call("plugins", "test", f"{TEST_PLUGINS}/{name}.so", "--json")
                line, = self.lines(done)
                self.assertEqual((done.returncode, line["code"]), (2, code))
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
                ("hostile", 'hostile { 2, at = "no such dim" }', "runs somewhere", []),
                ("broken_adjoint", 'broken_adjoint { 2, fault = "drop_backward" }', "equals one rank", ["gradient"])):
            with self.subTest(plan):
                failed([self.write(SCRIPT % (plugin, plugin, plan))], beginning, *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
