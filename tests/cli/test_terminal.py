"""What others wrote reaches a terminal as text: names with escape sequences in run files and
scripts command nothing."""
import shutil

import h5py

import loaded
import made_runs
from cases import BIN, ProgramCase

# A title, a colour, the 8-bit forms of the same, a line of one's own, and text that turns around.
NAME = "evil\x1b]0;title\x07\x1b[31m\x9b31m\x9d0;t\x9c\nall: done\r\x7f\u202etxt"
COMMANDS = ("\x1b", "\x07", "\x9b", "\x9d", "\x9c", "\r", "\x7f", "\u202e")


class Terminal(ProgramCase):
    def setUp(self):
        super().setUp()
        made_runs.make(self.folder)
        for at, status in (("evil", "done"), ("evil2", "failed")):
            shutil.copy(self.folder / "runs/dp.h5", self.folder / f"runs/{at}.h5")
            with h5py.File(self.folder / f"runs/{at}.h5", "r+", locking=False) as f:
                made_runs.set_text(f, "status", status)
                for attribute in ("name", "reason", "host", "created"):
                    made_runs.set_text(f, attribute, NAME)

    def commands_nothing(self, *arguments):
        done = loaded.run([BIN, *arguments], cwd=self.folder, timeout=300)
        for text in (done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")):
            for command in COMMANDS:
                self.assertNotIn(command, text, (arguments, text))
            self.assertNotIn("\nall: done", text, arguments)
        return (done.stdout + done.stderr).decode()

    def test_names_of_runs(self):
        said = self.commands_nothing("runs", "list", "runs/evil.h5", "runs/evil2.h5")
        self.assertIn("evil\\x1b]0;title\\x07\\x1b[31m\\xc2\\x9b31m", said)
        self.assertIn("\\nall: done\\x0d\\x7f\\xe2\\x80\\xaetxt", said)
        for command in ("show", "tail"):
            self.assertIn("\\x1b", self.commands_nothing("runs", command, "runs/evil.h5"))
        self.commands_nothing("runs", "compare", "runs/evil.h5", "runs/evil2.h5", "runs/dp.h5")
        self.commands_nothing("runs", "list", "runs/evil.h5", "--json")
        self.commands_nothing("runs", "show", "runs/evil.h5", "--json")
        self.commands_nothing("trace", "runs/evil.h5", "-o", "trace.json")

    def test_names_of_a_script(self):
        for more in (r'e.name = "a\x1b[31m\xc2\x9b31m" e.steps = 1', r'e["a\x1b[31m\xc2\x9b"] = 1',
                     r'e.optimizer = { kind = "a\x1b[31m\xc2\x9b" }', r'e.log = "no\x1b[31m\xc2\x9b/\x07/"'):
            self.script("dp(2)", more)
            for command in ("run", "plan"):
                self.commands_nothing(command, "script.lua")
                self.commands_nothing(command, "script.lua", "--json")

    def test_a_key_with_the_byte_0(self):
        """It would be cut off there by whatever takes it for text of C."""
        self.script("dp(2)", r'e["steps\0more"] = 3')
        line = self.refused(2, "script.table", "run", "script.lua")
        self.assertIn(r'the key "steps\x00more"', line["message"])
        self.script("dp(2)", r'e.model = { kind = "llama", ["layers\0"] = 3 }')
        self.refused(2, "script.table model", "run", "script.lua")


if __name__ == "__main__":
    import unittest
    unittest.main()
