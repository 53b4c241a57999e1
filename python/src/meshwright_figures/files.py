"""Writes figures: SVG, PDF and PGF, the numbers as CSV, tables for LaTeX."""

from __future__ import annotations

import csv
import io
import logging
import os
import pathlib
import shutil
import subprocess

import matplotlib
from matplotlib import font_manager

from meshwright_figures.drawing import SETTINGS, Drawing, tex_text
from meshwright_figures.figures import Figure
from meshwright_called import Refused

MARK = b"meshwright report "  # in all files that are replaced


def number(value: float | None, tex: bool = False) -> str:
    """A number in a table; one that is not known is left out, or a dash in LaTeX."""
    if value is None:
        return "--" if tex else ""
    if not tex:
        return f"{value:.10g}"
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def table_of(figure: Figure) -> list[list]:
    """The rows of the CSV, the first one with the names of the columns."""
    unit = f" ({figure.x_label})" if figure.x_label else ""
    if figure.kind == "timeline":
        rows = [["row", "work", "label", f"start{unit}", f"end{unit}"]]
        for span in figure.spans:
            name, kind = figure.bars[span.row].name, figure.series[span.kind].name
            rows.append([name, kind, span.label, number(span.start), number(span.end)])
        return rows
    if figure.kind == "curves":
        areas = any(series.low for series in figure.series)
        rows = [
            [
                "series",
                "name",
                figure.x_label,
                figure.y_label,
                *(["least", "greatest"] if areas else []),
            ]
        ]
        for series in figure.series:
            for n, (x, y) in enumerate(zip(series.x, series.y)):
                row = [series.name, series.names[n] if series.names else "", number(x), number(y)]
                if areas:
                    row += [number(of[n]) if of else "" for of in (series.low, series.high)]
                rows.append(row)
        return rows
    head = [figure.y_label]
    for series in figure.series:
        head += [series.name + unit, *([f"{series.name} ±"] if series.spread else [])]
    rows = [[*head, *([figure.mark_name + unit] if figure.marks else [])]]
    for n, bar in enumerate(figure.bars):
        row = [bar.name]
        for series in figure.series:
            row += [number(series.y[n]), *([number(series.spread[n])] if series.spread else [])]
        rows.append([*row, *([number(figure.marks[n])] if figure.marks else [])])
    return rows


def csv_of(figure: Figure, made_by: str) -> str:
    """Its numbers."""
    out = io.StringIO()
    out.write(f"# made by: {made_by}\n")
    csv.writer(out, lineterminator="\n").writerows(table_of(figure))
    return out.getvalue()


def cells_of(figure: Figure) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table for LaTeX. Bars beside each other are columns."""

    def cell(series, n: int) -> str:
        half = series.spread[n] if series.spread else None
        return number(series.y[n], True) + (rf" $\pm$ {number(half, True)}" if half else "")

    if figure.columns and figure.kind == "bars":
        rows: dict[str, dict[str, str]] = {}
        for n, bar in enumerate(figure.bars):
            name = bar.row + (f" ({bar.heading})" if bar.heading else "")
            rows.setdefault(name, {})[bar.column] = cell(figure.series[0], n)
        body = [
            [tex_text(name), *(of.get(c, "--") for c in figure.columns)]
            for name, of in rows.items()
        ]
        return [figure.y_label, *figure.columns], body
    head = [figure.y_label, *(series.name for series in figure.series)]
    body = []
    for n, bar in enumerate(figure.bars):
        row = [tex_text(bar.name), *(cell(series, n) for series in figure.series)]
        body.append([*row, *([number(figure.marks[n], True)] if figure.marks else [])])
    return [*head, *([figure.mark_name] if figure.marks else [])], body


def tex_of(figure: Figure, made_by: str) -> str:
    """A table for LaTeX."""
    head, body = cells_of(figure)
    lines = [
        f"% made by: {made_by}",
        rf"% {figure.title}; needs \usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(map(tex_text, head)) + r" \\",
    ]
    if figure.x_label:
        lines.append(rf" & \multicolumn{{{len(head) - 1}}}{{r}}{{{tex_text(figure.x_label)}}} \\")
    lines += [r"\midrule", *(" & ".join(row) + r" \\" for row in body)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def check_folder(folder: pathlib.Path, names: list[str]) -> None:
    """Raises Refused where a file is there that this did not make, or nothing can be written."""
    for name in names:
        file = folder / name
        if file.exists() and not (file.is_file() and MARK in file.read_bytes()):
            raise Refused(
                "page.foreign",
                f"--figures {file}: it is there, and it is no figure of meshwright",
                "name another folder; figures that are there are replaced",
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise Refused(
            "file.write",
            f"--figures {folder}: cannot write it: {error.strerror}",
            "name a folder that you may write to",
        ) from None


def has_pgf() -> bool:
    """Whether there is LaTeX with what PGF needs."""
    if not shutil.which("pdflatex") or not shutil.which("kpsewhich"):
        return False
    return subprocess.run(["kpsewhich", "pgf.sty"], capture_output=True).returncode == 0


def drawn_files(figure: Figure, asked: dict) -> dict[str, bytes]:
    """The drawing, by the endings of its files."""
    width, font, made_by = asked["width"], asked["font"], asked["made_by"]
    files = {}
    canvas = Drawing(figure, width, font).draw()
    with matplotlib.rc_context(SETTINGS):
        for ending in ("svg", "pdf"):
            out = io.BytesIO()
            about = (
                {"Date": None, "Description": made_by}
                if ending == "svg"
                else {"CreationDate": None}
            )
            canvas.savefig(out, format=ending, metadata={"Title": figure.title, **about})
            files[ending] = out.getvalue()
        if asked["pgf"]:
            out = io.StringIO()
            Drawing(figure, width, font, tex=True).draw().savefig(out, format="pgf")
            files["pgf"] = f"% made by: {made_by}\n{out.getvalue()}".encode()
    # Readers of PDF skip a comment before the last lines.
    text = files["pdf"]
    at = text.rfind(b"startxref")
    files["pdf"] = text[:at] + f"% made by: {made_by}\n".encode() + text[at:]
    return files


def write_figures(figures: list[Figure], not_drawn: list[dict], asked: dict) -> dict:
    """Writes all files. Raises Refused before any is written."""
    logging.getLogger("matplotlib").setLevel(
        logging.ERROR
    )  # a font that is not there is said below
    asked = {**asked, "made_by": " ".join(asked["made_by"].splitlines())}
    folder = pathlib.Path(asked["folder"])
    endings = ["svg", "pdf", "csv", "tex", *(["pgf"] if asked["pgf"] else [])]
    check_folder(folder, [f"{figure.name}.{ending}" for figure in figures for ending in endings])
    if asked["pgf"] and not has_pgf():
        raise Refused(
            "program.missing",
            "--pgf: pdflatex with the package pgf is not there, which measures the texts of PGF",
            "install LaTeX with the package pgf (Debian's texlive-pictures), or leave out --pgf",
            stage="environment",
        )
    result: dict = {"figures": [], "not_drawn": not_drawn}
    for figure in figures:
        files = {} if figure.kind == "table" else drawn_files(figure, asked)
        files["csv"] = csv_of(figure, asked["made_by"]).encode()
        if figure.kind not in ("curves", "timeline"):
            files["tex"] = tex_of(figure, asked["made_by"]).encode()
        paths = []
        for ending, content in files.items():
            path = folder / f"{figure.name}.{ending}"
            path.write_bytes(content)
            paths.append(str(path))
        result["figures"].append(
            {
                "name": figure.name,
                "title": figure.title,
                "files": paths,
                "left_out": figure.left_out,
            }
        )
    font = Drawing(Figure("bars", "", ""), asked["width"], asked["font"]).font
    found = font_manager.FontProperties(fname=font_manager.findfont(font))
    result["fonts"] = [found.get_name()]
    return result
