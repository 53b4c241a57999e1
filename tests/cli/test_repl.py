"""The prompt: by a pipe, and on a terminal with history, completion, Ctrl-C and Ctrl-D."""
import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time
import unittest

from cases import BIN, ProgramCase

EXPERIMENT = """mw.train { model = mw.llama { layers = 2, hidden = 16, heads = 2, ffn = 32, vocab = 32 },
  data = mw.synthetic {}, sequence = 8, plan = { (mw.plugins("dp"))(2) }, batch = 4, optimizer = mw.adamw { lr = 1e-3 },
  steps = %s }"""


class Terminal:
    """The prompt on a terminal of its own."""

    def __init__(self, test):
        self.test = test
        leader, follower = pty.openpty()
        self.file = leader
        home = {"HOME": str(test.folder), "XDG_STATE_HOME": str(test.folder / "state"), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen([BIN, "repl"], cwd=test.folder, stdin=follower, stdout=follower, stderr=follower,
                                        env={**os.environ, **home}, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(follower)
        test.addCleanup(self.close)
        self.read("> ")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.file)

    def read(self, until, seconds=120):
        """What is shown until these characters; without the terminal's own commands."""
        shown, end = "", time.monotonic() + seconds
        while until not in shown:
            self.test.assertLess(time.monotonic(), end, f"no {until!r} in {shown!r}")
            if select.select([self.file], [], [], 0.2)[0]:
                try:
                    shown += os.read(self.file, 65536).decode()
                except OSError:  # the program has ended
                    break
            shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()=>][0B]?|\r", "", shown)
        return shown

    def type(self, keys, until):
        os.write(self.file, keys.encode())
        return self.read(until)


class Repl(ProgramCase):
    def test_a_pipe(self):
        done = self.call("repl", stdin="=1+1\nx = 3\nfor i = 1, 2 do\nx = x + i\nend\nx, 'a'\nmw.nix\nerror { }\nlocal\n"
                                       "local t = nil + 1\n=x\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "2\n6\ta\n6\n")
        self.assertIn("error: repl:1: there is no mw.nix", done.stderr)  # as of a script
        self.assertEqual(done.stderr.count("error: "), 3)
        self.assertEqual(self.call("repl", stdin="").returncode, 0)

    def test_a_run_by_a_pipe(self):
        done = self.call("repl", stdin=f"r = {EXPERIMENT.replace(chr(10), ' ') % 3}\n#r.losses\n")
        self.assertTrue(done.stdout.endswith("3\n"), done.stdout + done.stderr)

    def test_help(self):
        """What help(x) says is what the annotations say, in the words of the options."""
        types = self.call("lua-types").stdout

        def said(*lines):
            done = self.call("repl", stdin="\n".join(lines) + "\n")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("error", done.stderr)
            return " ".join(done.stdout.split())

        about = lambda owner, key: " ".join(re.search(rf"(?m)^---@class meshwright\.{owner}\b[^\n]*\n(?:---@field.*\n)*?"
                                                      rf"---@field {key}\?? \S+ (.*)$", types)[1].split())[-40:]
        shown = said("help(mw.llama)")
        self.assertIn("mw.llama(options)", shown)
        for key in ("layers", "rope_theta", "norm_eps"):
            self.assertIn(about("llama", key), shown)
        self.assertEqual(said("m = mw.llama", "help(m)"), shown)
        self.assertEqual(said('help "mw.llama"'), shown)
        self.assertEqual(said('help "llama"'), shown)
        self.assertTrue(said("help(mw.train)").startswith("mw.train(experiment) "))
        self.assertIn('help "Experiment"', said("help(mw.train)"))
        self.assertIn("mw.microbatch.fit(", said("help(mw.microbatch.fit)"))
        # A plugin, and what it has made, by their own value or name.
        shown = said('tp = mw.plugins("tp")', "help(tp)")
        self.assertIn(about(r"plugin\.tp", "ways"), shown)
        self.assertEqual(said('tp = mw.plugins("tp")', "help(tp(2))"), shown)
        self.assertEqual(said('help "tp"'), shown)
        # Keys: of one table, or of all that have the name.
        self.assertIn(about("llama", "layers"), said('help "llama.layers"'))
        self.assertNotIn("gpt.layers", said('help "llama.layers"'))
        shown = said('help "layers"')
        for owner in ("llama", "gpt", "moe"):
            self.assertIn(f"{owner}.layers", shown)
        self.assertIn(about("Experiment", "timeout"), said('help "timeout"'))
        self.assertIn(about("Experiment", "steps"), said('help "Experiment"'))
        # What a verb has returned: its fields.
        shown = said(f"r = {EXPERIMENT.replace(chr(10), ' ') % 2}", "help(r)")
        self.assertIn(about("TrainResult", "tokens_per_second"), shown)
        shown = said("help()")
        for name in ("mw.train", "mw.llama", "tp"):
            self.assertIn(name, shown)

    def test_help_of_everything(self):
        """Each function and class of the annotations has its text, and none is shown empty."""
        types = self.call("lua-types").stdout
        functions = re.findall(r"(?m)^function (mw\.[\w.]+)\(", types)
        self.assertGreater(len(functions), 30)
        done = self.call("repl", stdin="".join(f'help "{name}"\nprint "====="\n' for name in functions))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        texts = done.stdout.split("=====\n")[:-1]
        self.assertEqual(len(texts), len(functions))
        for name, text in zip(functions, texts):
            self.assertTrue(text.startswith(f"{name}("), (name, text))
            self.assertGreater(len(text.splitlines()), 1, text)
            self.assertLessEqual(max(map(len, text.splitlines())), 100, text)

    def test_help_of_what_is_not_there(self):
        for asked, hint in (('help "laters"', "layers"), ('help "mw.trian"', "train"), ("help(nil)", "between quotes"),
                            ("help(3)", "between quotes"), ('help "qqqqqqqqqq"', "help()")):
            with self.subTest(asked):
                done = self.call("repl", stdin=asked + "\n")
                self.assertIn("help: ", done.stderr)
                self.assertIn(hint, done.stderr)

    def test_completion(self):
        prompt = Terminal(self)
        self.assertIn("12", prompt.type("=3*4\n", "12"))
        self.assertIn("mw.verify", prompt.type("mw.ver\t", "verify"))
        prompt.type("\x03", "> ")
        prompt.type('tensor = mw.plugins("tp")\n', "> ")
        self.assertIn("ways", prompt.type("tensor { wa\t", "ways"))  # of the registry
        prompt.type("\x03", "> ")
        self.assertIn("layers", prompt.type("mw.llama { hidden = 8, lay\t", "layers"))
        prompt.type("\x03", "> ")
        self.assertIn("optimizer", prompt.type("mw.train { model = mw.llama { layers = 2 }, optim\t", "optimizer"))
        prompt.type("\x03", "> ")
        shown = prompt.type("mw.mi\t\t", "microbatch")
        self.assertIn("microbatch", shown)
        prompt.type("\x03", "> ")
        many = prompt.type("mw.s\t\t", "synthetic")  # several: listed
        for name in ("schedule", "sgd", "strategy"):
            self.assertIn(name, many)

    def test_the_keys_that_end(self):
        prompt = Terminal(self)
        prompt.type("x = 5 +\n", ">> ")
        prompt.type("\x03", "> ")  # what was begun is forgotten
        self.assertIn("8", prompt.type("=3+5\n", "8"))
        prompt.type("half a line\x03", "> ")
        os.write(prompt.file, f"r = {EXPERIMENT.replace(chr(10), ' ') % 1000000}\n".encode())
        prompt.read("/1000000")
        prompt.type("\x03", "> ")  # ends the run, not the prompt
        prompt.type("=r.status\n", "interrupted\n> ")  # keys before the prompt are the run's
        os.write(prompt.file, b"\x04")
        self.assertEqual(prompt.process.wait(timeout=300), 0)

    def test_history(self):
        prompt = Terminal(self)
        prompt.type("=11*11\n", "121\n> ")  # keys before the prompt are the running statement's
        os.write(prompt.file, b"\x04")
        prompt.process.wait(timeout=300)
        kept = self.folder / "state/meshwright/history"
        self.assertIn("11*11", kept.read_text().replace("\\052", "*"))
        self.assertEqual(kept.stat().st_mode & 0o077, 0)
        prompt = Terminal(self)
        self.assertIn("121", prompt.type("\x1b[A\n", "121"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
