"""Collects the layers and values that replace a convolution (S4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import known
from device_agents.emulated_npu.compiler.graph.hardware_graph import (
    HardwareLayer,
    LazyConstant,
    Value,
    View,
    constant_value,
)
from device_agents.emulated_npu.compiler.graph.odd_blocks import OddBlocks
from device_agents.emulated_npu.compiler.odd_dft.levels import ROLES, Role
from device_agents.emulated_npu.numpy_types import Float64Array
from device_agents.emulated_npu.unit_commands import DataType, Function
from device_agents.emulated_npu.unit_settings import PLAIN, Settings

PARTS = Settings(kernel=(1, 1, 2))
"""A window over the real and the imaginary part, which the matrix unit sums."""


@dataclass
class Rewriting:
    """The layers and values that replace one convolution; methods add to them.

    `roles` lists the values that lie off chip. `transforms` and `products` are places of layers, as in
    `TransformedConvolution`.
    """

    layer: HardwareLayer
    blocks: OddBlocks
    values: dict[str, Value] = field(default_factory=dict)
    layers: list[HardwareLayer] = field(default_factory=list)
    roles: dict[Role, list[str]] = field(default_factory=lambda: {role: [] for role in ROLES})
    transforms: list[int] = field(default_factory=list)
    products: list[int] = field(default_factory=list)

    def value(self, what: str, shape: Sequence[int], role: Role | None = None) -> str:
        """Add a value, with its axes in memory in their order; return its name."""
        name = f"{self.layer.name}/{what}"
        kind: Literal["setup", "activation"] = "setup" if role == "kernels" else "activation"
        self.values[name] = Value(name, tuple(shape), DataType.FLOAT32, tuple(range(len(shape))), kind)
        if role is not None:
            self.roles[role].append(name)
        return name

    def constant(self, constant: LazyConstant) -> View:
        """Add a constant as a value; return its view."""
        self.values[constant.name] = constant_value(constant)
        return views.whole(constant.name, constant.shape)

    def add(
        self,
        what: str,
        function: Function,
        inputs: Sequence[View],
        output: View,
        settings: Settings = PLAIN,
        weights: LazyConstant | None = None,
        residual: View | None = None,
    ) -> None:
        """Add a layer, named after the convolution and its own part in it; the caller numbers the layers."""
        name, reads = f"{self.layer.name} ({what})", tuple(inputs)
        self.layers.append(HardwareLayer(-1, name, (), function, reads, output, settings, weights, residual=residual))

    def multiply(self, what: str, inputs: Sequence[View], output: View, weights: LazyConstant | None = None) -> None:
        """Add a matrix product of one input and weights, or of two inputs."""
        self.add(what, Function.CONVOLVE, inputs, output, weights=weights)
        self.layers[-1] = replace(self.layers[-1], matrix=True)

    def matrix(self, what: str, array: Float64Array) -> LazyConstant:
        """Return a matrix of the transform as a constant, rounded once."""
        length = self.blocks.length
        return known(f"dft{length}/{what}/{'x'.join(map(str, array.shape))}", array, DataType.FLOAT32)

    def window(self, what: str, array: Float64Array) -> LazyConstant:
        """Return a matrix (results, positions, parts) as weights of a window over the parts."""
        return self.matrix(what, array.reshape(*array.shape[:2], 1, 1, array.shape[2]))
