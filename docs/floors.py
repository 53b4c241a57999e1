#!/usr/bin/env python3
"""Draws which part of the source includes which, from the sources themselves, into
docs/floors.svg.

    docs/floors.py          writes the drawing anew
    docs/floors.py --print  prints it

The parts are the floors of the kernel (the folders of core/src), the libraries (libs/), what is
built in among the plugins (plugins/models and so on), and app. A part stands above all that it
includes; a header of the SDK (core/include) stands for the part that implements it. Arrows that
follow from others (a includes b, b includes c, a includes c too) are left out of the drawing and
stand in the table below it. Parts that include each other are joined in red."""

import pathlib
import re
import sys

INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')
WIDTH, BOX_WIDTH, BOX_HEIGHT, ROW, MARGIN = 980, 92, 30, 74, 20
LINE, NAMES = 22, 90
BUILT_IN = "models optimizers data policies".split()  # plugins that are linked in


def includes(path):
    return [found[1] for found in map(INCLUDE.match, path.read_text().splitlines()) if found]


def part_of(path, root):
    """The part of the source that a file belongs to: a folder of core/src, libs or plugins, or app."""
    parts = path.relative_to(root).parts
    if parts[0] == "app":
        return "app"
    return parts[2] if parts[:2] == ("core", "src") else parts[1]


def sources_of(root):
    """All sources, but those of plugins that are loaded: these see the SDK alone (tests/layout)."""
    folders = [root / "core/src", root / "libs", root / "app", *(root / "plugins" / name for name in BUILT_IN)]
    return sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in (".cpp", ".h"))


def homes_of_contracts(root):
    """The part that implements each header of the SDK, if one does: it has a source of its name."""
    homes = {}
    for path in sources_of(root):
        for header in (f"meshwright/{path.stem}.h", f"meshwright/engine/{path.stem}.h"):
            if path.suffix == ".cpp" and header in includes(path):
                homes.setdefault(header, part_of(path, root))
    return homes


def included_folders(root):
    """Which other parts each part includes. A header of the SDK stands for the part that implements it."""
    homes = homes_of_contracts(root)
    files = sources_of(root)
    edges = {part_of(path, root): set() for path in files}
    for path in files:
        part = part_of(path, root)
        others = {homes.get(name, "frontend" if name.startswith(("lua/", "script/")) else name.split("/")[0])
                  for name in includes(path)}
        edges[part] |= (others & set(edges)) - {part}
    return edges


def reachable(edges, start):
    """All that `start` includes, directly or through others."""
    seen, todo = set(), list(edges[start])
    while todo:
        folder = todo.pop()
        if folder not in seen:
            seen.add(folder)
            todo.extend(edges[folder])
    return seen


def rows_of(edges):
    """The folders, those that include nothing first; each above all that it includes."""
    height = {}
    left = set(edges)
    while left:
        free = {f for f in left if not (edges[f] & left)}
        free = free or left  # a circle: all of it in one row
        for folder in free:
            height[folder] = 1 + max((height[g] for g in edges[folder] - free), default=-1)
        left -= free
    rows = [[] for _ in range(1 + max(height.values(), default=0))]
    for folder in sorted(edges):
        rows[height[folder]].append(folder)
    return rows


def essential(edges):
    """The pairs that do not follow from others, and of those in a circle all."""
    reach = {f: reachable(edges, f) for f in edges}
    kept = []
    for a in sorted(edges):
        for b in sorted(edges[a]):
            through = [c for c in edges[a] if c != b and b in reach[c] and a not in reach[c]]
            if a in reach[b] or not through:
                kept.append((a, b, a in reach[b]))
    return kept


def places(rows, pairs):
    """Where boxes stand and arrows pass: for each row a point for each folder, by name, and for each
    pair whose arrow crosses the row. Within a row all stand near what they lead to."""
    height = {folder: index for index, row in enumerate(rows) for folder in row}
    at = {}
    for index, row in enumerate(rows):
        crossing = [(a, b, index) for a, b, _ in pairs if height[b] < index < height[a]]

        def wish(item):
            folder = isinstance(item, str)
            ends = [pair[:2] for pair in pairs if pair[0] == item] if folder else [item[:2]]
            below = [at.get((a, b, index - 1), at.get(b)) for a, b in ends]
            return sum(x for x, _ in below) / len(below) if below else WIDTH / 2

        items = sorted([*row, *crossing], key=lambda item: (wish(item), str(item)))
        room = min(40, (WIDTH - 2 * MARGIN - BOX_WIDTH * len(row)) / len(items))
        widths = [room + (BOX_WIDTH if isinstance(item, str) else 0) for item in items]
        middle = sum(map(wish, items)) / len(items)
        half = sum(widths) / 2
        x = min(max(middle - half, MARGIN), WIDTH - MARGIN - 2 * half)
        for item, width in zip(items, widths):
            at[item] = (x + width / 2, MARGIN + (len(rows) - 1 - index) * ROW + BOX_HEIGHT / 2)
            x += width
    return at


def arrow(a, b, circle, rows, at):
    """A curve from the lower edge of one box to the upper edge of another, past the boxes between."""
    points = [at[a, b, index] for index in reversed(range(len(rows))) if (a, b, index) in at]
    (x, y), (u, v) = at[a], at[b]
    stops = [(x, y + BOX_HEIGHT / 2)]
    for via, level in points:
        stops += [(via, level - BOX_HEIGHT / 2), (via, level + BOX_HEIGHT / 2)]
    stops.append((u, v - BOX_HEIGHT / 2))
    path = f"M{stops[0][0]:.0f} {stops[0][1]:.0f}"
    for index, ((x, y), (u, v)) in enumerate(zip(stops, stops[1:])):
        bend = (v - y) * 0.45
        straight = index % 2 == 1
        curve = f"C{x:.0f} {y + bend:.0f} {u:.0f} {v - bend:.0f} {u:.0f} {v:.0f}"
        path += f"V{v:.0f}" if straight else curve
    return f'<path class="{"circle" if circle else "down"}" marker-end="url(#a)" d="{path}"/>'


def text(x, y, what, anchor="middle", kind=""):
    what = what.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{kind}>{what}</text>'


def draw(root):
    edges = included_folders(root)
    rows, pairs = rows_of(edges), essential(edges)
    at = places(rows, pairs)
    top = MARGIN + len(rows) * ROW
    order = [f for row in reversed(rows) for f in sorted(row, key=lambda f: at[f][0])]
    height = top + 50 + LINE * len(order)
    cell = min(56, (WIDTH - NAMES) / len(order))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">',
        "<!-- Made by docs/floors.py from the includes of the sources. Do not edit. -->",
        "<style>svg{font:13px sans-serif;background:#fff;color:#222}text{fill:currentColor}"
        "rect{fill:#eef2f8;stroke:#6b7d99}path{fill:none;stroke:#8a94a3}.circle{stroke:#c22}"
        ".n{font-size:11px}@media(prefers-color-scheme:dark){svg{background:#15181d;color:#ddd}"
        "rect{fill:#242b36;stroke:#7f8da3}}</style>",
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#8a94a3;stroke:none"/></marker></defs>',
    ]
    out += [arrow(a, b, circle, rows, at) for a, b, circle in pairs]
    for folder in order:
        x, y = at[folder]
        out.append(
            f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{BOX_WIDTH}" '
            f'height="{BOX_HEIGHT}" rx="4"/>'
        )
        out.append(text(x, y + 5, folder))
    out.append(text(MARGIN, top + 10, "what each part (row) includes:", "start"))
    for j, name in enumerate(order):
        out.append(text(NAMES + (j + 0.5) * cell, top + 34, name, kind=' class="n"'))
    for i, folder in enumerate(order):
        y = top + 56 + LINE * i
        out.append(text(NAMES - 8, y, folder, "end"))
        for j, name in enumerate(order):
            shown = "●" if name in edges[folder] else "·"
            out.append(text(NAMES + (j + 0.5) * cell, y, shown, kind=' class="n"'))
    out.append("</svg>")
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    root = pathlib.Path(__file__).resolve().parent.parent
    if "--print" in sys.argv[1:]:
        sys.stdout.write(draw(root))
    else:
        (root / "docs/floors.svg").write_text(draw(root))
