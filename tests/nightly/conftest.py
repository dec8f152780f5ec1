"""Makes the watches that tests of comparisons make by a formula importable here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "slowdowns"))
