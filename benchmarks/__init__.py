"""Benchmarks, one folder for each page of docs/ that they write; run them from the root of the repository.

`python -m benchmarks.accuracy`, `python -m benchmarks.emulator.networks`, …
`benchmarks.topologies` writes no page; it writes networks to measure.
"""

import sys
from pathlib import Path

# Networks, published figures and servers that the tests share are modules in the folders of the tests.
_TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path += [str(_TESTS), str(_TESTS / "stand_ins"), str(_TESTS / "predictor"), str(_TESTS / "emulated_npu")]
