"""Numbers and lines of texts for people and of descriptions."""

from __future__ import annotations

import textwrap


def number(value: float) -> str:
    """The shortest text that reads back as the value: 0.1, 3, 1e-08."""
    return repr(float(value)).removesuffix(".0")


def duration(seconds: float) -> str:
    """0.0123 -> "12.3 ms"."""
    if seconds >= 1:
        return f"{seconds:.0f} s" if seconds >= 999.5 else f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def wrapped(text: str, width: int, before: str) -> str:
    """The text in lines of that width, all but the first of which begin with `before`."""
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return f"\n{before}".join(lines)
