"""What README.md and the pages of docs/ show: their commands, code blocks and outputs, for the
tests that hold them to be true.

A command is `./meshwright …`: a line of a block of shell, or a code span. "(exit 3)" behind it on
its line says how it ends. A block of the language `console` has commands behind "$ " and, below
each, lines of what it prints, "[…]" for lines left out.
"""
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest

import loaded
import mpi_folder
from loaded import BIN

SOURCE = pathlib.Path(os.environ["MESHWRIGHT_SOURCE"])
FEW = 2  # steps of a run
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A page whose commands build on one another: test_page_tutorial.py gives them in order.
WALK = "docs/tutorial.md"
# Done by the launcher, which would build, test or install.
LAUNCHER_ONLY = {"test", "build", "docs", "release", "format", "lint", "clean"}
# Commands that another test gives as they stand, and looks at more closely.
ELSEWHERE = {"run scripts/long_context.lua": "test_long_context.py", "run scripts/zero_memory.lua": "test_zero_memory.py",
             "run scripts/compare.lua": "test_compare.py", "run scripts/ablations/microbatch.lua": "test_microbatch.py",
             "plan scripts/published/deepseek-v3.lua": "test_published.py", "plan scripts/pairs.lua": "test_published.py",
             "run scripts/published/llama3-goodput.lua": "test_goodput.py",
             "bench prediction --json | bench/chart_prediction.py > docs/pictures/prediction.svg": "test_fit_prediction.py",
             "runs show runs/account.h5 --where": "test_account.py",
             "calibrate": "test_calibrate.py"}  # a minute of a machine that does nothing else
ELSEWHERE |= {f"run {path.relative_to(SOURCE)}": "test_ablations.py" for folder in ("ablations", "pitfalls")
              for path in (SOURCE / "scripts" / folder).glob("*.lua")
              if path.stem not in ("microbatch", "mixes")}


def pages():
    """Path below the source folder -> text."""
    paths = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]
    return {path.relative_to(SOURCE).as_posix(): path.read_text() for path in paths}


def blocks(text):
    """(language, text) of each code block, in order."""
    return re.findall(BLOCK, text)


def parts(text):
    """(heading, text) of what stands below each heading of the second level; "" for what stands above the first."""
    hidden = BLOCK.sub(lambda block: block[0].replace("\n#", "\n\0#"), text)  # lines of code that begin as headings do
    pieces = [piece.replace("\0", "") for piece in re.split(r"(?m)^## (.+)$", hidden)]
    return list(zip(["", *pieces[1::2]], pieces[::2]))


def part(page, heading):
    """What stands below that heading of the second level, on the page docs/`page`.md."""
    return dict(parts((SOURCE / f"docs/{page}.md").read_text()))[heading]


def commands_in(text):
    """(arguments, exit code) of what a page says to type, but for what only the launcher does and
    for what has a place to fill in, as in SCRIPT."""
    for line in text.splitlines():
        code = re.search(r"\(exit (\d+)\)", line)
        typed = re.match(r"(?:\$ )?(\./meshwright .*)", line)
        for span in [typed[1]] if typed else re.findall(r"`(\./meshwright [^`]*)`", line):
            arguments = shlex.split(span, comments=True)[1:]
            if arguments and arguments[0] not in LAUNCHER_ONLY and not any(re.search(r"\b[A-Z]{4,}\b", a) for a in arguments):
                yield arguments, int(code[1]) if code else 0


def commands(*verbs):
    """Those of these verbs on all pages, each once: arguments -> (exit code, page)."""
    found = {}
    for page, text in pages().items():
        for arguments, code in commands_in(text) if page != WALK else []:
            if arguments[0] in verbs:
                found.setdefault(tuple(arguments), (code, page))
    return found


def stable(text):
    """Its lines without what differs from machine to machine or with the steps: times, rates, hashes,
    kernels' scratch and the peak with it, rules below column heads, blanks."""
    size = r"[\d.]+ (?:[KMGT]i)?B"
    lines = []
    for line in text.splitlines():
        line = re.sub(r"\b[\d.]+ (ns|us|ms|s)\b", "", line)
        line = re.sub(r"^plan [0-9a-f]{16}", "plan", line)
        line = re.sub(r"^ *speed .*?tokens/s, (.* on the hardware\)).*", r"speed \1", line)
        line = re.sub(r"done after \d+ of \d+ steps", "done", line)
        line = " ".join(line.split())
        line = re.sub(rf"^((?:stages? [\d to]+ )?(?:{size} ){{5}}){size} {size}", r"\1", line)
        line = re.sub(rf"^(memory, a rank's peak) {size} {size}$", r"\1", line)
        if line and line != "[…]" and not re.match(r"loss |[- ]+$", line):
            lines.append(line)
    return lines


def outputs(walk=False):
    """(page, command, lines printed) of all blocks of the language console: of the walk, or of all other pages."""
    for page, text in ((page, text) for page, text in pages().items() if (page == WALK) == walk):
        for language, block in blocks(text):
            if language == "console":
                for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                    typed, _, printed = part.partition("\n")
                    yield page, typed, printed


class PageCase(unittest.TestCase):
    """Commands are given in a folder of the test's own, which has the repository's scripts."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name in ("scripts", ".deps"):
            (self.folder / name).symlink_to(SOURCE / name)

    def call(self, arguments, steps=FEW, whole=False):
        """With that many steps, and short sequences unless `whole`; but for what the command says itself,
        and where it is about memory, which sizes decide. GPT-3's mix is searched for a part of it."""
        arguments = list(arguments)
        if arguments[0] in ("run", "verify", "chaos") and arguments[1].endswith(".lua"):
            script, said = (self.folder / arguments[1]).read_text(), " ".join(arguments)
            has = re.search(r"\bsteps *= *(\d+)", script)
            if "steps" not in said and has and int(has[1]) > steps:
                arguments += ["--set", f"steps={steps}"]
            if not whole and re.search(r"sequence = \d{3,} \}", script) and not re.search(r"fit|memory|sequence|data", said):
                arguments += ["--set", "data.sequence=32"]
        if arguments[:2] == ["search", "scripts/search.lua"]:
            arguments += ["--set", "batch=32", "--set", "model.layers=16"]
        return loaded.run([BIN, *arguments], cwd=self.folder, stdin=subprocess.DEVNULL, text=True, timeout=600)

    def give(self, *verbs, least):
        """Gives all commands of these verbs, verb by verb; each must end as its page says."""
        found = {arguments: said for verb in verbs for arguments, said in commands(verb).items()}
        self.assertGreaterEqual(len(found), least, "commands are not found on the pages any more")
        for arguments, (code, page) in found.items():
            if (elsewhere := ELSEWHERE.get(" ".join(arguments))) is not None:
                self.assertIn(pathlib.Path(arguments[1]).stem, (SOURCE / "tests/cli" / elsewhere).read_text())
                continue
            with self.subTest(" ".join(arguments), page=page):
                done = self.call(arguments)
                self.assertEqual(done.returncode, code, done.stdout[-3000:] + done.stderr[-3000:])
