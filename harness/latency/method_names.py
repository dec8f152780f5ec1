"""The methods that estimate layer latencies; `estimators` implements them. The command line lists them as choices."""

from typing import Literal, get_args

LatencyMethod = Literal["joint", "chain", "difference", "regression", "regression-terms"]
METHODS: tuple[LatencyMethod, ...] = get_args(LatencyMethod)
DEFAULT_METHOD: LatencyMethod = "joint"
COMPARISON_METHODS: tuple[LatencyMethod, ...] = ("chain", "difference", "regression", "regression-terms")
"""Tables made by these are used only where `--lut` names them."""
