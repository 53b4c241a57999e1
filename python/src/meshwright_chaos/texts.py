"""Texts of others, fit for a terminal."""

from __future__ import annotations

import re

# What commands a terminal: control characters but \n and \t, and those that turn the direction.
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def readable(text: str) -> str:
    """The text, fit for a terminal, whoever wrote it."""
    return CONTROLS.sub(lambda one: ascii(one[0])[1:-1], text)


def quoted(path: object) -> str:
    """As a script has the text."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
