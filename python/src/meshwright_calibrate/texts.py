"""Words, numbers and tables as the program's own texts have them."""

from __future__ import annotations

import textwrap


def plural(count: int, noun: str) -> str:
    """1 -> "1 row", 3 -> "3 rows"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number(value: float) -> str:
    """The shortest text that reads back as the value: 0.1, 3, 1e-08."""
    return repr(float(value)).removesuffix(".0")


def size(count: float) -> str:
    """1048576 -> "1 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if count < 1023.5 or unit == "EiB":
            break
        count /= 1024
    digits = f"{count:.{2 if count < 9.995 else 1 if count < 99.95 else 0}f}"
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {unit}"


def duration(seconds: float) -> str:
    """0.0123 -> "12.3 ms"."""
    if seconds >= 1:
        return f"{seconds:.0f} s" if seconds >= 999.5 else f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def wrapped(text: str, width: int, before: str) -> str:
    """The text in lines of that width, all but the first of which begin with `before`."""
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return f"\n{before}".join(lines)


def table(rows: list[list[str]], left: int) -> str:
    """A head, a rule and rows; columns from number `left` on stand to the right."""
    width = max(map(len, rows))
    rows = [row + [""] * (width - len(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    rows.insert(1, ["-" * each for each in widths])
    text = ""
    for row in rows:
        cells = [
            c.ljust(w) if k < left else c.rjust(w) for k, (c, w) in enumerate(zip(row, widths))
        ]
        text += f"  {'  '.join(cells)}".rstrip() + "\n"
    return text
