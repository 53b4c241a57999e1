"""Unpacks the pinned members of the wheels.

Usage: unpack_wheels.py DEPS WHEELS TARGET KIND…   (KIND: wheel, wheel-cuda, keep …; see deps.txt)
"""

import fnmatch
import os
import pathlib
import platform
import sys
import time
import zipfile


def main(deps, wheels, target, *kinds):
    kinds += tuple(f"{kind}/{platform.machine()}" for kind in kinds)
    rows = [line.split() for line in open(deps) if line.strip() and line[0] != "#"]
    rows = [row for row in rows if row[0] in kinds]
    for name, file in [(row[1], row[4]) for row in rows if row[0].startswith("wheel")]:
        globs = [g for row in rows if not row[0].startswith("wheel") and row[1] == name for g in row[2:]]
        if not globs:
            continue
        with zipfile.ZipFile(pathlib.Path(wheels) / file) as archive:
            chosen = set()
            for pattern in globs:
                found = fnmatch.filter(archive.namelist(), pattern)
                if not found:
                    sys.exit(f"{file} has nothing that matches {pattern}")
                chosen.update(found)
            archive.extractall(target, sorted(chosen))
    # All of one second: g++ takes headers of one content and one time for one file (#pragma once),
    # so times that the unpacking spreads would make the text that it compiles differ by clone, and
    # a second clone would find nothing in the cache of compiled objects.
    now = int(time.time())
    for folder, _, files in os.walk(target):
        for file in files:
            os.utime(os.path.join(folder, file), (now, now))


main(*sys.argv[1:])
