#!/usr/bin/env python3
"""Draws docs/pictures/prediction.svg: each row of the published tables, its step predicted against
published, and by table how far off it is.

    meshwright bench prediction --json | bench/chart_prediction.py > docs/pictures/prediction.svg
"""
import json
import math
import sys
from xml.sax.saxutils import escape

WIDTH, TOP, ROW = 940, 40, 34
LEFT, SIDE = 62, 380          # of the square: where it begins, and its side
LABELS, ERRORS, END = 470, 610, 860  # of the rows: names, where errors begin and end
MOST = 40                     # per cent; what is further off stands at the edge
STYLE = """svg{font:13px sans-serif;background:#fff;color:#222}text{fill:currentColor}
.g{stroke:#d8dde4;fill:none}.z{stroke:#8a94a3;fill:none}.d{stroke:#8a94a3;stroke-dasharray:4 3;fill:none}
.s{font-size:11px;opacity:.75}.a100{fill:#2a6fbb}.h100{fill:#c05a00}circle{fill-opacity:.55}.m{stroke:#222;stroke-width:2}
@media(prefers-color-scheme:dark){svg{background:#15181d;color:#ddd}.g{stroke:#323a46}.z,.d{stroke:#7f8da3}
.a100{fill:#6fb1f5}.h100{fill:#f2994a}.m{stroke:#ddd}}"""
H100 = ("megatron-core", "llama3", "mpt-h100")


def device(table):
    return "h100" if table in H100 else "a100"


def label(seconds):
    return f"{seconds:g} s"


def scatter(tables):
    every = [seconds for rows in tables.values() for pair in rows for seconds in pair]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    high = max(high, low + 1)

    def at(seconds):
        return (math.log10(seconds) - low) / (high - low) * SIDE

    def point(published, predicted):
        return f"{LEFT + at(published):.1f} {TOP + SIDE - at(predicted):.1f}"

    out = [f'<text x="{LEFT + SIDE / 2}" y="22" text-anchor="middle">a step, predicted against published</text>']
    least, most = 10.0**low, 10.0**high
    for power in range(low, high + 1):
        s = 10.0**power
        out.append(f'<path class="g" d="M{point(s, least)}L{point(s, most)}M{point(least, s)}L{point(most, s)}"/>')
        x, y = point(s, s).split()
        out.append(f'<text class="s" x="{x}" y="{TOP + SIDE + 16}" text-anchor="middle">{label(s)}</text>')
        out.append(f'<text class="s" x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{label(s)}</text>')
    out.append(f'<path class="z" d="M{point(least, least)}L{point(most, most)}"/>')
    out.append(f'<path class="d" d="M{point(least, 1.1 * least)}L{point(most / 1.1, most)}'
               f'M{point(1.1 * least, least)}L{point(most, most / 1.1)}"/>')
    for table, rows in tables.items():
        for published, predicted in rows:
            x, y = point(published, predicted).split()
            out.append(f'<circle class="{device(table)}" cx="{x}" cy="{y}" r="2.5"/>')
    out.append(f'<text class="s" x="{LEFT + SIDE / 2}" y="{TOP + SIDE + 34}" text-anchor="middle">published '
               f'(dashed: 10 % off)</text>')
    return out


def errors(tables):
    def at(error):
        return ERRORS + (max(-MOST, min(MOST, error)) + MOST) / (2 * MOST) * (END - ERRORS)

    bottom = TOP + ROW * len(tables)
    out = [f'<text x="{(ERRORS + END) / 2}" y="22" text-anchor="middle">predicted over published, - 1</text>']
    for error in range(-MOST, MOST + 1, 10):
        kind = "z" if error == 0 else "g"
        out.append(f'<path class="{kind}" d="M{at(error):.1f} {TOP}V{bottom}"/>')
        if error % 20 == 0:
            out.append(f'<text class="s" x="{at(error):.1f}" y="{bottom + 16}" text-anchor="middle">{f"{error:+d}" if error else "0"} %</text>')
    for number, (table, rows) in enumerate(tables.items()):
        y = TOP + ROW * (number + 0.5)
        off = [100 * (predicted / published - 1) for published, predicted in rows]
        mean = sum(map(abs, off)) / len(off)
        out.append(f'<text x="{LABELS}" y="{y + 4:.1f}">{escape(table)}</text>')
        out.append(f'<text class="s" x="{END + 10}" y="{y + 4:.1f}">{mean:.1f} %</text>')
        for k, error in enumerate(off):
            # Side by side, in one order for ever.
            aside = ((k * 7) % 11 - 5) * 2
            out.append(f'<circle class="{device(table)}" cx="{at(error):.1f}" cy="{y + aside:.1f}" r="2.5"/>')
        middle = sorted(off)[len(off) // 2]
        out.append(f'<path class="m" d="M{at(middle):.1f} {y - 12:.1f}V{y + 12:.1f}"/>')
    out.append(f'<text class="s" x="{END + 10}" y="22">mean error</text>')
    out.append(f'<text class="s" x="{(ERRORS + END) / 2}" y="{bottom + 34}" text-anchor="middle">line: the median row; '
               f'at the edge: {MOST} % and more</text>')
    for x, name, text in ((LABELS, "a100", "A100"), (LABELS + 66, "h100", "H100")):
        out.append(f'<circle class="{name}" cx="{x + 5}" cy="{bottom + 30}" r="5"/>')
        out.append(f'<text class="s" x="{x + 15}" y="{bottom + 34}">{text}</text>')
    return out


def draw(lines):
    tables = {}
    for line in lines:
        row = json.loads(line)
        if row["unit"] == "s" and row["predicted"] and not row.get("kept_aside"):
            tables.setdefault(row["table"], []).append((row["published"], row["predicted"]))
    if not tables:
        sys.exit("no rows: pipe in what `meshwright bench prediction --json` prints")
    height = max(TOP + SIDE, TOP + ROW * len(tables)) + 48
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>{STYLE}</style>", *scatter(tables), *errors(tables), "</svg>"])


if __name__ == "__main__":
    print(draw(sys.stdin))
