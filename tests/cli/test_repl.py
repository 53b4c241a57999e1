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
        self.assertEqual(prompt.process.wait(timeout=60), 0)

    def test_history(self):
        prompt = Terminal(self)
        prompt.type("=11*11\n", "121\n> ")  # keys before the prompt are the running statement's
        os.write(prompt.file, b"\x04")
        prompt.process.wait(timeout=60)
        kept = self.folder / "state/meshwright/history"
        self.assertIn("11*11", kept.read_text().replace("\\052", "*"))
        self.assertEqual(kept.stat().st_mode & 0o077, 0)
        prompt = Terminal(self)
        self.assertIn("121", prompt.type("\x1b[A\n", "121"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
