"""The mixes that are drawn: in the order, by the names and in the columns that were asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from meshwright_called import Refused, nearest

# What rows can be ordered by beside the axes in which they differ.
FIELDS = ("ranks", "runs", "tokens_per_second", "step_seconds", "peak_bytes", "mfu", "loss")
MOST_DRAWN = 24
COUNTED = ("right", "predicted")


@dataclasses.dataclass
class Row:
    """A mix. `heading` says what it is ranked with, and is empty where all are ranked together."""

    facts: dict[str, Any]
    heading: str
    row: str = ""
    column: str = ""

    @property
    def counted(self) -> bool:
        """Whether it is ranked: it is right, or predicted to fit."""
        return self.facts["verdict"] in COUNTED

    @property
    def label(self) -> str:
        """Its name in the drawing, below its heading and beside those of other columns."""
        name = self.column or self.row
        return name if self.counted else f"{name} ({self.facts['verdict']})"

    @property
    def name(self) -> str:
        """Its name where it stands alone."""
        more = [self.heading] if self.heading else []
        if not self.counted:
            more.append(self.facts["verdict"])
        name = ", ".join(part for part in (self.row, self.column) if part)
        return f"{name} ({', '.join(more)})" if more else name

    def number(self, key: str) -> float | None:
        """A number of it; None where it is not known."""
        return self.facts.get(key)


@dataclasses.dataclass
class Rows:
    """All rows in the order of the headings, and which of them are drawn as bars."""

    rows: list[Row]
    drawn: list[Row]
    works: list[dict[str, str]]
    left_out: str  # which ones are drawn, where not all are
    said: str  # "measured", "predicted", or that there are both
    columns: list[str]  # the values of --columns, in their order
    columns_key: str

    @property
    def headings(self) -> list[str]:
        """Those of the rows, in their order."""
        return list(dict.fromkeys(row.heading for row in self.rows))


class Names:
    """The names that --names gives to mixes, values and axes."""

    def __init__(self, given: Iterable[str], known: Iterable[str]) -> None:
        known = sorted({name for name in known if name}, key=len, reverse=True)
        self._new: dict[str, str] = {}
        for text in given:
            old = next((name for name in known if text.startswith(f"{name}=")), None)
            if old is None:
                word = text.rpartition("=")[0]
                raise Refused(
                    "usage.value",
                    f'--names {text}: no mix, value or axis is called "{word}"'
                    if word
                    else f"--names {text}: it is not OLD=NEW",
                    nearest(word, reversed(known)) if word else "for example 'dp(4)=baseline'",
                )
            self._new[old] = text[len(old) + 1 :]

    def __getitem__(self, name: str) -> str:
        return self._new.get(name, name)

    def value(self, key: str, value: str) -> str:
        """A value in a name: a number stands with its key."""
        if value in self._new or not is_bare(value):
            return self[value]
        return f"{self[key] if key in self._new else key.rpartition('.')[2]}={value}"


def is_bare(value: str) -> bool:
    """Whether a value does not say of what it is."""
    return as_number(value) is not None or value in ("true", "false")


def as_number(text: str) -> float | None:
    """The number that a text is."""
    try:
        return float(text)
    except ValueError:
        return None


def headings_of(rows: list[dict], works: list[dict[str, str]]) -> list[str]:
    """What tells each row from those with which it is not ranked: of another work, or predicted
    where others were measured."""
    of_rows = [works[row["work"]] for row in rows]
    differing = [
        key
        for key in dict.fromkeys(key for work in of_rows for key in work)
        if len({work.get(key) for work in of_rows}) > 1
    ]
    both = len({row["predicted"] for row in rows}) > 1
    headings = []
    for row, work in zip(rows, of_rows):
        parts = [f"{key.removeprefix('model.')}={work[key]}" for key in differing if key in work]
        parts = parts[:2]  # a figure is narrow
        if both:
            parts.append("predicted" if row["predicted"] else "measured")
        headings.append(", ".join(parts))
    return headings


def axes_of(rows: list[dict], axes: list[str]) -> dict[str, list[str]]:
    """The values of each axis in which rows differ, in their order."""
    found = {}
    for axis in axes:
        values = list(dict.fromkeys(row["values"].get(axis, "") for row in rows))
        if all(as_number(value) is not None for value in values):
            values.sort(key=float)
        if len(values) > 1:
            found[axis] = values
    return found


def check_keys(option: str, keys: list[str], known: Iterable[str]) -> None:
    """Raises Refused for a key that there is not."""
    known = list(known)
    for key in keys:
        if key in known:
            continue
        if option == "--columns" and as_number(key) is not None:
            hint = "the width of the figures is --width, in inches"
        elif known:
            hint = nearest(key, known)
        else:
            hint = "the mixes differ in no key"
        raise Refused("usage.value", f'{option} {key}: the mixes do not differ in "{key}"', hint)


def name_rows(rows: list[Row], keys: list[str], column: str, names: Names) -> None:
    """Names rows by the values of the keys, and by their own names where no key is asked for."""
    known: dict[tuple[str, str, str], Row] = {}
    own = [(row.heading, row.facts["own_name"]) for row in rows]
    for row in rows:
        values = row.facts["values"]
        if keys or column:
            parts = [names.value(key, values[key]) for key in keys if values.get(key)]
            row.row = names[", ".join(dict.fromkeys(parts))]  # a plan may be called by its mix
        else:
            name = row.facts["own_name"]
            if own.count((row.heading, name)) > 1:
                name = row.facts["name"]
            row.row = names[name]
        if column:
            row.column = names.value(column, values.get(column, "-"))
        other = known.setdefault((row.heading, row.row, row.column), row)
        if other is row or not (keys or column):
            continue
        differ = [
            key
            for key in values
            if values[key] != other.facts["values"].get(key) and key not in (*keys, column)
        ]
        raise Refused(
            "usage.value",
            f"--{'rows' if keys else 'columns'}: {other.facts['name']} and {row.facts['name']} "
            f"would be one bar, called {row.name}",
            f"add {differ[0]} to --rows, or choose with --where"
            if differ
            else "choose one of them with --where",
        )


def sort_rows(rows: list[Row], keys: list[str], axes: dict[str, list[str]]) -> None:
    """Sorts by the keys; without them by speed, those that are not ranked last."""

    def speed(row: Row) -> tuple[bool, float]:
        return not row.counted, -(row.number("tokens_per_second") or 0)

    if not keys:
        fastest: dict[tuple[str, str], tuple[bool, float]] = {}
        for row in rows:
            place = row.heading, row.row
            fastest[place] = min(fastest.get(place, (True, 0)), speed(row))
        rows.sort(key=lambda row: (fastest[row.heading, row.row], speed(row)))
    for key in reversed(keys):
        name, down = key.lstrip("-"), key.startswith("-")

        def place(row: Row, name: str = name, down: bool = down) -> tuple[bool, float]:
            if name in axes:
                at = float(axes[name].index(row.facts["values"].get(name, "")))
            else:
                at = row.number(name)
            return at is None, 0 if at is None else -at if down else at

        rows.sort(key=place)


def rows_of(request: dict) -> Rows:
    """The rows of a request. Raises Refused for keys and names that there are not."""
    facts, asked, works = request["rows"], request["asked"], request["works"]
    axes = axes_of(facts, request["axes"])
    keys = [key for key in asked["rows"] if key]
    column = asked["columns"]
    check_keys("--rows", [key.lstrip("-") for key in keys], (*axes, *FIELDS))
    check_keys("--columns", [column] if column else [], axes)
    naming = [key.lstrip("-") for key in keys if key.lstrip("-") in axes]
    if column and not naming:
        naming = [key for key in axes if key != column]
    headings = headings_of(facts, works)
    known = [value for values in axes.values() for value in values]
    known += [name for row in facts for name in (row["name"], row["own_name"])]
    known += [part for heading in headings for part in (heading, *heading.split(", "))]
    names = Names(asked["names"], [*known, *axes])
    rows = [
        Row(row, names[", ".join(names[part] for part in heading.split(", "))])
        for row, heading in zip(facts, headings)
    ]
    order = list(dict.fromkeys(row.heading for row in rows))
    name_rows(rows, naming, column, names)
    sort_rows(rows, keys, axes)
    if column:
        places = list(dict.fromkeys((row.heading, row.row) for row in rows))
        values = [names.value(column, value) for value in axes[column]]
        rows.sort(key=lambda row: (places.index((row.heading, row.row)), values.index(row.column)))
    drawn, left_out = rows[:MOST_DRAWN], ""
    if len(rows) > MOST_DRAWN:
        left_out = (
            f"the {'first ' if keys else ''}{MOST_DRAWN}{'' if keys else ' fastest'} of {len(rows)}"
        )
    drawn.sort(key=lambda row: order.index(row.heading))
    predicted = sum(row["predicted"] for row in facts)
    return Rows(
        rows=rows,
        drawn=drawn,
        works=works,
        left_out=left_out,
        said="measured"
        if predicted == 0
        else "predicted"
        if predicted == len(facts)
        else "measured or predicted",
        columns=[names.value(column, value) for value in axes[column]] if column else [],
        columns_key=names[column],
    )
