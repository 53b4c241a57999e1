"""What the program starts; see meshwright_called."""

from __future__ import annotations

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from meshwright_called import answer  # noqa: E402
from meshwright_chaos.conductor import conduct  # noqa: E402

answer(conduct, "chaos", "")
