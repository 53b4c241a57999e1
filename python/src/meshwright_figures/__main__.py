"""What the program starts: `python meshwright_figures REQUEST ANSWER`, both files of JSON."""

from __future__ import annotations

import json
import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from meshwright_figures.refused import Refused  # noqa: E402


def answer_to(request: dict) -> dict:
    """Draws what is asked for. Raises Refused."""
    try:
        import matplotlib
        import numpy  # noqa: F401
    except ImportError as error:
        raise Refused(
            "python.missing",
            f"--figures: {sys.executable} cannot import {error.name}, which draws them",
            f"{sys.executable} -m pip install numpy matplotlib, or set MESHWRIGHT_PYTHON to a "
            "Python that has both",
            environment=True,
        ) from None
    if tuple(map(int, matplotlib.__version__.split(".")[:2])) < (3, 6):
        raise Refused(
            "python.missing",
            f"--figures: {sys.executable} has matplotlib {matplotlib.__version__}, and 3.6 or "
            "later is needed",
            f"{sys.executable} -m pip install --upgrade matplotlib",
            environment=True,
        )
    from meshwright_figures.figures import figures_of

    figures, not_drawn = figures_of(request)
    from meshwright_figures.files import write_figures

    return write_figures(figures, not_drawn, request["asked"])


def main() -> None:
    """Reads the request and writes the answer, or what is wrong with the request."""
    asked, answer = sys.argv[1:]
    with open(asked, encoding="utf-8") as file:
        request = json.load(file)
    try:
        result = answer_to(request)
    except Refused as refused:
        result = {"error": refused.facts}
    with open(answer, "w", encoding="utf-8") as file:
        json.dump(result, file)


main()
