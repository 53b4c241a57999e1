"""What packages have in common that the program starts: `python PACKAGE REQUEST ANSWER`, two files
of JSON."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any


class Refused(Exception):
    """A request that cannot be met. docs/errors.md lists the codes."""

    def __init__(self, code: str, message: str, hint: str, *, stage: str = "options") -> None:
        super().__init__(message)
        self.facts = {"stage": stage, "code": code, "message": message, "hint": hint}


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint for a word that is none of those known."""
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, known, 1)
    return f'did you mean "{near[0]}"?' if near else "there are: " + ", ".join(known[:24])


def answer(meet: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Writes what `meet` makes of the request, or what is wrong with the request."""
    asked, answered = sys.argv[1:]
    with open(asked, encoding="utf-8") as file:
        request = json.load(file)
    try:
        result = meet(request)
    except Refused as refused:
        result = {"error": refused.facts}
    with open(answered, "w", encoding="utf-8") as file:
        json.dump(result, file)
