"""A description of a cluster or a stack while it is made, and the Lua that mw.cluster and mw.stack
read of it: key by key, with the source of what was fitted above it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from meshwright_calibrate.texts import number, wrapped

WIDEST = 100  # columns


@dataclasses.dataclass
class Description:
    """What it has, and what its file says of its numbers."""

    base: str = ""  # the name of what it began as
    table: dict[str, Any] = dataclasses.field(default_factory=dict)
    sources: dict[str, str] = dataclasses.field(default_factory=dict)  # by key: what fitted it
    unknown: list[str] = dataclasses.field(default_factory=list)  # sentences: what nothing tells

    def text(self, head: list[str]) -> str:
        """The file, with these sentences as its first comment."""
        comments = "".join(comment(sentence, "") for sentence in head)
        return f"{comments}return {self._table(self.table, '', '')}\n"

    def _table(self, table: dict[str, Any], path: str, indent: str) -> str:
        keys = [key for key in table if key not in ("name", "kind", "changed") and key[0] != "$"]
        keys = ["name"] * ("name" in table) + keys
        entries = (self._entry(key, table[key], path, indent + "  ") for key in keys)
        return f"{{\n{''.join(entries)}{indent}}}"

    def _entry(self, key: str, value: Any, path: str, indent: str) -> str:
        full = f"{path}.{key}" if path else key
        if key == "curves":
            text = self._curves(value, full, indent)
        elif isinstance(value, dict) and value:
            text = self._table(value, full, indent)
        else:
            text = list_text(value, indent) if isinstance(value, list) else value_text(value)
        return f"{self._source(full, indent)}{indent}{key} = {text},\n"

    def _curves(self, curves: list[dict[str, Any]], path: str, indent: str) -> str:
        text, within = "{\n", indent + "    "
        for k, curve in enumerate(curves, 1):
            text += self._source(f"{path}[{k}]", indent + "  ") + f"{indent}  {{\n"
            for key, value in curve.items():
                said = list_text(value, within) if key == "points" else value_text(value)
                text += f"{within}{key} = {said},\n"
            text += f"{indent}  }},\n"
        return f"{text}{indent}}}"

    def _source(self, key: str, indent: str) -> str:
        return comment(self.sources[key], indent) if key in self.sources else ""


def comment(text: str, indent: str) -> str:
    """A comment of Lua, in lines."""
    begin = f"{indent}-- "
    return f"{begin}{wrapped(text, WIDEST - len(begin), begin)}\n"


def value_text(value: Any) -> str:
    """A value in Lua: rates as 312e9, sizes in full, seconds in few digits."""
    if isinstance(value, list):
        return f"{{{','.join(f' {value_text(item)}' for item in value)} }}"
    if isinstance(value, dict):
        entries = (f" {key} = {value_text(item)}" for key, item in value.items() if key[0] != "$")
        return f"{{{','.join(entries)} }}"
    if not isinstance(value, float):
        return json.dumps(value, ensure_ascii=False)
    billions = f"{value / 1e9:.6g}"
    if 1e9 <= value < 1e15 and "e" not in billions and float(f"{billions}e9") == value:
        return f"{billions}e9"
    return f"{value:.0f}" if value == value // 1 and abs(value) < 1e15 else number(value)


def list_text(items: list[Any], indent: str) -> str:
    """A list over as many lines as it takes: points of curves, tiles."""
    whole = value_text(items)
    if len(indent) + len(whole) + 24 < WIDEST:
        return whole
    lines = [""]
    for item in items:
        one = f" {value_text(item)},"
        if lines[-1] and len(indent) + 2 + len(lines[-1]) + len(one) > WIDEST:
            lines.append("")
        lines[-1] += one
    return "\n".join(["{", *(f"{indent} {line}" for line in lines), f"{indent}}}"])
