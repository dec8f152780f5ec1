"""A backend whose latencies come from a formula, on a virtual clock: it tests the harness itself.

`total = c + a * input_bytes + b * output_bytes + w * weight_bytes`, times a seeded log-normal factor. The options set
the coefficients. Only weights depend on the layer, so true layer latencies are known, and nothing is fused. After
`slower_after` runs all latencies are multiplied by `slowdown`, like on a board that gets hot.
"""

from __future__ import annotations

import math
import random
import time
from typing import Any, Dict, Optional, Tuple

from device_agents.backends.option_reader import MOST_SEED, OptionReader
from device_agents.messages import LoadRequest, Revealed, Sample

_BYTES = {"float32": 4, "float64": 8, "float16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
_OPTIONS = {"a_s_per_byte", "b_s_per_byte", "c_s", "weight_s_per_byte", "noise", "seed", "slower_after", "slowdown"}
_HIDDEN = ("slower_after", "slowdown")


class NullBackend:
    """Reports latencies from a formula; it executes nothing and never sleeps."""

    name = "null"
    clock = "device"
    reveals: Tuple[str, ...] = ("unfused",)

    def __init__(self, options: Dict[str, Any]) -> None:
        read = OptionReader(self.name, options, _OPTIONS)
        self._a_s = read.number("a_s_per_byte", 1e-10, 10)
        self._b_s = read.number("b_s_per_byte", 2e-10, 10)
        self._c_s = read.number("c_s", 1e-4, 10)
        self._weight_s = read.number("weight_s_per_byte", 1e-9, 10)
        self._noise = read.number("noise", 0, 10)
        self._random = random.Random(read.whole("seed", 0, -MOST_SEED, MOST_SEED))  # noqa: S311 - noise, no secret
        self._slower_after = read.number("slower_after", math.inf, math.inf)
        self._slowdown = read.number("slowdown", 1, 1000)
        self._runs = 0
        self._options = options
        self._latency_s: Dict[str, float] = {}

    def fingerprint(self) -> Dict[str, str]:
        """Return the coefficients: another formula is another device. The planned slowdown stays hidden."""
        kept = {name: value for name, value in self._options.items() if name not in _HIDDEN}
        settings = ",".join(f"{name}={value}" for name, value in sorted(kept.items()))
        return {"runtime": "null", "runtime_version": "1", "settings": settings}

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Compute the latency of the probe."""
        read = sum(_bytes(spec) for spec in request.inputs)
        weights = sum(_bytes(spec) for spec in request.weights)
        self._latency_s[request.probe] = (
            self._c_s + self._a_s * read + self._b_s * request.output_bytes + self._weight_s * weights
        )
        return None

    def unload(self, probe: str) -> None:
        """Forget the probe."""
        self._latency_s.pop(probe, None)

    def run(self, probe: str) -> Sample:
        """Return the latency as device time, and the wall time of this call."""
        start = time.perf_counter_ns()
        factor = self._random.lognormvariate(0.0, self._noise) if self._noise else 1.0
        factor *= self._slowdown if self._runs >= self._slower_after else 1.0
        self._runs += 1
        device_ns = max(1, round(self._latency_s[probe] * factor * 1e9))
        return Sample(wall_ns=max(1, time.perf_counter_ns() - start), device_ns=device_ns)


def _bytes(spec: Dict[str, Any]) -> int:
    return math.prod(map(int, spec["shape"])) * _BYTES.get(spec["dtype"], 4)
