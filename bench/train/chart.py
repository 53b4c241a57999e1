"""Draws the rows of one size as SVG: speed, CPU seconds and memory beside the baseline's."""
from xml.sax.saxutils import escape

from mixes import WORDS

WIDTH, TOP, ROW, LABELS = 980, 66, 26, 290
# What a panel shows: the ratio's key, its title.
PANELS = (("speed", "tokens/s over the baseline's"), ("cpu", "baseline's CPU seconds over ours"),
          ("resident", "baseline's memory over ours"))
GAP = 34
STYLE = """svg{font:13px sans-serif;background:#fff;color:#222}text{fill:currentColor}
.g{stroke:#d8dde4}.one{stroke:#8a94a3;stroke-dasharray:4 3}.s{font-size:11px;opacity:.75}
.b{fill:#2a6fbb}.c{fill:#5b9a3c}.m{fill:#c05a00}.v{fill:#fff;font-size:11px}.w{stroke:#222;stroke-width:1.5;fill:none}
@media(prefers-color-scheme:dark){svg{background:#15181d;color:#ddd}.g{stroke:#323a46}
.b{fill:#6fb1f5}.c{fill:#9ccf7f}.m{fill:#f2994a}.v{fill:#15181d}.w{stroke:#ddd}}"""
COLOURS = dict(speed="b", cpu="c", resident="m", tokens_per_second="b")


def ceiling(most):
    """The end of an axis that begins at 0, and the distance of its lines."""
    step = next(s for s in (0.5, 1, 2, 5, 10, 20, 50, 100, 1000, 2000, 5000, 10**4, 10**5, 10**9) if most / s <= 5)
    return step * -(-most // step), step


def panel(rows, values, title, colour, left, width):
    """Bars of (middle, least, most) for each row; None leaves the row empty."""
    most = max([v[2] for v in values if v] + [1.0])
    end, step = ceiling(most * 1.02)
    bottom = TOP + ROW * len(rows)

    def at(value):
        return left + value / end * width

    out = [f'<text x="{left}" y="{TOP - 28}">{escape(title)}</text>']
    for i in range(round(end / step) + 1):
        x = at(i * step)
        out.append(f'<path class="g" d="M{x:.1f} {TOP - 6}V{bottom}"/>'
                   f'<text class="s" x="{x:.1f}" y="{TOP - 10}" text-anchor="middle">{i * step:g}</text>')
    for k, value in enumerate(values):
        if value is None:
            continue
        y, (middle, least, highest) = TOP + ROW * k, value
        out.append(f'<rect class="{colour}" x="{left}" y="{y + 4}" width="{at(middle) - left:.1f}" height="{ROW - 10}">'
                   f'<title>{middle:.4g} ({least:.4g} to {highest:.4g})</title></rect>'
                   f'<text class="v" x="{left + 5}" y="{y + ROW / 2 + 3}">{middle:.2f}</text>')
        if highest > least:
            out.append(f'<path class="w" d="M{at(least):.1f} {y + ROW / 2 - 1}H{at(highest):.1f}'
                       f'M{at(least):.1f} {y + 8}v8M{at(highest):.1f} {y + 8}v8"/>')
    return out, at(1.0)


def draw(size, rows, beside):
    """The drawing of one size's rows. `beside` names the baseline; without it tokens/s stand alone."""
    height = TOP + ROW * len(rows) + 30
    panels = PANELS if beside else (("tokens_per_second", "tokens/s"),)
    width = (WIDTH - LABELS - 20 - GAP * (len(panels) - 1)) / len(panels)
    title = f"{size}: Meshwright beside {beside}" if beside else f"{size}: Meshwright alone"
    out = [f'<text x="10" y="22" font-weight="bold">{escape(title)}</text>']
    for k, r in enumerate(rows):
        y = TOP + ROW * k + ROW / 2 + 4
        out.append(f'<text x="{LABELS - 10}" y="{y}" text-anchor="end">{escape(WORDS[r["mix"]])}</text>')
    for i, (key, text) in enumerate(panels):
        values = [(r[key],) * 3 if key == "tokens_per_second" else
                  (r[key]["median"], r[key]["least"], r[key]["most"]) if key in r else None for r in rows]
        drawn, one = panel(rows, values, text, COLOURS[key], LABELS + i * (width + GAP), width)
        out += drawn
        if beside:
            out.append(f'<path class="one" d="M{one:.1f} {TOP - 6}V{height - 30}"/>')
    foot = "Bars: medians of pairs; lines: the least and the most. Right of 1: ours is ahead." if beside else ""
    out.append(f'<text class="s" x="10" y="{height - 8}">{foot}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
            f"<title>{escape(title)}</title><style>{STYLE}</style>\n" + "\n".join(out) + "\n</svg>\n")
