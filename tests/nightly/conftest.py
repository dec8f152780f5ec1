"""Watches made by a formula, which the tests of comparisons have, too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "slowdowns"))
