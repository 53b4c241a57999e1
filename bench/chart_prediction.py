#!/usr/bin/env python3
"""Draws docs/pictures/prediction.svg: each row of the published tables, predicted against measured.

    meshwright bench prediction --json | bench/chart_prediction.py > docs/pictures/prediction.svg
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 480, 64, 52, 16, 176
COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"]


def main():
    tables = {}
    for line in sys.stdin:
        row = json.loads(line)
        if row["unit"] == "s" and row["predicted"]:
            tables.setdefault(row["table"], []).append((row["published"], row["predicted"]))
    if not tables:
        sys.exit("no rows: pipe in what `meshwright bench prediction --json` prints")
    every = [seconds for rows in tables.values() for pair in rows for seconds in pair]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def x(seconds):
        return LEFT + (math.log10(seconds) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(seconds):
        return HEIGHT - BOTTOM - (math.log10(seconds) - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
           f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for power in range(low, high + 1):
        at = 10.0**power
        out.append(f'<path d="M{x(at):.1f} {y(10.0**low):.1f}V{y(10.0**high):.1f}M{x(10.0**low):.1f} {y(at):.1f}'
                   f'H{x(10.0**high):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{at:g} s</text>')
        out.append(f'<text x="{LEFT - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{at:g} s</text>')
    for factor, dash in ((1, ""), (1.1, ' stroke-dasharray="4 3"'), (1 / 1.1, ' stroke-dasharray="4 3"')):
        first, last = 10.0**low * max(1, 1 / factor), 10.0**high * min(1, 1 / factor)
        out.append(f'<path d="M{x(first):.1f} {y(first * factor):.1f}L{x(last):.1f} {y(last * factor):.1f}" '
                   f'stroke="#888"{dash}/>')
    for number, (name, rows) in enumerate(tables.items()):
        colour = COLOURS[number % len(COLOURS)]
        for published, predicted in rows:
            out.append(f'<circle cx="{x(published):.1f}" cy="{y(predicted):.1f}" r="2.5" fill="{colour}" '
                       f'fill-opacity="0.7"/>')
        error = 100 * sum(abs(p / m - 1) for m, p in rows) / len(rows)
        at = TOP + 14 + 18 * number
        out.append(f'<circle cx="{WIDTH - RIGHT + 14}" cy="{at - 4}" r="4" fill="{colour}"/>'
                   f'<text x="{WIDTH - RIGHT + 24}" y="{at}">{name} {error:.1f} %</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">step, published '
               f'(dashed: 10 % off)</text><text transform="translate(14 {HEIGHT / 2}) rotate(-90)" '
               f'text-anchor="middle">step, predicted</text></svg>')
    print("\n".join(out))


if __name__ == "__main__":
    main()
