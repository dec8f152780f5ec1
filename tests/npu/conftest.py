"""Put the helper modules of tests/emulated_npu on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulated_npu"))
