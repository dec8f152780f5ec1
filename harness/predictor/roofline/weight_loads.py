"""The latency of layers after subtracting the weight loads that preceding layers hide.

The probe of a single layer includes the full load of its weights, except for the part that its own work hides. In a
network, a device with its own memory also loads them while earlier layers leave the memory idle, as far as its
buffer has room beside the weights in use. So the sum of single layers is too long for a network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.array_types import Floats
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.roofline.roofline import Roofline


@dataclass(frozen=True)
class WeightLoads:
    """The parts of the rooflines of a network's layers, in their order, (layers,).

    `loads_s` are the loads of weights, `others_s` kernel and memory together, which overlap with them by `power`.
    `memory_s` also occupies the memory. `launch_s` comes in addition.
    """

    weight_bytes: Floats
    loads_s: Floats
    others_s: Floats
    memory_s: Floats
    launch_s: Floats
    power: float

    @classmethod
    def of(cls, roofline: Roofline, arrays: LayerArrays) -> WeightLoads:
        """Return the parts of some layers."""
        terms, power = roofline.terms(arrays), 1.0 + float(np.exp(roofline.overlap))
        kernel_s, memory_s, loads_s = (np.exp(term) for term in (terms.kernel, terms.memory, terms.weights))
        others_s = (kernel_s**power + memory_s**power) ** (1.0 / power)
        together_s = (others_s**power + loads_s**power) ** (1.0 / power)
        launch_s = np.maximum(np.exp(terms.latency) - together_s, 0.0)
        return cls(arrays.weight_bytes, loads_s, others_s, memory_s, launch_s, power)

    def left(self, ahead_bytes: float) -> Floats:
        """Return the share of each layer's latency that remains if the buffer of weights has so many bytes."""
        shares, whole_s = np.ones(len(self.loads_s)), self._latency_s(self.loads_s)
        own = self.weight_bytes > 0.0
        if not ahead_bytes or not own.any():
            return shares
        bytes_per_s = 1.0 / float(np.median(self.loads_s[own] / self.weight_bytes[own]))
        ready = 0.0
        for at, (size, load_s) in enumerate(zip(self.weight_bytes.tolist(), self.loads_s.tolist(), strict=True)):
            used = min(ready, size)
            rest_s = load_s * (1.0 - used / size) if size else 0.0
            latency_s = float(self._latency_s(rest_s, at))
            idle_s = max(0.0, latency_s - rest_s - float(self.memory_s[at]))
            ready = min(max(0.0, ahead_bytes - size), ready - used + idle_s * bytes_per_s)
            shares[at] = latency_s / whole_s[at]
        return shares

    def _latency_s(self, loads_s: Floats | float, at: int | slice = slice(None)) -> Floats:
        joined_s = (self.others_s[at] ** self.power + loads_s**self.power) ** (1.0 / self.power)
        return np.asarray(self.launch_s[at] + joined_s)


LoadsOf = Callable[[Sequence[LayerFeatures]], WeightLoads]
"""Returns the loads of weights of a network's layers, in their order."""
