# label: parity
"""Random mixes of strategies, a script's own among them. Each is verified: it equals one rank, or
is refused before ranks start.

A failure prints its seed, number and script. MESHWRIGHT_MIXES="SEED COUNT" tries others, with
`--label matrix`; one of them alone is `MESHWRIGHT_MIXES="SEED 1 NUMBER"`."""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

from cases import BIN, ProgramCase, matrix
from random_mixes import HEAD, mix

BOUND = 1e-10
AT_ONCE = 25  # cases of a process
# Words of torch, of the standard library and of a failed assertion do not tell a user what to do.
FOREIGN = re.compile(r"sizes? (of|mismatch|don)|\btensor [ab]\b|INTERNAL|ASSERT|c10|aten|std::|vector::|map::at|Expected|"
                     r"out of range|exception", re.IGNORECASE)

RECORD = re.compile("\x1d(\\d+)\x1f([^\x1e]*)\x1e")


def tried(seed, numbers):
    """What became of each case: number -> fields of its lines, in order."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mixes.lua")
        with open(path, "w") as file:
            file.write(HEAD + "".join(mix(seed, n) for n in numbers))
        try:
            done = subprocess.run([BIN, "run", path], cwd=folder, capture_output=True, text=True,
                                  timeout=120 + 30 * len(numbers))
            output, told = done.stdout, done.stderr
        except subprocess.TimeoutExpired as expired:
            output, told = (expired.stdout or b"").decode(), "hangs"
    found = {}
    for number, rest in RECORD.findall(output):
        found.setdefault(int(number), []).append(rest.split("\x1f"))
    return found, told


def wrong(lines, told):
    """Why a case's lines are none of an equal or a refused plan; None: they are one."""
    if not lines:
        return "was not begun: " + told[-2000:]
    ends = lines[1:]
    if not ends:
        return "ended its process: " + told[-2000:]
    if ends[0][0] in ("options", "plan"):
        told_badly = [end for end in ends if len(end) < 3 or FOREIGN.search(end[2]) or end[1].startswith("plugin.")
                      or not end[2].rpartition(" -- ")[2]]
        return f"is refused in foreign words: {told_badly}" if told_badly else None
    if ends[0][0] != "equal":
        return f"is {ends[0]}"
    return None if float(ends[0][1]) <= BOUND else f"is off by {ends[0][1]}: {ends[0][2]}"


class RandomMixes(ProgramCase):
    def check(self, seed, numbers, least_equal):
        """Each case, two processes at a time; a share of them at least must run."""
        began, equal, refused = time.monotonic(), 0, {}
        parts = [numbers[i:i + AT_ONCE] for i in range(0, len(numbers), AT_ONCE)]
        failures = []

        def take(part):
            found, told = tried(seed, part)
            ended = [n for n in part if len(found.get(n, [])) > 1]
            rest = part[len(ended) + 1:]  # behind a case that ended the process
            return [(n, found.get(n, []), told) for n in part[:len(part) - len(rest)]] + (take(rest) if rest else [])

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for results in pool.map(take, parts):
                for number, lines, told in results:
                    why = wrong(lines, told)
                    if why:
                        failures.append(f"seed {seed} number {number} {why}\n{mix(seed, number)}")
                    elif lines[1][0] == "equal":
                        equal += 1
                    else:
                        refused[lines[1][1]] = refused.get(lines[1][1], 0) + 1
        print(f"seed {seed}: {len(numbers)} mixes in {time.monotonic() - began:.0f} s, {equal} equal, "
              f"{len(failures)} wrong, refused: {refused}")
        for failure in failures:
            print(failure)
        self.assertEqual(len(failures), 0, "mixes are wrong: see above")
        self.assertGreaterEqual(equal, least_equal * len(numbers))

    def test_some_mixes(self):
        self.check(1, list(range(150)), 0.25)

    @matrix
    def test_a_thousand_mixes(self):
        seed, count, *first = (int(word) for word in os.environ.get("MESHWRIGHT_MIXES", "2 1000").split())
        begin = first[0] if first else 0
        self.check(seed, list(range(begin, begin + count)), 0 if first else 0.25)


if __name__ == "__main__":
    sys.exit(unittest.main())
