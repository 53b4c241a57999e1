"""Texts for people, as the program writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What commands a terminal: control characters but \n and \t, and those that turn the direction.
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def readable(text: str) -> str:
    """The text, fit for a terminal, whoever wrote it."""
    return CONTROLS.sub(lambda one: ascii(one[0])[1:-1], text)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun[-2:] in ("ch", "ss") else "s")


def bytes_text(count: float) -> str:
    """64 MiB, 1.5 GiB."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(count) >= 1023.5 and len(units) > 1:
        count /= 1024
        del units[0]
    digits = 2 if abs(count) < 9.995 else 1 if abs(count) < 99.95 else 0
    number = f"{count:.{digits}f}"
    return f"{number.rstrip('0').rstrip('.') if digits else number} {units[0]}"


def table(rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    """The rows in columns below their header, the first of them; columns of numbers to the
    right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    text = ""
    for row in [rows[0], ["-" * width for width in widths], *rows[1:]]:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths))
        ]
        text += "  " + "  ".join(cells).rstrip() + "\n"
    return text
