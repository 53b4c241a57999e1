"""What the program starts; see meshwright_called."""

from __future__ import annotations

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from meshwright_calibrate.describe import Describer  # noqa: E402
from meshwright_called import answer, ask  # noqa: E402

answer(lambda request: Describer(request, ask).run(), "--from", "numpy")
