"""Draws a figure with matplotlib, in the width that is asked for. A point is the unit of places."""

from __future__ import annotations

import functools
import math
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from meshwright_figures.figures import Bar, Figure, Series

SIZE, LINE, BORDER = 7.5, 9.5, 3.0  # of the type; between lines; around all
BAR, GAP = 7.0, 3.0
# Okabe and Ito's colours, which stay apart for the colour-blind.
INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b4aa3", "#6b6f1d")
DASHES = ("-", (0, (4, 2)), (0, (1.2, 1.6)))
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
SETTINGS = {
    "font.size": SIZE,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "meshwright",
    "pdf.fonttype": 42,
    "pgf.texsystem": "pdflatex",
    "pgf.rcfonts": False,
}


def number_text(value: float, _: Any = None) -> str:
    """A number beside a tick."""
    for least, unit, letter in ((1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if abs(value) >= least:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


@functools.lru_cache(maxsize=None)
def text_width(text: str, font: str) -> float:
    """The width of a text in the font of a file."""
    finer = 16  # letters are as wide as whole pixels
    face = get_font(font)
    face.set_size(finer * SIZE, 72)
    face.set_text(text, 0.0)
    return face.get_width_height()[0] / 64 / finer


def tex_text(text: str) -> str:
    """A text as LaTeX reads it."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(
        special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text.replace("…", "...")
    )


class Drawing:
    """One figure. `figure` is matplotlib's once draw() was called."""

    def __init__(self, drawn: Figure, width: float, font: str, *, tex: bool = False) -> None:
        self.drawn, self.width, self.tex = drawn, 72 * width, tex
        self.font = FontProperties(family=[font, "DejaVu Sans"] if font else None, size=SIZE)
        self.bold = self.font.copy()
        self.bold.set_weight("bold")
        self.figure: Canvas

    def draw(self) -> Canvas:
        """The figure, to be saved."""
        with matplotlib.rc_context(SETTINGS):
            if self.drawn.kind == "curves":
                self._curves()
            elif self.drawn.kind == "timeline":
                self._timeline()
            else:
                self._bars()
        return self.figure

    # --- Texts ---

    def _said(self, text: str) -> str:
        return tex_text(text) if self.tex else text

    def _wide(self, text: str) -> float:
        return text_width(text, findfont(self.font))

    def _wrapped(self, text: str, room: float) -> list[str]:
        """The lines of a text, each no wider than the room, broken at blanks where there are."""
        lines, line = [], ""
        for word in text.split(" "):
            longer = f"{line} {word}" if line else word
            if self._wide(longer) <= room:
                line = longer
                continue
            if line:
                lines.append(line)
            while self._wide(word) > room and len(word) > 1:
                most = next(
                    n for n in range(len(word), 0, -1) if n == 1 or self._wide(word[:n]) <= room
                )
                lines.append(word[:most])
                word = word[most:]
            line = word
        return [*lines, line]

    def _words(
        self, x: float, y: float, text: str, font: FontProperties | None = None, **more: Any
    ):
        """Puts a text in the figure; y counts from its top."""
        height = 72 * self.figure.get_figheight()
        return self.figure.text(
            x / self.width,
            1 - y / height,
            self._said(text),
            fontproperties=font or self.font,
            **{"va": "center", "ha": "left", **more},
        )

    # --- What all drawings have ---

    def _begin(self, height: float) -> None:
        self.figure = Canvas(figsize=(self.width / 72, height / 72))
        FigureCanvasAgg(self.figure)

    def _axes(self, left: float, top: float, right: float, bottom: float):
        height = 72 * self.figure.get_figheight()
        axes = self.figure.add_axes(
            (
                left / self.width,
                1 - bottom / height,
                (right - left) / self.width,
                (bottom - top) / height,
            )
        )
        axes.spines[["top", "right"]].set_visible(False)
        return axes

    def _legend_places(
        self, names: list[str]
    ) -> tuple[list[tuple[float, float, list[str]]], float]:
        """Where each entry stands, one after the other, and the height of all."""
        places, x, y = [], BORDER, BORDER
        for name in names:
            lines = self._wrapped(name, self.width - 2 * BORDER - 15)
            wide = 15 + max(map(self._wide, lines))
            if x > BORDER and x + wide > self.width - BORDER:
                x, y = BORDER, y + LINE
            places.append((x, y, lines))
            x, y = x + wide + 9, y + LINE * (len(lines) - 1)
        return places, y + LINE + 3 if names else BORDER

    def _legend(self, names: list[str], places: list, swatch) -> None:
        height = 72 * self.figure.get_figheight()
        for at, (x, y, lines) in enumerate(places):
            for artist in swatch(at, x, height - y - LINE / 2):
                self.figure.add_artist(artist)
            for number, line in enumerate(lines):
                self._words(x + 13, y + LINE / 2 + LINE * number, line)

    def _fraction(self):
        """The transform of points from the figure's lower left."""
        return matplotlib.transforms.Affine2D().scale(1 / 72) + self.figure.dpi_scale_trans

    def _box(self, ink: str):
        def swatch(x: float, y: float):
            return [Rectangle((x, y - 3.5), 10, 7, color=ink, lw=0, transform=self._fraction())]

        return swatch

    def _stroke(
        self, ink: str, dash: Any = "-", mark: str = "", joined: bool = True, upright: bool = False
    ):
        def swatch(x: float, y: float):
            ends = ([x + 5] * 3, [y - 4, y, y + 4]) if upright else ([x, x + 5, x + 10], [y] * 3)
            return [
                matplotlib.lines.Line2D(
                    *ends,
                    color=ink,
                    lw=1.4 if upright else 1.1,
                    ls=dash if joined else "",
                    marker=mark or None,
                    markevery=[1],
                    ms=3,
                    transform=self._fraction(),
                )
            ]

        return swatch

    def _axis_below(self, axes, wide: float) -> None:
        axes.xaxis.set_major_locator(MaxNLocator(max(2, int(wide / 38)), steps=[1, 2, 5, 10]))
        self._ticks(axes.xaxis, axes.get_xlim())
        axes.tick_params(axis="x", pad=2)
        axes.set_yticks([])
        axes.grid(axis="x", color="#dddddd", lw=0.4)
        axes.set_axisbelow(True)
        axes.set_xlabel(self._said(self.drawn.x_label), fontproperties=self.font, labelpad=2)

    def _ticks(self, axis, limits: tuple[float, float]) -> None:
        """Keeps the ticks that are in sight, with their numbers."""
        low, high = sorted(limits)
        axis.set_ticks([tick for tick in axis.get_majorticklocs() if low <= tick <= high])
        axis.set_major_formatter(FuncFormatter(number_text))
        for label in axis.get_ticklabels():
            label.set_fontproperties(self.font)

    # --- Bars ---

    def _bars(self) -> None:
        drawn = self.drawn
        columns = drawn.columns if drawn.kind == "bars" else []
        names = list(columns)
        if not columns and (len(drawn.series) > 1 or drawn.marks):
            names = [series.name for series in drawn.series]
        swatches = [self._box(INKS[n % len(INKS)]) for n in range(len(names))]
        if drawn.marks:
            names.append(drawn.mark_name)
            swatches.append(self._stroke("black", upright=True))
        places, top = self._legend_places(names)
        texts, at, left, bottom = self._bar_places(top, beside=bool(columns))
        self._begin(bottom + 2 * LINE + 7)
        self._legend(names, places, lambda n, x, y: swatches[n](x, y))
        axes = self._axes(left, top, self.width - BORDER - 9, bottom)
        axes.set_ylim(bottom, top)
        self._fill(axes, at, columns)
        self._axis_below(axes, self.width - left)
        clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.2}  # of lines behind a name
        for x, y, text, font, align in texts:
            self._words(x, y, text, font, ha=align, bbox=clear if align == "left" else None)

    def _bar_places(
        self, top: float, *, beside: bool
    ) -> tuple[list[tuple], list[float], float, float]:
        """Places the names, each (x, y, text, font, alignment), and the middles of the bars.

        `beside`: the bars of a row touch, below one name. Returns where bars begin and end too.
        """
        bars, texts, at, y = self.drawn.bars, [], [], top
        labels = [cluster_name(bar, bars) if beside else bar.label for bar in bars]
        longest = max(map(self._wide, labels))
        # Names stand beside their bars if they leave these most of the width, else above them.
        above = longest > 0.4 * self.width
        left = BORDER + (1 if above else longest + 5)

        def lines(text: str, x: float, font: FontProperties) -> None:
            nonlocal y
            for line in self._wrapped(text, self.width - BORDER - 8 - x):
                texts.append((x, y + LINE / 2, line, font, "left"))
                y += LINE

        headed = len({bar.heading for bar in bars}) > 1
        for n, bar in enumerate(bars):
            before = bars[n - 1] if n else None
            new_heading = before is None or bar.heading != before.heading
            new_row = new_heading or bar.row != before.row
            if headed and new_heading:
                lines(bar.heading, BORDER, self.bold)
            if bar.row and new_row and not beside:
                lines(bar.row, BORDER, self.font)
            if new_row or not beside:
                count = sum(cluster(bar) == cluster(o) for o in bars) if beside else 1
                if above:
                    lines(labels[n], left + 2, self.font)
                else:
                    middle = y + (BAR * count + GAP) / 2
                    texts.append((left - 3, middle, labels[n], self.font, "right"))
            at.append(y + (BAR + GAP) / 2)
            last = n + 1 == len(bars) or cluster(bars[n + 1]) != cluster(bar)
            y += BAR + GAP if last or not beside else BAR
        return texts, at, left, y + 1

    def _fill(self, axes, at: list[float], columns: list[str]) -> None:
        """The bars themselves, from zero."""
        drawn = self.drawn
        most, longest = 0.0, 0.0
        for n, y in enumerate(at):
            total = 0.0
            for s, series in enumerate(drawn.series):
                value = series.y[n]
                if value is None:
                    continue
                ink = columns.index(drawn.bars[n].column) if columns else s
                box = axes.barh(y, value, BAR, left=total, color=INKS[ink % len(INKS)], lw=0)
                box.patches[0].set_gid(f"bar {n} {s}")
                half = series.spread[n] if series.spread else None
                if half:
                    axes.errorbar(
                        value,
                        y,
                        xerr=[[min(half, value)], [half]],
                        color="black",
                        lw=0.8,
                        capsize=1.6,
                        capthick=0.8,
                    )
                longest = max(longest, value)
                most = max(most, value + (half or 0))
                total = total + value if drawn.kind == "stacked" else 0.0
            most = max(most, total)
            if drawn.marks and drawn.marks[n] is not None:
                axes.plot(
                    [drawn.marks[n]] * 2, [y - BAR / 2 - 1, y + BAR / 2 + 1], color="black", lw=1.4
                )
                most = max(most, drawn.marks[n])
        # Wide intervals of few noisy runs would leave the bars no width: they end at the edge.
        if drawn.kind == "bars" and longest > 0:
            most = min(most, 2 * longest)
        axes.set_xlim(0, 1.03 * most if most > 0 else 1)

    # --- Timelines ---

    def _timeline(self) -> None:
        drawn = self.drawn
        names = [series.name for series in drawn.series]
        places, top = self._legend_places(names)
        labels = [self._wrapped(bar.label, 0.36 * self.width)[0] for bar in drawn.bars]
        left = BORDER + max(map(self._wide, labels)) + 5
        each = LINE + 1.5
        bottom = top + each * len(labels)
        self._begin(bottom + 2 * LINE + 7)
        self._legend(names, places, lambda n, x, y: self._box(INKS[n % len(INKS)])(x, y))
        axes = self._axes(left, top, self.width - BORDER - 9, bottom)
        axes.set_ylim(bottom, top)
        end = max((span.end for span in drawn.spans), default=0) or 1
        axes.set_xlim(0, end)
        points = (self.width - BORDER - 9 - left) / end  # in a unit of time
        for n, label in enumerate(labels):
            self._words(left - 3, top + each * (n + 0.5), label, ha="right")
        works: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for span in drawn.spans:
            wide = span.end - span.start
            works.setdefault((span.row, span.kind), []).append((span.start, wide))
            if span.label and points * wide > self._wide(span.label) + 2:
                axes.text(
                    span.start + wide / 2,
                    top + each * (span.row + 0.5),
                    self._said(span.label),
                    color="white",
                    fontproperties=self.font,
                    ha="center",
                    va="center_baseline",
                )
        for (row, kind), spans in works.items():
            place = top + each * row + 1, each - 2
            ink = INKS[kind % len(INKS)]
            axes.broken_barh(spans, place, facecolor=ink, edgecolor="white", lw=0.2)
        self._axis_below(axes, self.width - left)

    # --- Curves ---

    def _curves(self) -> None:
        drawn = self.drawn
        several = len(drawn.series) > 1
        names = [series.name for series in drawn.series] if several else []
        places, top = self._legend_places(names)
        tall = (0.36 if self.width > 400 else 0.58) * self.width
        named = [n for series in drawn.series for n in series.names]
        # Where points are many or names are long, points have numbers, and a list below names them.
        short = len(named) <= 6 and all(self._wide(name) < 0.45 * self.width for name in named)
        keys = (
            [] if short else self._legend_places([f"{n} {name}" for n, name in enumerate(named, 1)])
        )
        bottom = top + 4 + tall
        height = bottom + 2 * LINE + 9 + (keys[1] if keys else 0)
        self._begin(height)
        self._legend(
            names,
            places,
            lambda n, x, y: self._stroke(
                INKS[n % len(INKS)],
                DASHES[n % len(DASHES)],
                self._mark(drawn.series[n], n),
                drawn.series[n].joined,
            )(x, y),
        )
        axes = self._axes(BORDER + 40, top + 4, self.width - BORDER - 9, bottom)
        for n, series in enumerate(drawn.series):
            ink = INKS[n % len(INKS)]
            axes.plot(
                series.x,
                series.y,
                color=ink,
                lw=1.0,
                ls=DASHES[n % len(DASHES)] if series.joined else "",
                marker=self._mark(series, n) or None,
                ms=3,
                label=series.name,
            )
            if series.low:
                axes.fill_between(series.x, series.low, series.high, color=ink, alpha=0.12, lw=0)
        self._scales(axes)
        self._name_points(axes, [str(n) for n in range(1, len(named) + 1)] if keys else named)
        if keys:
            for x, y, lines in keys[0]:
                for number, line in enumerate(lines):
                    self._words(x, bottom + 2 * LINE + 6 + y + LINE / 2 + LINE * number, line)

    @staticmethod
    def _mark(series: Series, n: int) -> str:
        points = not series.joined or series.names or len(series.x) <= 12
        return MARKS[n % len(MARKS)] if points else ""

    def _scales(self, axes) -> None:
        drawn = self.drawn
        if drawn.log:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(sorted({x for series in drawn.series for x in series.x}), minor=False)
            axes.minorticks_off()
            low, high = (of(y for s in drawn.series for y in s.y) for of in (min, max))
            subs = (
                (1.0,)
                if high / low > 1000
                else (1.0, 2.0, 5.0)
                if high / low > 8
                else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
            )
            axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.xaxis.set_major_locator(
                MaxNLocator(max(3, int(self.width / 45)), steps=[1, 2, 5, 10])
            )
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.margins(0.06)
        axes.grid(color="#dddddd", lw=0.4)
        axes.set_axisbelow(True)
        axes.set_xlabel(self._said(self.drawn.x_label), fontproperties=self.font, labelpad=2)
        axes.set_ylabel(self._said(self.drawn.y_label), fontproperties=self.font)
        axes.yaxis.set_label_coords(-32 / (self.width - 2 * BORDER - 49), 0.5)
        self._ticks(axes.xaxis, axes.get_xlim())
        self._ticks(axes.yaxis, axes.get_ylim())

    def _name_points(self, axes, names: list[str]) -> None:
        """Puts each name beside its point where nothing else is, with a line if it is far."""
        self.figure.canvas.draw()
        scale = 72 / self.figure.dpi
        frame = [scale * v for v in axes.get_window_extent().extents]
        points = [
            (scale * axes.transData.transform((x, y)), bool(series.names))
            for series in self.drawn.series
            for x, y in zip(series.x, series.y)
        ]
        taken = [(x - 2, y - 2, x + 2, y + 2) for (x, y), _ in points] if len(points) < 200 else []
        left = iter(names)
        for (x, y), is_named in points:
            if not is_named:
                continue
            name = next(left)
            wide, high = self._wide(name) + 1, SIZE
            box = None
            for far in (3.5, 8, 14, 22, 32, 45, 60):
                for turn in range(16):
                    dx, dy = math.cos(turn * math.pi / 8), math.sin(turn * math.pi / 8)
                    cx, cy = x + dx * (far + wide / 2), y + dy * (far + high / 2)
                    box = (cx - wide / 2, cy - high / 2, cx + wide / 2, cy + high / 2)
                    inside = (
                        box[0] > frame[0]
                        and box[1] > frame[1]
                        and box[2] < frame[2] + 8
                        and box[3] < frame[3] + 2
                    )
                    if inside and not any(overlap(box, other) for other in taken):
                        break
                    box = None
                if box:
                    break
            if box is None:
                continue  # the numbers' list or the CSV has it
            taken.append(box)
            self.figure.text(
                (box[0] + box[2]) / 2 / self.width,
                (box[1] + box[3]) / 2 / 72 / self.figure.get_figheight(),
                self._said(name),
                fontproperties=self.font,
                ha="center",
                va="center",
            )
            if far > 8:
                end = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
                self.figure.add_artist(
                    matplotlib.lines.Line2D(
                        [x, end[0]],
                        [y, end[1]],
                        lw=0.4,
                        color="#777777",
                        transform=self._fraction(),
                    )
                )


def cluster(bar: Bar) -> tuple[str, str]:
    """What bars that stand beside each other share."""
    return bar.heading, bar.row


def cluster_name(bar: Bar, bars: list[Bar]) -> str:
    """What bars beside each other are called, with those that are not ranked."""
    marked = [o.label for o in bars if cluster(o) == cluster(bar) and o.label != o.column]
    return f"{bar.row} [{', '.join(marked)}]" if marked else bar.row


def overlap(a: tuple, b: tuple) -> bool:
    """Whether two boxes (left, low, right, high) have a place in common."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
