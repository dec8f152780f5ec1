"""The methods that estimate layer latencies; `estimators` implements them. The command line lists them as choices."""

from __future__ import annotations

from typing import Literal, get_args

LatencyMethod = Literal["joint", "chain", "difference", "regression"]
METHODS: tuple[LatencyMethod, ...] = get_args(LatencyMethod)
DEFAULT_METHOD: LatencyMethod = "joint"
