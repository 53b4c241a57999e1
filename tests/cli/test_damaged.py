"""Run files that are damaged in any way: flipped bytes, cut off, parts missing. Whatever reads them
gives what it can or an error that names the file, and never dies of it."""
import collections
import pathlib
import random
import re
import shutil
import tempfile
import unittest

import h5py
import numpy as np

import loaded
import made_runs
from cases import BIN, ProgramCase

SEEDS = 80
EACH = 6  # damaged files that each command of one file is given
CODES = (0, 1, 2, 3)


def flip(data, chance):
    """Bytes here and there; most of them where HDF5 keeps what it knows of the objects."""
    for _ in range(chance.choice((1, 1, 4, 32))):
        at = chance.randrange(len(data) if chance.random() < 0.5 else min(len(data), 20000))
        data[at] ^= 1 << chance.randrange(8) if chance.random() < 0.5 else chance.randrange(1, 256)
    return data


def cut(data, chance):
    return data[:chance.randrange(len(data))]


def blank(data, chance):
    at, size = chance.randrange(len(data)), chance.choice((1, 8, 64, 512, 4096))
    data[at:at + size] = bytes([chance.choice((0, 255))]) * min(size, len(data) - at)
    return data


def without_a_part(path, chance):
    with h5py.File(path, "r+", locking=False) as f:
        names = []
        f.visit(names.append)
        for name in chance.sample(names, chance.choice((1, 2, 5))):
            if name in f:
                del f[name]


def with_other_shapes(path, chance):
    """A part of another type or shape than the program writes."""
    with h5py.File(path, "r+", locking=False) as f:
        names = []
        f.visititems(lambda name, thing: names.append(name) if isinstance(thing, h5py.Dataset) else None)
        name = chance.choice(names)
        del f[name]
        f.create_dataset(name, data=chance.choice(([[1, 2], [3, 4]], 7, "text", [1.5, float("nan")], np.bytes_(b"\xff\x00\xfe"))))
        for attribute in ("seed", "schema", "status"):
            if chance.random() < 0.2:
                f.attrs[attribute] = chance.choice(([1, 2, 3], "x" * 3000, -1))


def damaged(good, target, seed):
    chance = random.Random(seed)
    how = chance.choice((flip, flip, flip, flip, cut, blank, without_a_part, with_other_shapes))
    if how in (flip, cut, blank):
        target.write_bytes(how(bytearray(good.read_bytes()), chance))
    else:
        shutil.copy(good, target)
        how(target, chance)
    return target


class Damaged(ProgramCase):
    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.made.cleanup)
        folder = pathlib.Path(cls.made.name)
        made_runs.make(folder)
        goods = [folder / "runs/dp.h5", folder / "runs/stages.h5"]
        (folder / "bad").mkdir()
        cls.bad = [damaged(goods[seed % 2], folder / f"bad/{seed:03}.h5", seed) for seed in range(SEEDS)]

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.made.name)

    def survives(self, *arguments, codes=CODES):
        done = loaded.run([BIN, *map(str, arguments)], cwd=self.folder, timeout=600)
        if done.returncode not in codes or b"error inside the program" in done.stderr:
            self.fail(f"{arguments} ended with {done.returncode}; what it read is now in {self.kept(arguments)}:\n"
                      f"{done.stderr[-2000:].decode(errors='replace')}")
        return done

    def kept(self, arguments):
        """A folder that outlives the test, with copies of the damaged files that a command was given."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="meshwright-damaged-"))
        given = [self.folder / str(argument) for argument in arguments]
        if self.folder / "load.lua" in given:
            given.append(self.folder / "bad")
        for path in given:
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
            elif path.suffix == ".h5" and path.exists():
                shutil.copy(path, folder)
        return folder

    def test_all_at_once(self):
        self.survives("runs", "list", "bad", codes=(0,))
        self.survives("runs", "compare", "runs/dp.h5", "bad", codes=(0,))
        for table in ("steps", "memory", "communication", "summary"):
            self.survives("runs", "export", "bad", "--table", table, "-o", "out.csv")
        self.survives("report", "bad", "runs/dp.h5", "-o", "report.html", codes=(0,))

    def test_load(self):
        (self.folder / "load.lua").write_text("""\
local mw = require "meshwright"
local loaded, refused = 0, 0
for seed = 0, tonumber(arg[1]) - 1 do
  local file = ("bad/%03d.h5"):format(seed)
  local ok, why = pcall(mw.load, file)
  if not ok and not tostring(why):find(file, 1, true) then error(file .. ": " .. tostring(why)) end
  if ok then loaded = loaded + 1 else refused = refused + 1 end
end
print("came through", loaded, refused)
""")
        done = self.survives("run", "load.lua", "--", SEEDS, codes=(0,))
        said = re.search(rb"came through\s+(\d+)\s+(\d+)", done.stdout)
        self.assertIsNotNone(said, done.stdout[-2000:])
        for number in said.groups():
            self.assertGreater(int(number), SEEDS // 20, "loaded and refused: " + said[0].decode())

    def test_each(self):
        chance = random.Random(1)
        ends = collections.Counter()
        for path in chance.sample(self.bad, EACH):
            name = path.relative_to(self.folder)
            for command in (("runs", "show", name), ("runs", "tail", name), ("runs", "compare", "runs/dp.h5", name),
                            ("runs", "export", name), ("report", name, "-o", "one.html"),
                            ("trace", name, "-o", "trace.json"), ("trace", name, "--predicted", "--svg", "trace.svg")):
                with self.subTest(command=command):
                    done = self.survives(*command)
                    ends[done.returncode == 0] += 1
                    if done.returncode != 0:
                        self.assertIn(str(name).encode(), done.stderr)
        self.assertGreater(ends[True], 0, "no command could read any of the files")
        self.assertGreater(ends[False], 0, "no command refused any of the files")

    def test_without_steps(self):
        """A run file that lost /steps: comparing with it died by a segmentation fault."""
        broken = self.folder / "broken.h5"
        shutil.copy(self.folder / "runs/dp.h5", broken)
        with h5py.File(broken, "r+", locking=False) as f:
            del f["steps"]
        self.survives("runs", "compare", "runs/dp.h5", "broken.h5", codes=(0,))
        for command in (("runs", "show"), ("runs", "tail"), ("runs", "export"), ("trace",)):
            self.survives(*command, "broken.h5", *(("-o", "t.json") if command == ("trace",) else ()))


if __name__ == "__main__":
    unittest.main()
