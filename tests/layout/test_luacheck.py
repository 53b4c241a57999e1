# label: unit
"""luacheck finds nothing in the project's Lua: the library, scripts, examples, and templates as
they are filled in."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
FOLDERS = "lua scripts examples".split()


def checked(folder, *names):
    """The exit code and what luacheck says of files below a folder, by the project's rules."""
    done = subprocess.run(["luacheck", "--no-color", "--no-cache", "--config", SOURCE / ".luacheckrc", *names],
                          cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@unittest.skipUnless(shutil.which("luacheck"), "luacheck is not installed (the package lua-check)")
class Luacheck(unittest.TestCase):
    def test_our_own(self):
        code, said = checked(SOURCE, *FOLDERS)
        self.assertEqual(code, 0, said)
        self.assertIn("scripts/quickstart.lua", said)

    def test_templates(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for path in (SOURCE / "kit/templates").rglob("*.lua"):
                copy = folder / path.relative_to(SOURCE / "kit/templates")
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(path.read_text().replace("@NAME@", "my_own"))
            self.assertGreater(len(list(folder.rglob("*.lua"))), 3)
            code, said = checked(folder, ".")
            self.assertEqual(code, 0, said)

    def test_what_is_wrong_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "a.lua").write_text("local unused = 1\nmisspelt = 2\n")
            code, said = checked(folder, ".")
            self.assertNotEqual(code, 0)
            self.assertIn("unused variable", said)
            self.assertIn("misspelt", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
