"""What packages have in common that the program starts: `python PACKAGE REQUEST ANSWER SOCKET`, two
files of JSON and the number of an open socket, over which a package asks the program."""

from __future__ import annotations

import difflib
import functools
import json
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO


class Refused(Exception):
    """A request that cannot be met. docs/errors.md lists the codes."""

    def __init__(self, code: str, message: str, hint: str, *, stage: str = "options") -> None:
        super().__init__(message)
        self.problems = [{"stage": stage, "code": code, "message": message, "hint": hint}]

    @classmethod
    def of(cls, problems: list[dict[str, str]]) -> Refused:
        """One for several problems, as the program has them."""
        refused = cls("", "", "")
        refused.problems = problems
        return refused


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint for a word that is none of those known."""
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, known, 1)
    return f'did you mean "{near[0]}"?' if near else "there are: " + ", ".join(known[:24])


@functools.cache
def program() -> TextIO:
    """The program that has started this package."""
    return socket.socket(fileno=int(sys.argv[3])).makefile("rw", encoding="utf-8")


def ask(question: dict[str, Any]) -> Any:
    """The program's answer. Raises Refused."""
    program().write(json.dumps(question) + "\n")
    program().flush()
    answered = json.loads(program().readline() or "{}")
    if "problems" in answered:
        raise Refused.of(answered["problems"])
    return answered["answer"]


def answer(meet: Callable[[dict[str, Any]], dict[str, Any]], asked_by: str, packages: str) -> None:
    """Writes what `meet` makes of the request, or what is wrong with the request. `asked_by`: the
    option or command that needs these packages of Python."""
    asked, answered = sys.argv[1:3]
    with open(asked, encoding="utf-8") as file:
        request = json.load(file)
    try:
        result = meet(request)
    except ImportError as error:
        missing = Refused(
            "python.missing",
            f"{asked_by}: {sys.executable} cannot import {error.name}",
            f"{sys.executable} -m pip install {packages}, or set MESHWRIGHT_PYTHON to a Python "
            "that has what is missing",
            stage="environment",
        )
        result = {"problems": missing.problems}
    except Refused as refused:
        result = {"problems": refused.problems}
    with open(answered, "w", encoding="utf-8") as file:
        json.dump(result, file)
