"""Runs clang-tidy on our sources, and compiles each apart, skipping what passed before unchanged.

Usage, from the repository's root: tidy.py CACHE [FILE…]. Exit status 1 if anything was found.
clang-tidy reads files as they are compiled, about twenty of a folder together: these cost little
more than one, nearly all of it being ATen's headers. That hides an include which only a neighbour
has, so each file is compiled apart too, without making code, with the foreign headers precompiled.
A state is the content of the files, of our own headers that they include (as the release build's
dependency log has them), of .clang-tidy and of the pinned versions. CACHE remembers the states
that passed, for all clones.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

from jobs import jobs as how_many

ROOT = pathlib.Path.cwd()
BUILD = ROOT / "build-lint"
PINS = [ROOT / ".clang-tidy", ROOT / "cmake/deps.txt", ROOT / "cmake/tidy.py", ROOT / "cmake/pch.h"]


def own_headers():
    """Source -> our headers that it, or a file compiled together with it, includes."""
    log = subprocess.run(["ninja", "-C", "build", "-t", "deps"], capture_output=True, text=True)
    headers = {}
    for entry in log.stdout.split("\n\n"):
        paths = [(ROOT / "build" / line.strip()).resolve() for line in entry.splitlines()[1:]]
        ours = [p for p in paths if p.is_relative_to(ROOT) and not p.is_relative_to(ROOT / ".deps")]
        used = [path for path in ours if path.suffix == ".h"]
        for source in ours:
            if source.suffix == ".cpp":
                headers.setdefault(source, set()).update(used)
    return headers


def state_of(kind, sources, headers):
    digest = hashlib.sha256(kind.encode())
    for path in sorted({*PINS, *sources, *(h for s in sources for h in headers.get(s, []))}):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def sources_of(unit):
    """The files of ours that a compiled file is: itself, or those that it includes."""
    if not unit.is_relative_to(BUILD):
        return [unit]
    names = re.findall(r'#include "(.+\.cpp)"', unit.read_text())
    return [(unit.parent / name).resolve() for name in names]


def arguments_of(entry):
    """What clang needs of a compile command: definitions, folders, the language's version."""
    found, words = [], shlex.split(entry["command"])
    for word, following in zip(words, words[1:]):
        if word.startswith(("-D", "-I", "-std=", "-W", "-fPIC")):
            found.append(word)
        elif word == "-isystem":
            found += [word, following]
    return found


def run(command, stamp, name):
    if stamp.exists():
        return ""
    done = subprocess.run(command, capture_output=True, text=True, cwd=BUILD)
    # clang-tidy's stderr has only counts of warnings in other people's headers.
    text = done.stdout + "".join(
        line for line in done.stderr.splitlines(True) if not re.match(r"\d+ warnings?", line))
    if done.returncode == 0 and not text.strip():
        stamp.touch()
        return ""
    return text or f"{command[0]} failed on {name}\n"


def precompiled(arguments):
    """The option that brings foreign headers, precompiled once for each set of arguments. What is
    compiled without ATen's headers has none."""
    if not any("/torch/" in word for word in arguments):
        return []
    made = BUILD / f"{hashlib.sha256(' '.join(arguments).encode()).hexdigest()[:16]}.pch"
    if not made.exists():
        command = ["clang++", *arguments, "-w", "-x", "c++-header", str(ROOT / "cmake/pch.h"),
                   "-o", str(made)]
        subprocess.run(command, check=True)
    return ["-include-pch", str(made)]


def main(cache, names):
    cache.mkdir(parents=True, exist_ok=True)
    headers = own_headers()
    work, files = [], set()
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        unit = pathlib.Path(entry["file"])
        sources = [s for s in sources_of(unit)
                   if s.is_relative_to(ROOT) and not s.is_relative_to(BUILD)]
        wanted = [s for s in sources if not names or str(s.relative_to(ROOT)) in names]
        if not wanted:
            continue
        arguments = arguments_of(entry)
        heavy = [a for a in arguments if not a.startswith("-DMESHWRIGHT")]
        stamp = cache / state_of("tidy", sources, headers)
        # As in a build, foreign headers come first: c10's CHECK else hides Catch2's.
        foreign = [] if stamp.exists() else precompiled(heavy)
        work.append((["clang-tidy", "--quiet", "-p", str(BUILD),
                      *(f"--extra-arg={word}" for word in foreign), str(unit)], stamp, unit.name))
        for source in wanted:
            stamp = cache / state_of("apart", [source], headers)
            if source in files or stamp.exists():
                files.add(source)
                continue
            files.add(source)
            work.append((["clang++", *arguments, *precompiled(heavy), "-fsyntax-only",
                          "-Wno-everything", str(source)], stamp,
                         str(source.relative_to(ROOT))))
    unknown = set(names) - {str(source.relative_to(ROOT)) for source in files}
    if unknown:
        sys.exit(f"no build target compiles {', '.join(sorted(unknown))}")
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(how_many()[0]) as pool:
        for text in pool.map(lambda job: run(*job), work):
            bad += bool(text)
            sys.stdout.write(text)
            sys.stdout.flush()
    print(f"clang-tidy: {len(files)} files, {bad} with findings")
    return 1 if bad else 0


sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
