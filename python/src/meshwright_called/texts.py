"""Words, numbers and tables as the program's own texts have them."""

from __future__ import annotations

from collections.abc import Sequence


def plural(count: int, noun: str) -> str:
    """1 -> "1 row", 3 -> "3 rows"."""
    return f"{count} {noun}" + ("" if count == 1 else "es" if noun[-2:] in ("ch", "ss") else "s")


def size(count: float) -> str:
    """1048576 -> "1 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if abs(count) < 1023.5 or unit == "EiB":
            break
        count /= 1024
    digits = f"{count:.{2 if abs(count) < 9.995 else 1 if abs(count) < 99.95 else 0}f}"
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {unit}"


def table(rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    """A head, which is the first row, a rule and the other rows. The columns with the numbers in
    `right` are aligned to the right. A row may lack its last columns."""
    width = max(map(len, rows))
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    text = ""
    for row in [rows[0], ["-" * each for each in widths], *rows[1:]]:
        cells = [
            cell.rjust(each) if at in right else cell.ljust(each)
            for at, (cell, each) in enumerate(zip(row, widths))
        ]
        text += f"  {'  '.join(cells)}".rstrip() + "\n"
    return text
