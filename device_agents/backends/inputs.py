"""Input arrays that probes share."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from device_agents import arrays


class InputBuffer:
    """Memory that the inputs of all probes are views of, so that inputs are as cached as those of a network."""

    def __init__(self) -> None:
        self._views: Dict[str, "np.ndarray[Any, Any]"] = {}

    def view(self, spec: Dict[str, Any], index: int) -> "np.ndarray[Any, Any]":
        """Return the values for the probe's input number `index`, in memory shared with other probes."""
        values = {name: spec.get(name) for name in ("dtype", "distribution", "low", "high", "scale")}
        key = f"{index} {sorted(values.items(), key=str)}"
        count = int(np.prod([int(size) for size in spec["shape"]], dtype=np.int64))
        held = self._views.get(key)
        if held is None or held.size < count:
            held = arrays.make({**spec, "shape": [count], "seed": index})
            self._views[key] = held
        return held[:count].reshape([int(size) for size in spec["shape"]])
