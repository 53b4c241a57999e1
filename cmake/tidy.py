"""Runs clang-tidy on our sources, two at a time, skipping those that passed before unchanged.

Usage, from the repository's root: tidy.py CACHE [FILE…]. Exit status 1 if anything was found.
A source's state is the content of the file, of our own headers that it includes (as the release
build's dependency log has them), of .clang-tidy and of the pinned versions. CACHE remembers the
states that passed, for all clones: a file that includes torch takes clang-tidy about 15 s.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path.cwd()
BUILD = ROOT / "build-lint"
PINS = [ROOT / ".clang-tidy", ROOT / "cmake/deps.txt"]


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


def state_of(source, headers):
    digest = hashlib.sha256()
    for path in [*PINS, source, *sorted(headers)]:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def tidy(source, stamp):
    if stamp.exists():
        return ""
    command = ["clang-tidy", "--quiet", "-p", str(BUILD), str(source)]
    run = subprocess.run(command, capture_output=True, text=True)
    # On stderr there are only counts of warnings in other people's headers.
    text = run.stdout + "".join(
        line for line in run.stderr.splitlines(True) if not re.match(r"\d+ warnings?", line))
    if run.returncode == 0 and not run.stdout.strip():
        stamp.touch()
        return ""
    return text or f"clang-tidy failed on {source}\n"


def main(cache, names):
    cache.mkdir(parents=True, exist_ok=True)
    headers = own_headers()
    work = {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        source = pathlib.Path(entry["file"])
        if source.is_relative_to(BUILD) or (names and str(source.relative_to(ROOT)) not in names):
            continue
        work[source] = cache / state_of(source, headers.get(source, []))
    unknown = set(names) - {str(source.relative_to(ROOT)) for source in work}
    if unknown:
        sys.exit(f"no build target compiles {', '.join(sorted(unknown))}")
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for text in pool.map(tidy, work.keys(), work.values()):
            bad += bool(text)
            sys.stdout.write(text)
            sys.stdout.flush()
    print(f"clang-tidy: {len(work)} files, {bad} with findings")
    return 1 if bad else 0


sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
