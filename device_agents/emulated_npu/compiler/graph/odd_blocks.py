"""Odd blocks of a convolution by DFT: their sizes, and the closed forms of their storage and work (S4.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from device_agents.emulated_npu.arithmetic import ceil_div


@dataclass(frozen=True)
class OddBlocks:
    """A map of `map_size` (height, width) outputs cut into blocks of `length` x `length` inputs, an odd number.

    Blocks overlap by the kernel size minus one (overlap-save); each yields `valid` outputs. `channels` and `outputs`
    count those of one of `groups`; `pictures` is the batch.
    """

    length: int
    kernel: tuple[int, int]
    map_size: tuple[int, int]
    channels: int
    outputs: int
    groups: int = 1
    pictures: int = 1

    @property
    def half(self) -> int:
        """N of the length 2N + 1: the last frequency that is computed; symmetry yields the others."""
        return self.length // 2

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one channel: products need no sum, and one layer computes all groups."""
        return self.groups > 1 and self.channels == 1

    @property
    def valid(self) -> tuple[int, int]:
        """Outputs of a block in height and width that do not wrap around its ends."""
        return self.length - self.kernel[0] + 1, self.length - self.kernel[1] + 1

    @property
    def counts(self) -> tuple[int, int]:
        """Rows and columns of blocks of one picture."""
        return ceil_div(self.map_size[0], self.valid[0]), ceil_div(self.map_size[1], self.valid[1])

    @property
    def number(self) -> int:
        """Blocks of all pictures."""
        return self.pictures * math.prod(self.counts)

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width of the input that whole blocks cover."""
        rows, columns = self.counts
        return rows * self.valid[0] + self.kernel[0] - 1, columns * self.valid[1] + self.kernel[1] - 1

    @property
    def bins(self) -> int:
        """Independent frequencies of a block: F[u, v] = conj F[-u, -v]."""
        return (self.length**2 + 1) // 2

    @property
    def stored(self) -> int:
        """Complex results of the second direction for a block, including the redundant ones of line 0."""
        return (self.half + 1) * self.length

    @property
    def kernel_transforms(self) -> int:
        """Kernel DFTs: one for every kernel, which all blocks share."""
        return self.groups * self.channels * self.outputs


@dataclass(frozen=True)
class TransformedConvolution:
    """The layers of a graph that compute a convolution by DFT, by index.

    `layers` are all of them, `transforms` compute the second direction of the DFT, and `products` the pointwise
    product. `kernels` are the layers of the setup that compute the second direction of the kernel DFT.
    """

    name: str
    blocks: OddBlocks
    layers: range
    transforms: tuple[int, ...]
    products: tuple[int, ...]
    kernels: tuple[int, ...]
