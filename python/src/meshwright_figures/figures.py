"""Makes the figures that the rows have data for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from meshwright_figures.rows import Row, Rows, rows_of

MOST_LINES = 8
GIB, MIB = 2.0**30, 2.0**20
ORDER = ("parameters", "gradients", "optimizer", "activations", "compute", "exposed communication")


@dataclasses.dataclass
class Bar:
    """What a bar stands for: `label` is drawn beside it, below `heading` and `row`."""

    name: str
    label: str
    heading: str = ""
    row: str = ""
    column: str = ""


@dataclasses.dataclass
class Series:
    """Bars have y alone, one for each bar; None: nothing there."""

    name: str
    y: list[float | None] = dataclasses.field(default_factory=list)
    x: list[float] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)
    spread: list[float | None] = dataclasses.field(default_factory=list)  # half of an interval
    low: list[float] = dataclasses.field(default_factory=list)  # the least of what y is the mean of
    high: list[float] = dataclasses.field(default_factory=list)
    joined: bool = True


@dataclasses.dataclass
class Span:
    """A work in a timeline; row and kind are indices of its bars and series."""

    row: int
    kind: int
    label: str
    start: float
    end: float


@dataclasses.dataclass
class Figure:
    """A drawing, or a table. `kind`: bars, stacked, curves, timeline or table."""

    kind: str
    name: str  # of its files, without their endings
    title: str  # a sentence for the caption
    x_label: str = ""  # with the unit; bars lie along x, and y_label is their header
    y_label: str = ""
    bars: list[Bar] = dataclasses.field(default_factory=list)
    series: list[Series] = dataclasses.field(default_factory=list)
    marks: list[float | None] = dataclasses.field(default_factory=list)  # drawn across bars
    mark_name: str = ""
    spans: list[Span] = dataclasses.field(default_factory=list)
    columns: list[str] = dataclasses.field(default_factory=list)  # of bars beside each other
    columns_key: str = ""
    log: bool = False
    left_out: str = ""  # what it shows where that is less than the data


def bar_of(row: Row, more: str = "") -> Bar:
    """The bar of a row. `more`: what it shows of it, where that is one of several things."""
    return Bar(
        f"{row.name}, {more}" if more else row.name,
        f"{row.label}, {more}" if more else row.label,
        row.heading,
        row.row if row.column else "",
        row.column,
    )


def stacked_parts(parts: list[dict[str, float]], unit: float) -> list[Series]:
    """A series of stacked bars for each part that any of the bars has."""
    names = [*ORDER, *dict.fromkeys(name for of in parts for name in of if name not in ORDER)]
    return [
        Series(name, [of[name] / unit if name in of else None for of in parts])
        for name in names
        if name != "peak" and any(name in of for of in parts)
    ]


def over(values: list[float | None], unit: float) -> list[float | None]:
    """The values in a unit."""
    return [None if value is None else value / unit for value in values]


class Maker:
    """Makes each figure, or says why it is not drawn."""

    def __init__(self, request: dict) -> None:
        self.all: Rows = rows_of(request)
        self.rows, self.drawn, self.said = self.all.rows, self.all.drawn, self.all.said
        self.timeline = request.get("timeline")
        self.figures: list[Figure] = []
        self.not_drawn: list[dict[str, str]] = []

    def skip(self, name: str, why: str) -> None:
        """Says why a figure is not drawn."""
        self.not_drawn.append({"name": name, "why": why})

    def keep(self, figure: Figure) -> None:
        """Adds a figure; one of bars says where it has not all of them."""
        if figure.kind in ("bars", "stacked", "table"):
            figure.left_out = "; ".join(
                text for text in (self.all.left_out, figure.left_out) if text
            )
            if figure.kind != "table" and any(bar.column for bar in figure.bars):
                figure.columns, figure.columns_key = self.all.columns, self.all.columns_key
            if len({bar.heading for bar in figure.bars}) > 1:
                figure.title += (
                    "; bars under different headings are not to be compared: their work differs, "
                    "or one was measured and the other predicted"
                )
        self.figures.append(figure)

    def speed(self) -> None:
        """Tokens a second, with their intervals."""
        rows = [row for row in self.drawn if row.number("tokens_per_second") is not None]
        if not rows:
            return self.skip("speed", "no speed is known")
        spread = [row.number("half") for row in rows]
        known = any(half is not None for half in spread)
        self.keep(
            Figure(
                "bars",
                "speed",
                f"Tokens a second, {self.said}"
                + ("; lines: 95 % intervals, where known" if self.said == "measured" else ""),
                "tokens/s",
                "mix",
                [bar_of(row) for row in rows],
                [
                    Series(
                        self.said,
                        [row.number("tokens_per_second") for row in rows],
                        spread=spread if known else [],
                    )
                ],
            )
        )

    def one_of(self, what: str) -> list[dict]:
        """The stages of the only row, where it has several with that."""
        if len(self.rows) != 1:
            return []
        stages = [stage for stage in self.rows[0].facts["stages"] if what in stage]
        return stages if len(stages) > 1 else []

    def memory(self) -> None:
        """Memory by category: of each row, or of each stage of the only one."""
        stages = self.one_of("memory")
        if stages:
            bars = [Bar(stage["name"], stage["name"]) for stage in stages]
            parts = [
                {
                    name: value
                    for name, value in stage["memory"].items()
                    if value > 0 and name != "device_memory"
                }
                for stage in stages
            ]
            marks = [of.get("peak") for of in parts]
        else:
            rows = [row for row in self.drawn if row.facts["memory"]]
            bars = [bar_of(row) for row in rows]
            parts = [row.facts["memory"] for row in rows]
            marks = [row.number("peak_bytes") for row in rows]
        if not parts:
            return self.skip("memory", "no memory by category is known")
        most = max([mark for mark in marks if mark] + [sum(of.values()) for of in parts])
        unit = GIB if most >= GIB else MIB
        self.keep(
            Figure(
                "stacked",
                "memory",
                f"Memory of the fullest rank by category, each at its own highest, {self.said}",
                "GiB" if unit == GIB else "MiB",
                "stage" if stages else "mix",
                bars,
                stacked_parts(parts, unit),
                over(marks, unit),
                "peak of all",
            )
        )

    def bytes(self) -> None:
        """What a rank sends, by axis."""
        rows = [row for row in self.drawn if row.facts["bytes"]]
        if not rows:
            return self.skip("bytes", "nothing is known of what ranks send")
        self.keep(
            Figure(
                "stacked",
                "bytes",
                f"Bytes that a rank sends in a step, by axis, {self.said}",
                "MiB",
                "mix",
                [bar_of(row) for row in rows],
                stacked_parts([row.facts["bytes"] for row in rows], MIB),
            )
        )

    def breakdown(self) -> None:
        """What the time of a step goes to, measured and predicted."""
        stages = self.one_of("parts")
        traced = any(row.facts["measured_parts"] for row in self.drawn)
        bars: list[Bar] = []
        parts: list[dict[str, float]] = []

        def add(make: Callable[[str], Bar], of: dict[str, float], said: str) -> None:
            if of:
                bars.append(make(said if traced else ""))
                parts.append(of)

        for stage in stages:

            def make(more: str, name: str = stage["name"]) -> Bar:
                text = f"{name}, {more}" if more else name
                return Bar(text, text)

            add(make, stage.get("measured_parts", {}), "measured")
            add(make, stage["parts"], "predicted")
        for row in [] if stages else self.drawn:

            def make(more: str, row: Row = row) -> Bar:
                return bar_of(row, more)

            add(make, row.facts["measured_parts"], "measured")
            add(make, row.facts["parts"], "predicted")
        if not parts:
            return self.skip("breakdown", "the inputs hold no prediction of a step by parts")
        untraced = sum(
            not row.facts["predicted"] and not row.facts["measured_parts"] for row in self.drawn
        )
        measured = "measured in a traced step and predicted" if traced else "predicted"
        where = "by stage" if stages else "on average of the stages"
        self.keep(
            Figure(
                "stacked",
                "breakdown",
                f"What a step's time goes to, {measured}, {where}",
                "seconds",
                "stage" if stages else "mix",
                bars,
                stacked_parts(parts, 1),
                left_out=f"what was measured of {len(self.drawn) - untraced} of {len(self.drawn)} "
                "mixes: the others traced no step"
                if traced and untraced and not stages
                else "",
            )
        )

    def pareto(self) -> None:
        """Speed against memory."""
        known = [
            row
            for row in self.rows
            if row.number("tokens_per_second") is not None and row.number("peak_bytes") is not None
        ]
        if len(known) < 2:
            return self.skip("pareto", "it takes two mixes whose speed and memory are known")
        known.sort(key=lambda row: (row.facts["peak_bytes"], -row.facts["tokens_per_second"]))
        unit = GIB if known[-1].facts["peak_bytes"] >= GIB else MIB
        several = len(self.all.headings) > 1
        edges = {
            heading: Series("on the Pareto front" + (f", {heading}" if several else ""))
            for heading in self.all.headings
        }
        other = Series("others", joined=False)
        wrong = Series("failed, not compared, or too large", joined=False)
        for row in known:
            of = wrong if not row.counted else edges[row.heading] if row.facts["on_edge"] else other
            of.x.append(row.facts["peak_bytes"] / unit)
            of.y.append(row.facts["tokens_per_second"])
            of.names.append(row.name)
        self.keep(
            Figure(
                "curves",
                "pareto",
                f"Speed against peak memory, {self.said}; no other mix beats those on the Pareto "
                "front in both",
                f"peak memory of a rank ({'GiB' if unit == GIB else 'MiB'})",
                "tokens/s",
                series=[one for one in (*edges.values(), other, wrong) if one.x],
            )
        )

    def curves(self, name: str, what: str, key: str) -> None:
        """The mean of each mix's runs over steps, at the steps that all of them have."""
        lines = [row for row in self.drawn if any(row.facts[key])]
        if not lines:
            return self.skip(name, f"no run has a {what}")
        figure = Figure(
            "curves",
            name,
            f"The {what} over steps, the mean of a mix's runs",
            "step",
            f"{what} (nats a token)",
        )
        for row in lines[:MOST_LINES]:
            runs = [dict(map(tuple, curve)) for curve in row.facts[key] if curve]
            steps = [step for step in runs[0] if all(step in run for run in runs)]
            values = [[run[step] for run in runs] for step in steps]
            at = [i for i, one in enumerate(values) if None not in one]  # null: it is not finite
            series = Series(row.name, x=[steps[i] for i in at])
            series.y = [sum(values[i]) / len(runs) for i in at]
            if len(runs) > 1:
                series.low = [min(values[i]) for i in at]
                series.high = [max(values[i]) for i in at]
                if "area" not in figure.title:
                    figure.title += "; areas reach from the least to the greatest of them"
            figure.series.append(series)
        if len(lines) > MOST_LINES:
            figure.left_out = f"the first {MOST_LINES} of {len(lines)}"
        self.keep(figure)

    def scaling(self) -> None:
        """The fastest mix at each number of ranks, beside a growth in proportion."""
        works: dict[tuple, dict[int, Row]] = {}
        for row in self.rows:
            speed, ranks = row.number("tokens_per_second"), row.number("ranks")
            if speed is None or not ranks or not row.counted:
                continue
            work = self.all.works[row.facts["work"]]
            # The batch may grow along a curve of scaling.
            key = tuple(
                item
                for item in work.items()
                if item[0] != "batch" and not item[0].startswith("data")
            )
            sizes = works.setdefault((row.facts["predicted"], key), {})
            if ranks not in sizes or speed > sizes[ranks].facts["tokens_per_second"]:
                sizes[ranks] = row
        curves = [(said, sizes) for (said, _), sizes in works.items() if len(sizes) > 1]
        if not curves:
            return self.skip("scaling", "it takes the same model on two numbers of ranks or more")
        figure = Figure(
            "curves",
            "scaling",
            f"Tokens a second of the fastest mix at each number of ranks, {self.said}",
            "ranks",
            "tokens/s",
            log=True,
        )
        for number, (predicted, sizes) in enumerate(curves, 1):
            which = f" {number}" if len(curves) > 1 else ""
            x = sorted(sizes)
            y = [sizes[ranks].facts["tokens_per_second"] for ranks in x]
            names = [sizes[ranks].name for ranks in x]
            said = "predicted" if predicted else "measured"
            figure.series.append(Series(said + which, y, x, names))
            figure.series.append(
                Series("linear" + which, [y[0] * ranks / x[0] for ranks in x], list(x))
            )
        self.keep(figure)

    def summary(self) -> None:
        """A table of all numbers."""
        columns = (
            ("ranks", "ranks", 1.0),
            ("runs", "runs", 1.0),
            ("loss", "loss", 1.0),
            ("peak (MiB)", "peak_bytes", MIB),
            ("runs of speed", "speed_runs", 1.0),
            ("tokens/s", "tokens_per_second", 1.0),
            ("step (ms)", "step_seconds", 1e-3),
            ("MFU (%)", "mfu", 1e-2),
        )
        table = Figure(
            "table",
            "summary",
            f"Speed, memory and loss of each mix, {self.said}",
            y_label="mix",
            bars=[bar_of(row) for row in self.drawn],
        )
        for name, key, unit in columns:
            column = Series(name, over([row.number(key) for row in self.drawn], unit))
            if name == "tokens/s":
                column.spread = [row.number("half") for row in self.drawn]
            if any(value is not None for value in column.y):
                table.series.append(column)
        self.keep(table)

    def timelines(self) -> None:
        """One run's step, as it was measured and as it was simulated."""
        for which in ("measured", "simulated"):
            name = f"timeline_{which}"
            drawn = (self.timeline or {}).get(which)
            if not drawn or not drawn["bars"]:
                self.skip(name, "no run file holds such a timeline")
                continue
            shown = len(drawn["rows"])
            self.keep(
                Figure(
                    "timeline",
                    name,
                    f"A step of {self.timeline['name']}, {which}",
                    "ms",
                    bars=[Bar(row, row) for row in drawn["rows"]],
                    series=[Series(kind) for kind in drawn["kinds"]],
                    spans=[Span(*bar) for bar in drawn["bars"]],
                    left_out=f"the first {shown} of {shown + drawn['left_out']} rows"
                    if "left_out" in drawn
                    else "",
                )
            )


def figures_of(request: dict) -> tuple[list[Figure], list[dict[str, str]]]:
    """The figures, and of those that are not drawn the name and why."""
    maker = Maker(request)
    maker.speed()
    maker.memory()
    maker.bytes()
    maker.breakdown()
    maker.pareto()
    maker.curves("loss", "training loss", "losses")
    maker.curves("held_out_loss", "held-out loss", "held_out_losses")
    maker.scaling()
    maker.summary()
    maker.timelines()
    return maker.figures, maker.not_drawn
