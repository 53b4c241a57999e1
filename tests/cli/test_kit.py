"""The kit, as someone from outside has it: installed, and nothing of the source folder. What
`plugins new` writes of each kind builds and passes, the examples and the docs' snippets do, and
what is wrong with a plugin is said with what to do. Forms that ship, as a stranger's: test_copied.

A compile takes most of its time for headers. So one kind is built as its authors do; of all else
the text is compiled as one file."""
import json
import os
import re
import shutil
import subprocess
import unittest

from cases import BIN, SOURCE, TEST_PLUGINS
from kit import KitCase
from ports import free_ports
from problems import problems

KINDS = ["strategy", "scheduler", "hook", "optimizer", "model", "op", "data", "recompute", "microbatch", "lr_schedule",
         "cluster", "weave", "observer", "device", "packing"]
LUA_KINDS = ["strategy", "scheduler", "model", "cluster"]
EXAMPLES = ["tp2d", "kfkb", "topk", "lion", "parallel", "profiler"]
SCRIPT = """\
local mw = require "meshwright"
local %s = mw.plugins("%s")
mw.train {
  model = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 32, vocab = 32 }, data = mw.synthetic {},
  sequence = 8, plan = { %s }, batch = 8, microbatch = 2, optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
}
"""


class Kit(KitCase):
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

    def test_a_program_on_the_kernel_alone_trains_as_the_script_does(self):
        example = self.prefix / "share/meshwright/examples/kernel"
        self.assertLessEqual(len((example / "train.cpp").read_text().splitlines()), 100)
        program = self.build(example) / "train"
        needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
        self.assertNotRegex(needed, r"lib(lua|hdf5|edit|mpi)")
        self.environment = dict(self.environment, MESHWRIGHT_PLUGIN_PATH=str(self.prefix / "lib/meshwright/plugins"))
        losses = self.shell(program).stdout.splitlines()[1:]
        self.assertEqual(len(losses), 5)
        script = self.shell("meshwright", "run", example / "train.lua").stdout
        self.assertEqual([line for line in script.splitlines() if re.fullmatch(r"\d \d+\.\d{12}", line)], losses)

    def test_bench_train_comes_along_and_says_where_it_does_not(self):
        asked = (self.prefix / "bin/meshwright", "bench", "train", "--mixes", "dp3", "--json")
        error, = self.lines(self.shell(*asked, code=2))
        self.assertEqual(error["code"], "usage.value")
        folder = self.prefix / "share/meshwright/bench"
        folder.rename(self.folder / "bench")
        self.addCleanup((self.folder / "bench").rename, folder)
        error, = self.lines(self.shell(*asked, code=5))
        self.assertEqual((error["stage"], error["code"]), ("environment", "file.missing"))

    def test_what_new_says_comes_next_leads_to_a_script_that_trains(self):
        """From a program that is built and not installed. Each command is typed as it is printed."""
        said = self.shell(BIN, "plugins", "new", "my_strategy", "--kind", "strategy").stdout
        wrote, title, *lines = said.splitlines()
        self.assertRegex(wrote, r"^wrote my_strategy/: .*my_strategy\.cpp")
        self.assertEqual(title, "next:")
        install, test, run = [line.strip() for line in lines[::2]]
        self.assertRegex(install, r"^cmake --install \S+ --prefix ~/meshwright-kit$")
        use, = re.findall(r"(?s)```lua\n(.*?)```", (self.folder / "my_strategy/README.md").read_text())
        rest = SCRIPT.split("sequence = 8, plan = { %s }, ")[1]
        self.write(use.replace("… }", "model = mw.llama { layers = 2, hidden = 16, heads = 4, ffn = 32, vocab = 32 }, "
                               f"data = mw.synthetic {{}}, sequence = 8, {rest}"))
        cache = self.environment.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
        self.environment = dict(self.environment, HOME=str(self.folder), XDG_CACHE_HOME=cache)
        for command in (install, test, run.replace("SCRIPT", "script.lua")):
            # A clone's launcher would build what is not built.
            done = self.shell("bash", "-c", command.replace(str(SOURCE / "meshwright"), str(BIN)))
        self.assertIn("{ dp(2), my_strategy(2) }", done.stdout)

    def test_new_passes_at_once(self):
        new, = self.lines(self.shell("meshwright", "plugins", "new", "my_strategy", "--kind", "strategy", "--json"))
        self.assertEqual(new["next"][0], "my_strategy/test.sh", "it is installed")
        done = self.shell(self.folder / "my_strategy/test.sh", "--json")
        self.assertIn('"kind":"test"', done.stdout)
        symbols = subprocess.run(["nm", "-D", "--defined-only", self.folder / "my_strategy/build/my_strategy.so"],
                                 capture_output=True, text=True)
        self.assertEqual([line.split()[-1] for line in symbols.stdout.splitlines()], ["meshwright_plugin"])
        # Who asks for it without its folder is told where it is.
        done = self.shell("meshwright", "plugins", "show", "my_strategy", code=2)
        self.assertIn("--plugin-path my_strategy/build", done.stderr)
        for kind in LUA_KINDS:
            with self.subTest(f"{kind} in Lua"):
                new, = self.lines(self.shell("meshwright", "plugins", "new", f"lua_{kind}", "--kind", kind, "--lua", "--json"))
                self.write(SCRIPT % ("dp", "dp", "dp(2)"))
                for command in new["next"]:
                    self.shell("bash", "-c", command.replace("SCRIPT", "script.lua"))

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
                self.assertNotIn(line["check"], checks.setdefault(line["of"], {}), "one verdict each")
                checks[line["of"]][line["check"]] = line
        self.assertEqual(len(checks), len(texts))
        for of, own in checks.items():
            with self.subTest(of):
                if of == "op my_op":  # its operands only a model knows
                    self.assertEqual(own["runs somewhere"]["status"], "failed")
                elif of == "cluster my_cluster":  # prices, and computes nothing
                    self.assertEqual({check["status"] for check in own.values()}, {"ok"})
                    self.assertIn("a plan is priced for the cluster", own)
                elif of == "device my_device":
                    self.assertEqual({check["status"] for check in own.values()}, {"ok"}, own)
                    self.assertIn("losses are those of CPUs", own)
                    self.assertIn("equals one rank, beside pp(2)", own)
                elif of.startswith("observer"):
                    self.assertEqual({check["status"] for check in own.values()}, {"ok"}, own)
                    self.assertIn("a run that it looks at is the run without it", own)
                else:
                    self.passed(own)
        self.profiled(build)
        script = (self.folder / "my_op/my_op.lua").read_text().replace('mw.plugins("my_op")', 'mw.plugins("narrow")')
        tried = self.tried_out(self.write(script), "--plugin-path", build)
        self.passed(tried)
        self.assertEqual(tried["gradients are the loss's derivative"]["status"], "ok")
        self.assertIn("over one axis", self.shell("meshwright", "plugins", "show", build / "narrow.so").stdout)
        result, = self.lines(self.shell("meshwright", "run", self.write(blocks["lua"]), "--plugin-path", build, "--json"))
        self.assertEqual(result["verdict"], "equal")

    def profiled(self, build):
        """The example's file has each rank's segments of two steps, and each op's forward."""
        script = SCRIPT.replace("steps = 3", 'steps = 3, observers = { narrow.profiler { "ops.json", first = 1, ops = true } }')
        self.shell("meshwright", "run", self.write(script % ("narrow", "narrow", 'mw.plugins("dp")(2)')), "--plugin-path", build)
        events = json.loads((self.folder / "ops.json").read_text())["traceEvents"]
        self.assertEqual({event["tid"] for event in events}, {0, 1})
        self.assertEqual({event["args"]["step"] for event in events}, {1, 2})
        forwards = [event for event in events if event["name"] == "forward"]
        self.assertEqual(len(forwards), 2 * 2 * 2, {event["name"] for event in events})
        ops = [event for event in events if event["name"] == "layers.0.mlp.down"]
        self.assertEqual(len(ops), len(forwards))
        for op in ops:
            self.assertTrue(any(run["tid"] == op["tid"] and run["ts"] <= op["ts"] and
                                op["ts"] + op["dur"] <= run["ts"] + run["dur"] for run in forwards), op)

    def test_a_new_communicator_connects_processes(self):
        self.shell("meshwright", "plugins", "new", "wires", "--kind", "communicator")
        # It is compiled once: with this variable it changes a byte of each long message.
        source = self.folder / "wires/wires.cpp"
        text = source.read_text()
        hands_over = "      arrived(from, std::move(message));"
        self.assertIn(hands_over, text)
        source.write_text("#include <cstdlib>\n" + text.replace(
            hands_over, '      if (size > 4000 && std::getenv("WIRES_SPOIL") != nullptr) message.back() ^= 1;\n' + hands_over))
        done = self.shell(self.folder / "wires/test.sh", "--json")
        checks = {line["check"]: line for line in self.lines(done) if line["kind"] == "check"}
        equal = [check for name, check in checks.items() if name.startswith("equals one rank over it")]
        self.assertEqual([check["status"] for check in equal], ["ok"] * 8, equal)
        for name in ("bytes and memory as predicted, over it", "all processes end well", "a process that is killed is named"):
            self.assertEqual(checks[name]["status"], "ok", checks[name])
        # As a user starts them, without a launcher.
        port, = free_ports(1)
        self.write(SCRIPT % ("dp", "dp", "dp(2)"))
        command = [f"{self.prefix}/bin/meshwright", "run", "script.lua", "--communicator", "wires", "--plugin-path",
                   "wires/build", "--json"]
        started = [subprocess.Popen(command, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={
            **self.environment, "WORLD_SIZE": "2", "RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
                   for rank in "10"]
        second, first = [process.communicate(timeout=300) for process in started]
        self.assertEqual([process.returncode for process in started], [0, 0], (first, second))
        self.assertEqual(second[0], "")
        result, = map(json.loads, first[0].splitlines())
        self.assertEqual((result["status"], result["ranks"]), ("done", 2))

        # One that changes a byte of each long message is found out.
        self.environment = dict(self.environment, WIRES_SPOIL="yes")
        done = self.shell(self.folder / "wires/test.sh", "--json", code=1)
        failed = [line for line in self.lines(done) if line["kind"] == "check" and line["status"] == "failed"]
        self.assertTrue(failed)  # gradients or words of the run: both are long messages
        for line in failed:
            self.assertTrue(line["look_at"], line)

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
        refused("kit.kind", "mine", "--kind", "communicator", "--lua")
        refused("kit.kind", "mine", "--kind", "optimizer", "--lua")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["there"])

    def test_an_op_with_a_cuda_kernel(self):
        """Built with nvcc where there is one, and without; on CPUs its formulas are ATen's."""
        source = self.prefix / "share/meshwright/examples/plugins/softsign"
        script = self.write("""local mw = require "meshwright"
mw.plugins("softsign")
local zero, tp = mw.plugins("zero", "tp")
mw.train {
  model = mw.model { dims = { hidden = 16, ffn = 32, vocab = 32 }, layers = 4, block = function(x)
    return x + x:rms_norm {}:linear { to = { "ffn" } }:softsign():linear { to = { "hidden" } } end },
  data = mw.synthetic {}, sequence = 8, plan = { zero { 2, stage = 3 }, tp(2) }, batch = 8, microbatch = 2,
  optimizer = mw.adamw { lr = 1e-2 }, steps = 3,
}""")
        nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
        for name, more in (("with", []), ("without", ["-DMESHWRIGHT_NVCC=OFF"])):
            build = self.folder / name
            said = self.shell("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}", *more).stdout
            self.shell("cmake", "--build", build)
            kernels = "softsign_on_cuda" in subprocess.run(["nm", "-C", build / "softsign.so"], capture_output=True, text=True, check=True).stdout
            if name == "with" and nvcc:
                self.assertIn("softsign: CUDA by ", said)
                self.assertTrue(kernels)
            if name == "without":
                self.assertIn("softsign: MESHWRIGHT_NVCC is OFF: without CUDA", said)
                self.assertFalse(kernels)
        self.passed(self.tried_out(script, "--plugin-path", build))

    def test_the_examples_are_a_project(self):
        source = self.prefix / "share/meshwright/examples/plugins"
        self.shell("cmake", "-S", source, "-B", self.folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        said = self.shell("cmake", "--build", self.folder / "build", "--target", "help").stdout
        for name in EXAMPLES:
            self.assertIn(f"plugin_{name}: phony", said)

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

        refused = self.write(SCRIPT.replace("mw.train", "local own = mw.strategy { name = 'own', axis = { role = 'model' }, "
                                            "rules = { 'ffm' } }\nmw.train") % ("dp", "dp", "own(2)"))
        failed([refused], "runs somewhere", "the first with: plan[1].rules[1]: ffm")
        failed([f"{TEST_PLUGINS}/throws_in_place.so"], "equals one rank", "throws_in_place", "cannot be made")
        for plugin, plan, beginning, words in (
                ("throws_in_place", "throws_in_place { late = true }", "equals one rank", ["cannot edit"]),
                ("hostile", 'hostile { 2, at = "no such dim" }', "runs somewhere", ["no such dim"]),
                ("broken_adjoint", 'broken_adjoint { 2, fault = "drop_backward" }', "equals one rank", ["gradient"])):
            with self.subTest(plan):
                failed([self.write(SCRIPT % (plugin, plugin, plan))], beginning, *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
