"""What can be composed, as plugins list has it: by kind, with clusters and stacks; and the nearest
of them where a name is none."""
import re
import shutil
import unittest

from cases import SOURCE, TEST_PLUGINS, ProgramCase
from problems import problems


class Listed(ProgramCase):
    def test_plugins_list(self):
        done = self.call("plugins", "list", "--json")
        names = {line["name"]: line for line in self.lines(done) if line["kind"] == "plugin"}
        self.assertEqual(names["dp"]["status"], "ok")
        self.assertTrue(names["tp"]["file"].endswith("plugins/tp.so"))
        self.assertIn("tensor parallelism", self.call("plugins", "list").stdout)
        # What is built in, told apart, and all that a plugin brings.
        brought = {name: {(one["kind"], one["name"]) for one in line["brings"]} for name, line in names.items()}
        self.assertIsNone(names["meshwright"]["file"])
        self.assertLessEqual({("model", "llama"), ("data", "text"), ("optimizer", "muon"), ("optimizer", "shampoo"),
                              ("lr_schedule", "cosine"), ("microbatch", "fit"), ("recompute", "selective")}, brought["meshwright"])
        self.assertEqual(brought["dp"], {("strategy", "dp"), ("hook", "bf16"), ("hook", "int8"), ("hook", "powersgd")})
        self.assertEqual(brought["tp"], {("strategy", "tp")})
        self.assertLessEqual({("strategy", "pp"), ("scheduler", "zbv")}, brought["pp"])
        listed = self.call("plugins", "list").stdout
        self.assertRegex(listed, r"(?m)^  gpt +GPT-2 decoder")
        self.assertRegex(listed, r"(?m)^  1f1b +one forward, one backward, at most p - i microbatches\s+stored\s.*\(pp\.so \S+\)$")
        # Folders once, below; no row is wider than a terminal for a path's or a sentence's sake.
        self.assertRegex(listed, r"(?m)^  /.*/plugins$")
        self.assertIn("as of Narayanan et al. 2021: gradients", listed)
        rows = listed.split("the others are in:")[0].splitlines()
        self.assertLessEqual(max(map(len, rows)), 80)
        stacks = {line["name"] for line in self.lines(done) if line["kind"] == "stack"}
        self.assertLessEqual({"megatron-core", "fsdp2", "meshwright"}, stacks)
        for name in stacks:
            self.assertRegex(listed, rf"(?m)^  {re.escape(name)} ")
            self.only("plan", self.script("dp(2)"), "--cluster", "dgx-h100", "--nodes", "1", "--stack", name, "--set", "precision=bf16")

    def test_clusters_are_a_kind(self):
        """Files of one's own on the plugin path beside those that ship."""
        (self.folder / "hall.cluster.lua").write_text('-- our hall\nreturn changed')
        listed = self.call("plugins", "list", "--plugin-path", self.folder).stdout
        # A sentence, without its source, however many lines it takes.
        listed = re.sub(r"\n {3,}", " ", listed)  # a line of each
        self.assertRegex(listed, r"(?m)^  dgx-h100 +DGX H100: 8 H100 joined .* NICs of 400 Gb/s$")
        self.assertRegex(listed, r"(?m)^  selene +Selene, .* a fat tree at full rate$")
        self.assertRegex(listed, r"(?m)^  hall +our hall \(hall\.cluster\.lua\)$")
        text = (SOURCE / "clusters/dgx-v100.lua").read_text().replace('name = "dgx-v100"', 'name = "hall"')
        (self.folder / "hall.cluster.lua").write_text(text)
        script = self.script("", 'e.cluster = mw.cluster("hall", { nodes = 2 })')
        self.assertIn("hall", self.only("plan", "--plugin-path", self.folder, script)["priced_for"])
        done = self.call("plan", self.write('local mw = require "meshwright" mw.cluster "hall"'))
        self.assertIn("there is no cluster hall", done.stderr)
        self.assertIn("dgx-h100, ", done.stderr)

    def test_keys_of_older_cluster_files_are_told_their_names(self):
        done = self.call("plan", self.script("dp(2)"), "--json", "--set",
                         'cluster=mw.cluster("dgx-h100", { nodes = 1, host = { memory = 1e11 } })')
        error, = self.lines(done)
        self.assertEqual((done.returncode, problems([error]), error["hint"]),
                         (2, ["option.unknown cluster.host.memory"], "memory is called bandwidth now"))

    def test_what_is_listed_is_shown(self):
        """The first and the last of each kind: plugins' names, schedulers of pp, clusters, stacks, what is built in."""
        by_kind = {}
        for line in self.lines(self.call("plugins", "list", "--json")):
            for one in line.get("brings", [line]):
                by_kind.setdefault(one["kind"], []).append((one["name"], line["name"]))
        self.assertLessEqual({"strategy", "scheduler", "cluster", "stack", "model", "optimizer"}, set(by_kind))
        for kind, names in by_kind.items():
            for name, _ in {names[0], names[-1]}:
                with self.subTest(f"{kind} {name}"):
                    shown = self.lines(self.call("plugins", "show", name, "--json"))
                    kinds = {one["kind"] for line in shown for one in line.get("brings", [line]) if one["name"] == name}
                    self.assertIn(kind, kinds)
        text = self.call("plugins", "show", "vtrain").stdout  # a cluster and a stack
        self.assertIn('cluster = mw.cluster("vtrain")', text)
        self.assertIn('stack = mw.stack("vtrain")', text)
        self.assertIn('{ schedule = "1f1b" } of a pipeline', self.call("plugins", "show", "1f1b").stdout)
        done = self.call("plugins", "show", "selen", "--json")
        self.assertEqual((done.returncode, problems(self.lines(done))), (2, ["plugin.unknown"]))
        self.assertIn('did you mean "selene"?', self.lines(done)[0]["hint"])

    def test_what_nobody_has_is_near_something_or_in_another_file(self):
        for wrong, near in (("1f1bb", "1f1b"), ("megatron-cor", "megatron-core"), ("thread", "threads"), ("adamv", "adamw")):
            done = self.call("plugins", "show", wrong, "--json")
            self.assertEqual(problems(self.lines(done)), ["plugin.unknown"], wrong)
            self.assertIn(f'did you mean "{near}"?', self.lines(done)[0]["hint"])
        shutil.copy(f"{TEST_PLUGINS}/good.so", self.folder / "renamed.so")
        for name in ("good", "renamed"):
            done = self.call("plugins", "show", name, "--json", "--plugin-path", self.folder)
            self.assertEqual(problems(self.lines(done)), ["plugin.misnamed"], name)
            self.assertEqual(self.lines(done)[0]["hint"], "rename the file to good.so")
        (self.folder / "build").mkdir()
        shutil.copy(f"{TEST_PLUGINS}/good.so", self.folder / "build/my_own.so")
        done = self.call("plugins", "show", "my_own", "--json")
        self.assertEqual(self.lines(done)[0]["hint"], "it was built in build: --plugin-path build")

    def test_communicators_that_nobody_registers(self):
        """Threads, which are none, and those whose library is not here."""
        listed = self.call("plugins", "list").stdout
        self.assertRegex(listed, r"(?m)^  threads +ranks are threads")
        lines = [line for line in self.lines(self.call("plugins", "list", "--json"))]
        there = {one["name"] for line in lines if line.get("status") == "ok" for one in line.get("brings", [line])
                 if one["kind"] == "communicator"}
        missing = {line["name"]: line for line in lines if line.get("status") == "not built"}
        self.assertEqual(there | set(missing), {"threads", "mpi", "nccl"})
        self.assertEqual(there & set(missing), set())
        self.assertIn("--communicator threads", self.call("plugins", "show", "threads").stdout)
        for name, line in missing.items():
            self.assertIn("./meshwright build", line["hint"])
            self.assertIn("Not built here: " + line["hint"], self.call("plugins", "show", name).stdout)
            self.assertRegex(re.sub(r"\n {3,}", " ", listed), rf"(?m)^  {name} .*; not built here: ")

    def test_broken_plugins_are_listed_with_reasons(self):
        done = self.call("plugins", "list", "--json", "--plugin-path", TEST_PLUGINS)
        self.assertEqual(done.returncode, 0, done.stderr)
        broken = {line["name"]: line["code"] for line in self.lines(done) if line["status"] == "broken"}
        self.assertEqual(broken["wrong_abi"], "plugin.abi")
        self.assertEqual(broken["other_torch"], "plugin.torch")
        self.assertEqual(broken["no_symbol"], "plugin.foreign")
        # What is broken hinders nobody who does not ask for it.
        done = self.call("plan", self.script("dp(2)"), MESHWRIGHT_PLUGIN_PATH=TEST_PLUGINS)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.call("plugins", "show", "wrong_abi", "--plugin-path", TEST_PLUGINS, "--json")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(problems(self.lines(done)), ["plugin.abi"])

    def test_wrong_names_on_the_command_line_are_said_at_once(self):
        done = self.call("plan", self.script("dp(2)"), "--cluster", "dgx-h10", "--stack", "megatron-cor", "--set", "steps={", "--json")
        self.assertEqual(done.returncode, 2, done.stderr)
        wrong = self.lines(done)
        self.assertEqual(problems(wrong), ["set.value cluster", "set.value stack", "set.value steps"])
        for line, near in zip(wrong, ('did you mean "dgx-h100"? there are b200, ', 'did you mean "megatron-core"? there are ')):
            self.assertTrue(line["hint"].startswith(near), line["hint"])


if __name__ == "__main__":
    unittest.main()
