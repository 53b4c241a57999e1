"""What the program starts; see meshwright_called."""

from __future__ import annotations

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from meshwright_called import Refused, answer  # noqa: E402


def drawn(request: dict) -> dict:
    """Draws what is asked for. Raises Refused."""
    import matplotlib

    if tuple(map(int, matplotlib.__version__.split(".")[:2])) < (3, 6):
        raise Refused(
            "python.missing",
            f"--figures: {sys.executable} has matplotlib {matplotlib.__version__}, and 3.6 or "
            "later is needed",
            f"{sys.executable} -m pip install --upgrade matplotlib",
            stage="environment",
        )
    from meshwright_figures.figures import figures_of

    figures, not_drawn = figures_of(request)
    from meshwright_figures.files import write_figures

    return write_figures(figures, not_drawn, request["asked"])


answer(drawn, "--figures", "numpy matplotlib")
