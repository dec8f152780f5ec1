"""Inputs of probes, made once and shared."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from device_agents import arrays


class InputBuffer:
    """One region of memory that the inputs of all probes are views of, as a network's inputs would be."""

    def __init__(self) -> None:
        self._views: Dict[str, "np.ndarray[Any, Any]"] = {}

    def view(self, spec: Dict[str, Any], index: int) -> "np.ndarray[Any, Any]":
        """The values of a probe's input at that position, in memory that other probes' inputs share."""
        values = {name: spec.get(name) for name in ("dtype", "distribution", "low", "high", "scale")}
        key = f"{index} {sorted(values.items(), key=str)}"
        count = int(np.prod([int(size) for size in spec["shape"]], dtype=np.int64))
        held = self._views.get(key)
        if held is None or held.size < count:
            held = arrays.make({**spec, "shape": [count], "seed": index})
            self._views[key] = held
        return held[:count].reshape([int(size) for size in spec["shape"]])
