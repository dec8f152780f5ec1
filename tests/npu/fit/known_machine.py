"""Layers of a machine whose numbers are known, with the latencies that it gives them."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from convolutions import convolution

from harness.latency.overhead import COLUMNS, Coefficient, Overhead
from harness.npu.fit.layer_samples import LayerSamples, rate_classes
from harness.npu.fit.machine_fit import DeviceSamples
from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import LayerFeatures, channelwise, matrix_product


@dataclass(frozen=True)
class KnownMachine:
    """A machine with its array, rates, start-up of a layer and overlap; features stay on chip."""

    rows: int = 32
    columns: int = 16
    clock_hz: float = 1e9
    lanes: int = 64
    bytes_per_s: float = 1e10
    start_s: float = 2e-6
    overlap: float = 1.0
    noise: float = 0.01

    def latency_s(self, layer: LayerFeatures, chance: random.Random) -> float:
        """Return the latency of one layer with noise."""
        if layer.operator.startswith("mac"):
            channels = layer.in_channels // layer.groups
            depth = layer.kernel[0] * layer.kernel[1] * math.ceil(channels / self.rows)
            cycles = layer.groups * layer.rows * math.ceil(layer.columns / self.columns) * depth
        else:
            cycles = math.ceil(layer.macs / self.lanes)
        compute, transfer = cycles / self.clock_hz, layer.weight_bytes / self.bytes_per_s
        whole = self.start_s + compute + transfer - self.overlap * min(compute, transfer)
        return whole * chance.gauss(1.0, self.noise)


def varied_layers(count: int, seed: int, multiple: int = 1) -> Iterator[LayerFeatures]:
    """Yield convolutions, products and sums of random sizes, with channels that are multiples of `multiple`."""
    chance = random.Random(seed)

    def channels(most: int) -> int:
        return multiple * max(1, round(math.exp(chance.uniform(math.log(8), math.log(most))) / multiple))

    for at in range(count):
        edge = chance.choice((7, 14, 28, 56))
        if at % 4 == 3:
            yield channelwise(
                "move/map/simple/Add", batch=1, channels=channels(512), in_size=(edge, edge), out_size=(edge, edge)
            )
        elif at % 4 == 2:
            product = matrix_product(rows=chance.choice((1, 16, 1024)), depth=channels(2048), columns=channels(2048))
            yield replace(product, operator="mac/product/weights/plain")
        else:
            size = chance.choice((1, 3))
            layer = convolution(
                batch=1,
                in_channels=channels(512),
                out_channels=channels(512),
                size=(edge, edge),
                kernel=(size, size),
                padding=(size // 2, size // 2),
            )
            yield replace(layer, operator="mac/conv/dense/Relu")


def overhead(c_s: float = 7e-5) -> Overhead:
    """Return an overhead with a, b and c known to 1 %, and nothing else known."""
    values = {"runs": c_s, "input_bytes": 1e-9, "output_bytes": 7.5e-10}
    known = {name: Coefficient(one, 0.005 * one, 0.99 * one, 1.01 * one) for name, one in values.items()}
    coefficients = {name: known.get(name, Coefficient(0.0, 0.0, 0.0, 0.0)) for name in COLUMNS}
    covariance = tuple((0.0,) * len(COLUMNS) for _ in COLUMNS)
    return Overhead(coefficients, covariance, values, 1.0, 1.0, 2.0, 0.0, 40)


def samples(layers: list[LayerFeatures], machine: KnownMachine, seed: int = 0) -> DeviceSamples:
    """Return the samples that a device with this machine gives."""
    chance = random.Random(seed)
    latency_s = np.array([machine.latency_s(layer, chance) for layer in layers])
    names = tuple(f"layer {at}" for at in range(len(layers)))
    arrays, biased = layer_arrays(layers), np.zeros(len(layers), dtype=np.bool_)
    columns = LayerSamples(names, names, arrays, rate_classes(arrays), biased, latency_s, 0.005 * latency_s)
    return DeviceSamples("known", columns, overhead())
