"""The attributes of windows over the spatial axes of a feature map: kernels, strides, dilations and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.reading.parsed_model import OnnxNode, unsupported
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_settings import Settings, Triple

MAX_SPATIAL_AXES = 3
MAX_WINDOW = 2**21 - 1
"""The largest kernel, stride or dilation along an axis that an instruction holds."""
MAX_PAD = 2**20 - 1
"""The largest padding along an axis that an instruction holds."""


@dataclass(frozen=True)
class Window:
    """A window, with one entry for every spatial axis; `before` and `after` are the padding."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """Input elements that a window spans."""
        return tuple((kernel - 1) * step + 1 for kernel, step in zip(self.kernel, self.dilation, strict=True))

    def elements(self, axis: int, count: int, size: int) -> Array:
        """Return the elements of `count` windows along an axis; a tap on padding has the nearest one of its window."""
        first, step = np.arange(count)[:, None] * self.stride[axis] - self.before[axis], self.dilation[axis]
        taps = np.clip(np.arange(self.kernel[axis]), -(first // step), (size - 1 - first) // step)
        elements: Array = np.clip(first + taps * step, 0, size - 1)
        return elements

    def without_padding(self) -> Window:
        """Return the window for a map that includes the padding."""
        zeros = (0,) * len(self.kernel)
        return replace(self, before=zeros, after=zeros)

    def lies_outside(self, spatial: Sequence[int], counts: Sequence[int]) -> bool:
        """Return whether the first or the last of `counts` windows along an axis covers only padding."""
        axes = zip(self.before, self.reach, counts, self.stride, spatial, strict=True)
        return any(
            before >= reach or (count - 1) * stride - before >= size for before, reach, count, stride, size in axes
        )

    def settings(self, mode: int = 0) -> Settings:
        """Return the settings of a layer; its output determines the trailing padding."""
        return Settings(
            kernel=triple(self.kernel, 1),
            stride=triple(self.stride, 1),
            dilation=triple(self.dilation, 1),
            pad=triple(self.before, 0),
            mode=mode,
        )


def triple(sizes: Sequence[int], filler: int) -> Triple:
    """Return sizes right-aligned in three spatial axes."""
    first, second, third = (*[filler] * (MAX_SPATIAL_AXES - len(sizes)), *sizes)
    return first, second, third


def read_window(node: OnnxNode, kernel: Sequence[int], spatial: Sequence[int]) -> Window:
    """Return the window of a node over a map of `spatial` size; raises UnsupportedOperator beyond 3 axes."""
    count = len(spatial)
    if not 1 <= count <= MAX_SPATIAL_AXES:
        raise unsupported(node, f"It has {count} spatial axes; 1 to {MAX_SPATIAL_AXES} are supported")
    stride = tuple(node.attribute("strides", [1] * count))
    dilation = tuple(node.attribute("dilations", [1] * count))
    before = after = (0,) * count
    window = Window(tuple(kernel), stride, dilation, before, after)
    automatic = (node.attribute("auto_pad") or b"NOTSET").decode()
    if automatic == "NOTSET":
        pads = tuple(node.attribute("pads", [0] * 2 * count))
        if any(pad < 0 for pad in pads):
            raise unsupported(node, "It has negative padding")
        before, after = pads[:count], pads[count:]
    elif automatic in ("SAME_UPPER", "SAME_LOWER"):
        before, after = _same(window, spatial, automatic == "SAME_LOWER")
    elif automatic != "VALID":
        raise unsupported(node, f"Its auto_pad {automatic[:40]!r} is not supported")
    return replace(window, before=before, after=after)


def _same(window: Window, spatial: Sequence[int], larger_before: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding for outputs of size ceil(input / stride)."""
    before, after = [], []
    for size, stride, reach in zip(spatial, window.stride, window.reach, strict=True):
        total = max((ceil_div(size, stride) - 1) * stride + reach - size, 0)
        half = total // 2
        before.append(total - half if larger_before else half)
        after.append(half if larger_before else total - half)
    return tuple(before), tuple(after)
