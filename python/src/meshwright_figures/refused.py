"""What is wrong with a request, as the program says it to its user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Refused(Exception):
    """A request that cannot be met. docs/errors.md lists the codes."""

    def __init__(self, code: str, message: str, hint: str, *, environment: bool = False) -> None:
        super().__init__(message)
        self.facts = {
            "code": code,
            "message": message,
            "hint": hint,
            "environment": environment,
        }


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint for a word that is none of those known."""
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, known, 1)
    return f'did you mean "{near[0]}"?' if near else "there are: " + ", ".join(known[:24])
