"""The latency of layers after subtracting the weight loads that preceding layers hide.

The probe of a single layer includes the full load of its weights, except for the part that its own work hides. In a
network, a device with its own memory also loads them while earlier layers leave the memory idle, if its buffer has room
beside the weights in use. So the sum of single layers is too long for a network. Transfers are in order: a layer that
moves rows to or from computed places holds up the loads behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.array_types import Floats, Ints, Mask
from harness.predictor.features.data_movement_classes import PICKED, SCATTERED
from harness.predictor.features.layer_arrays import LayerArrays
from harness.predictor.features.layer_features import LayerFeatures
from harness.predictor.roofline.roofline import Roofline


@dataclass(frozen=True)
class WeightLoads:
    """The parts of the rooflines of some layers, (layers,).

    `loads_s` are the loads of weights, `others_s` kernel and memory together, which overlap with them by `power`.
    `memory_s` also occupies the memory. `launch_s` comes in addition. `picks` states which have computed places.
    """

    weight_bytes: Floats
    loads_s: Floats
    others_s: Floats
    memory_s: Floats
    launch_s: Floats
    power: float
    picks: Mask

    @classmethod
    def of(cls, roofline: Roofline, arrays: LayerArrays) -> WeightLoads:
        """Return the parts of some layers."""
        terms, power = roofline.terms(arrays), 1.0 + float(np.exp(roofline.overlap))
        kernel_s, memory_s, loads_s = (np.exp(term) for term in (terms.kernel, terms.memory, terms.weights))
        others_s = (kernel_s**power + memory_s**power) ** (1.0 / power)
        together_s = (others_s**power + loads_s**power) ** (1.0 / power)
        launch_s = np.maximum(np.exp(terms.latency) - together_s, 0.0)
        picks = np.array([path.startswith((PICKED, SCATTERED)) for path in arrays.paths], dtype=bool)
        return cls(arrays.weight_bytes, loads_s, others_s, memory_s, launch_s, power, picks)

    def with_idle_layer(self) -> WeightLoads:
        """Return these layers and one more, which changes nothing: it loads nothing and keeps the memory busy."""
        return replace(
            self,
            weight_bytes=np.append(self.weight_bytes, 0.0),
            loads_s=np.append(self.loads_s, 0.0),
            others_s=np.append(self.others_s, 1.0),
            memory_s=np.append(self.memory_s, 1.0),
            launch_s=np.append(self.launch_s, 0.0),
            picks=np.append(self.picks, False),
        )

    def left(self, ahead_bytes: float, order: Ints | None = None) -> Floats:
        """Return the share of each layer's latency that remains if the buffer of weights has so many bytes.

        `order` are the numbers of a network's layers, (steps,), or those of many networks, (steps, networks). Without
        it, these layers are those of one network.
        """
        order = np.arange(len(self.loads_s)) if order is None else order
        shares = np.ones(order.shape)
        if not ahead_bytes or not len(order):
            return shares
        s_per_byte, others = self._s_per_byte, self.others_s**self.power
        whole_s = self._latency_s(others, s_per_byte * self.weight_bytes, self.launch_s)
        room = np.maximum(ahead_bytes - self.weight_bytes, 0.0)
        ready, bytes_per_s = np.zeros(order.shape[1:]), self._bytes_per_s(order)
        for at, layer in enumerate(order):
            size = self.weight_bytes[layer]
            used = np.minimum(ready, size)
            rest_s = (size - used) * s_per_byte[layer]
            latency_s = self._latency_s(others[layer], rest_s, self.launch_s[layer])
            idle_s = np.maximum(latency_s - rest_s - self.memory_s[layer], 0.0)
            ready = np.minimum(room[layer], ready - used + idle_s * bytes_per_s) * ~self.picks[layer]
            shares[at] = latency_s / whole_s[layer]
        return shares

    @property
    def _s_per_byte(self) -> Floats:
        """The seconds in which each layer loads a byte of its weights, 0 without weights."""
        return _ratio(self.loads_s, self.weight_bytes)

    def _bytes_per_s(self, order: Ints) -> Floats:
        """Return the rate of the median of each network's layers with weights, 0 without any."""
        held = np.sort(self._s_per_byte[order], axis=0)
        first = np.count_nonzero(held == 0.0, axis=0)  # layers without weights come first
        last, most = np.asarray(first + len(order)), len(order) - 1
        middle = [np.minimum(at, most)[None] for at in ((last - 1) // 2, last // 2)]
        twice_s = sum(np.take_along_axis(held, at, axis=0)[0] for at in middle)
        return _ratio(np.full_like(twice_s, 2.0), twice_s)

    def _latency_s(self, others: Floats, loads_s: Floats, launch_s: Floats) -> Floats:
        """Return launch, and what overlaps with the loads; `others` are to the power already."""
        return np.asarray(launch_s + (others + loads_s**self.power) ** (1.0 / self.power))


def _ratio(values: Floats, divisors: Floats) -> Floats:
    """Return quotients, 0 where a divisor is 0."""
    return np.divide(values, divisors, out=np.zeros_like(values), where=divisors > 0.0)


LoadsOf = Callable[[Sequence[LayerFeatures]], WeightLoads]
"""Returns the loads of weights of a network's layers, in their order."""
