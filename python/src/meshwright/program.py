"""Finds the program, calls it, and turns what it prints into results or an exception."""

from __future__ import annotations

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any, Union

from meshwright.errors import MeshwrightError, Problem

PathLike = Union[str, "os.PathLike[str]"]
Settings = Mapping[str, Any]
VARIABLE = "MESHWRIGHT_BIN"
IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Words of Lua that cannot be written as a key without brackets.
RESERVED = frozenset(
    "and break do else elseif end false for function goto if in local nil not or repeat return "
    "then true until while".split()
)


def find_program(program: PathLike | None = None) -> str:
    """The whole path of the program: the argument, else the variable MESHWRIGHT_BIN, else
    `meshwright` on the PATH.

    The launcher of a clone (`./meshwright`) will do as well as the installed program. Raises
    MeshwrightError with the exit code 5 if there is none.
    """
    given = program if program is not None else os.environ.get(VARIABLE) or None
    found = shutil.which(os.fspath(given) if given is not None else "meshwright")
    if found is not None:
        # The program may be called in another folder than this one.
        return os.path.join(os.getcwd(), found)
    where = (
        "the argument `program`"
        if program is not None
        else f"the variable {VARIABLE}"
        if given is not None
        else "the PATH"
    )
    raise MeshwrightError(
        5,
        [
            Problem(
                "environment",
                "program.missing",
                "",
                f"no program {given if given is not None else 'meshwright'} was found by {where}",
                f"give its path as program=…, or set {VARIABLE} to it",
            )
        ],
    )


def lua_value(value: Any, *, inside: bool = False) -> str:
    """A Python value as an expression of Lua, for `--set`.

    Text is taken as it stands, as on the command line: a word ("full") or an expression ("{tp(2),
    dp(2)}"). `inside` a list or a dict it is a text and quoted. None is nil; lists, tuples and
    dicts are tables.
    """
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, os.PathLike):
        return quoted(os.fspath(value))
    if isinstance(value, str):
        return quoted(value) if inside else value
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(
                f"{lua_key(key)} = {lua_value(one, inside=True)}" for key, one in value.items()
            )
            + "}"
        )
    if isinstance(value, (list, tuple)):
        return "{" + ", ".join(lua_value(one, inside=True) for one in value) + "}"
    if hasattr(value, "item"):  # a number of numpy's
        return lua_value(value.item(), inside=inside)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "(0/0)"
        if math.isinf(value):
            return "math.huge" if value > 0 else "-math.huge"
        return repr(value)
    raise TypeError(f"{type(value).__name__} cannot be written as a value of Lua: {value!r}")


def quoted(text: str) -> str:
    """A text between quotes, as Lua reads it."""
    escaped = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\0": "\\x00"}
    return '"' + "".join(escaped.get(character, character) for character in text) + '"'


def lua_key(key: Any) -> str:
    """A key of a table: a name as it is, all else in brackets."""
    if isinstance(key, str) and IDENTIFIER.fullmatch(key) and key not in RESERVED:
        return key
    return f"[{lua_value(key, inside=True)}]"


def words_of(
    command: str,
    script: PathLike,
    settings: Settings | None,
    options: Iterable[str],
    arguments: Iterable[str],
) -> list[str]:
    """The words behind the program's name, with `--json`."""
    words = [command, os.fspath(script), "--json"]
    for key, value in (settings or {}).items():
        words += ["--set", f"{key}={lua_value(value)}"]
    words += [str(option) for option in options]
    given = [str(argument) for argument in arguments]
    return [*words, "--", *given] if given else words


def lines_of(text: str) -> list[dict[str, Any]]:
    """The objects of `--json`, one a line.

    A line that a killed program did not finish is left out.
    """
    found = []
    for line in text.split("\n"):
        try:
            value = json.loads(line) if line.strip() else None
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def results_of(exit_code: int, stdout: str, stderr: str) -> list[dict[str, Any]]:
    """The results among the lines.

    Raises MeshwrightError where the program has ended with another code than 0.
    """
    lines = lines_of(stdout)
    results = [line for line in lines if line.get("kind") != "error"]
    if exit_code == 0:
        return results
    problems = [Problem.of(line) for line in lines if line.get("kind") == "error"]
    if not problems:
        reasons = [str(result["reason"]) for result in results if result.get("reason")]
        problems = [Problem("run", "", "", reason) for reason in reasons]
    if not problems and exit_code < 0:
        problems = [Problem("run", "", "", f"the program was ended by signal {-exit_code}")]
    raise MeshwrightError(exit_code, problems, results=results, stderr=stderr)


def call(
    words: list[str],
    *,
    program: PathLike | None = None,
    cwd: PathLike | None = None,
    timeout: float | None = None,
) -> list[dict[str, Any]]:
    """Calls the program and returns its results, line by line.

    Raises MeshwrightError as results_of does, and subprocess.TimeoutExpired after `timeout`
    seconds.
    """
    done = subprocess.run(
        [find_program(program), *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=timeout,
    )
    return results_of(done.returncode, done.stdout, done.stderr)


def absolute(path: PathLike, cwd: PathLike | None) -> pathlib.Path:
    """A path that the program printed, seen from where it was called."""
    return pathlib.Path(cwd) / path if cwd is not None else pathlib.Path(path)
