"""The hardware layers of a convolution by odd-length DFT: transform, product and inverse (S4).

For a picture, with L the block length, N = L // 2, S the valid outputs of a block, TH x TW blocks:

==============  ===============================  ===================================================================
value           shape                            meaning
==============  ===============================  ===================================================================
blocks          (height, width, C)               the input padded to whole blocks: the high-level buffer
lines           (2 (N + 1), height, TW C)        row DFT: lines 0 .. N of every row of blocks, parts side by side
transform       (lines, L, 2, TH, TW C)          DFT across the lines: line 0 and lines 1 .. N are two values
product         (lines, bins, 2, TH, TW, 2 M)    parts of the transform by parts of the kernel DFT
spectrum        (lines, bins, 2, TH, TW M)       the complex product
columns         (N, 2, TH S, TW M)               inverse across the lines; line 0 is real: (TH S, TW M)
==============  ===============================  ===================================================================

The last layer computes the outputs from lines 1 .. N. At its end it adds line 0 with the shift of the channels and the
residual, and applies the activation; the scale of the channels is in the kernels. From the transform to the columns,
lines are independent: a chain that is cut along lines holds these values in NB and fetches every kernel DFT once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.constants import derived
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer, LazyConstant, View, ViewAxis
from device_agents.emulated_npu.compiler.graph.odd_blocks import OddBlocks
from device_agents.emulated_npu.compiler.graph.views import UNIT
from device_agents.emulated_npu.compiler.odd_dft import matrices
from device_agents.emulated_npu.compiler.odd_dft.rewriting import PARTS, Rewriting
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import PLAIN, Binary, Settings


def transform(layer: HardwareLayer, blocks: OddBlocks) -> Rewriting:
    """Return the layers of a 2D convolution of stride and dilation 1; the last one has the names of its nodes."""
    made = Rewriting(layer, blocks)
    length = blocks.length
    kernels = made.value("kernel DFT", kernel_shape(blocks), "kernels")
    for picture in range(blocks.pictures):
        of = f" {picture}" if blocks.pictures > 1 else ""
        high = _padded(made, picture, of)
        lines = _row_transform(made, high, of)
        line_0 = _Part(made, f"line 0{of}", 0, 1, length // 2 + 1)
        others = _Part(made, f"lines{of}", 1, length // 2, length)
        constant = line_0.inverse_line_0(line_0.spectrum(line_0.transform(lines), kernels))
        columns = others.inverse(others.spectrum(others.transform(lines), kernels))
        inverse_rows(made, columns, constant, picture, of)
    made.layers[-1] = replace(made.layers[-1], name=layer.name, nodes=layer.nodes)
    return made


def kernel_shape(blocks: OddBlocks) -> tuple[int, int, int, int, int]:
    """Return (lines, results, groups, input channels, 2 outputs): the real parts of a row, then the imaginary ones."""
    return blocks.half + 1, blocks.length, blocks.groups, blocks.channels, 2 * blocks.outputs


def _padded(made: Rewriting, index: int, of: str) -> str:
    """Add the map padded to whole blocks; every element is written once."""
    blocks, settings = made.blocks, made.layer.settings
    source = picture_of(made.layer.inputs[0], index)
    shape = (*blocks.padded, blocks.groups * blocks.channels)
    name = made.value(f"blocks{of}", shape, "blocks")
    output = views.whole(name, shape)
    for axis, first in enumerate(settings.pad[1:]):
        used = min(source.shape[axis], blocks.map_size[axis] + blocks.kernel[axis] - 1 - first)
        source = views.sliced(source, axis, 0, used)
        for start, count in ((0, first), (first + used, output.shape[axis] - first - used)):
            if count:
                border = views.sliced(output, axis, start, count)
                made.add(f"padding{of}", Function.FILL, [], border)
        output = views.sliced(output, axis, first, used)
    made.add(f"blocks{of}", Function.COPY, [source], output)
    return name


def _row_transform(made: Rewriting, high: str, of: str) -> str:
    """Add the row DFT: N + 1 results of every row of a block; rows that blocks share are transformed once."""
    blocks = made.blocks
    height, _ = blocks.padded
    columns, channels, length = blocks.counts[1], blocks.groups * blocks.channels, blocks.length
    results = 2 * (blocks.half + 1)
    name = made.value(f"row DFT{of}", (results, height, columns * channels), "lines")
    rows, wide, deep = ViewAxis(height, 0), ViewAxis(columns, 1, blocks.valid[1]), ViewAxis(channels, 2)
    source = View(high, (0, 0, 0), (rows, wide, deep, ViewAxis(length, 1)))
    axes = (ViewAxis(height, 1), ViewAxis(columns, 2, channels), ViewAxis(channels, 2), ViewAxis(results, 0))
    target = View(name, (0, 0, 0), axes)
    weights = made.matrix("lines", matrices.lines(length, length))
    made.multiply(f"row DFT{of}", [source], target, weights)
    return name


@dataclass(frozen=True)
class _Part:
    """The steps for `lines` lines from `first` on, with `bins` independent results: line 0, or all others."""

    made: Rewriting
    what: str
    first: int
    lines: int
    bins: int

    def transform(self, lines: str) -> str:
        """Add the DFT across the lines; (lines, L, 2, TH, TW C)."""
        blocks, made = self.made.blocks, self.made
        length, (rows, columns) = blocks.length, blocks.counts
        across = columns * blocks.groups * blocks.channels
        name = made.value(f"transform of {self.what}", (self.lines, length, 2, rows, across))
        parts = 2 if self.first else 1  # line 0 is real
        of_blocks = (ViewAxis(length, 1), ViewAxis(rows, 1, blocks.valid[0]), ViewAxis(across, 2))
        source = View(lines, (2 * self.first, 0, 0), (ViewAxis(self.lines, 0, 2), *of_blocks, ViewAxis(parts, 0)))
        axes = (ViewAxis(self.lines, 0), ViewAxis(length, 1), ViewAxis(rows, 3), ViewAxis(across, 4), UNIT)
        for part, (kind, make) in enumerate(matrices.ACROSS.items()):
            weights = made.window(f"across/{kind}", make(length, length)[:, :, :parts])
            settings = replace(PLAIN, kernel=(1, 1, parts))
            target = View(name, (0, 0, part, 0, 0), axes)
            made.transforms.append(len(made.layers))
            made.add(f"column DFT of {self.what}", Function.CONVOLVE, [source], target, settings, weights)
        return name

    def spectrum(self, transform: str, kernels: str) -> str:
        """Add the product of every independent bin, summed over channels; (lines, bins, 2, TH, TW M)."""
        blocks, made = self.made.blocks, self.made
        rows, columns = blocks.counts
        channels, outputs, groups = blocks.channels, blocks.outputs, blocks.groups
        shape = (self.lines, self.bins, 2, rows, columns, groups * 2 * outputs)
        products = made.value(f"product of {self.what}", shape)
        bins = (ViewAxis(self.lines, 0), ViewAxis(self.bins, 1))
        if blocks.is_depthwise:
            self._products_of_one(transform, kernels, products)
            return self._complex(products)
        for group in range(groups):
            across = (ViewAxis(columns, 4, groups * channels), ViewAxis(channels, 4))
            first = View(transform, (0, 0, 0, 0, group * channels), (*bins, ViewAxis(2, 2), ViewAxis(rows, 3), *across))
            second = View(
                kernels,
                (self.first, 0, group, 0, 0),
                (*bins, ViewAxis(2), ViewAxis(rows), ViewAxis(channels, 3), ViewAxis(2 * outputs, 4)),
            )
            target = View(
                products,
                (0, 0, 0, 0, 0, group * 2 * outputs),
                (*bins, ViewAxis(2, 2), ViewAxis(rows, 3), ViewAxis(columns, 4), ViewAxis(2 * outputs, 5)),
            )
            made.products.append(len(made.layers))
            made.multiply(f"product of {self.what}", [first, second], target)
        return self._complex(products)

    def _products_of_one(self, transform: str, kernels: str, products: str) -> None:
        """Add the products of groups of one channel, which need no sum: each map part times both kernel parts."""
        blocks, made = self.made.blocks, self.made
        rows, columns = blocks.counts
        groups, both = blocks.groups, ViewAxis(2 * blocks.outputs, 5)
        bins = (ViewAxis(self.lines, 0), ViewAxis(self.bins, 1))
        repeated = (ViewAxis(rows), ViewAxis(columns))
        for part in range(2):
            first = View(
                transform,
                (0, 0, part, 0, 0),
                (*bins, ViewAxis(rows, 3), ViewAxis(columns, 4, groups), ViewAxis(groups, 4), ViewAxis(both.size)),
            )
            second = View(
                kernels, (self.first, 0, 0, 0, 0), (*bins, *repeated, ViewAxis(groups, 2), replace(both, base=4))
            )
            target = View(
                products,
                (0, 0, part, 0, 0, 0),
                (*bins, ViewAxis(rows, 3), ViewAxis(columns, 4), ViewAxis(groups, 5, both.size), both),
            )
            made.products.append(len(made.layers))
            multiply = Settings(mode=Binary.MULTIPLY)
            made.add(f"product of {self.what}", Function.BINARY, [first, second], target, multiply)

    def _complex(self, products: str) -> str:
        """Add the parts of the complex product, from the products of parts."""
        blocks, made = self.made.blocks, self.made
        rows, columns = blocks.counts
        outputs, groups = blocks.outputs, blocks.groups
        name = made.value(f"spectrum of {self.what}", (self.lines, self.bins, 2, rows, columns * groups * outputs))

        def axes(inner: int, across: int, in_group: int) -> tuple[ViewAxis, ...]:
            outer = (ViewAxis(self.lines, 0), ViewAxis(self.bins, 1), ViewAxis(rows, 3))
            within = (ViewAxis(groups, inner, in_group),) if groups > 1 else ()
            return (*outer, ViewAxis(columns, 4, across), *within, ViewAxis(outputs, inner))

        def part(of_map: int, of_kernel: int) -> View:
            return View(products, (0, 0, of_map, 0, 0, of_kernel * outputs), axes(5, 1, 2 * outputs))

        sums = ((Binary.SUBTRACT, part(0, 0), part(1, 1)), (Binary.ADD, part(0, 1), part(1, 0)))
        for place, (mode, first, second) in enumerate(sums):
            target = View(name, (0, 0, place, 0, 0), axes(4, groups * outputs, outputs))
            made.add(f"product of {self.what}", Function.BINARY, [first, second], target, Settings(mode=mode))
        return name

    def _spectrum_view(self, spectrum: str) -> View:
        blocks = self.made.blocks
        rows, columns = blocks.counts
        across = ViewAxis(columns * blocks.groups * blocks.outputs, 4)
        axes = (ViewAxis(self.lines, 0), ViewAxis(self.bins, 1), ViewAxis(rows, 3), across, ViewAxis(2, 2))
        return View(spectrum, (0,) * 5, axes)

    def inverse_line_0(self, spectrum: str) -> str:
        """Add the inverse across line 0, which is real, with the shift of the channels; (TH S, TW M)."""
        blocks, made = self.made.blocks, self.made
        (valid, _), (rows, columns) = blocks.valid, blocks.counts
        across = columns * blocks.groups * blocks.outputs
        name = made.value(f"columns of {self.what}", (rows * valid, across))
        axes = (UNIT, ViewAxis(valid, 0), ViewAxis(rows, 0, valid), ViewAxis(across, 1), UNIT)
        weights = made.window("inverse/0", matrices.inverse_line_0(blocks.length, valid))
        shift = None if made.layer.scale_shift is None else self._shift(made.layer.scale_shift)
        source, target = self._spectrum_view(spectrum), View(name, (0, 0), axes)
        made.add(f"inverse DFT of {self.what}", Function.CONVOLVE, [source], target, PARTS, weights, shift)
        return name

    def _shift(self, pair: LazyConstant) -> View:
        """Return the shift of every channel for every column of blocks, repeated over all rows."""
        blocks, columns = self.made.blocks, self.made.blocks.counts[1]
        across = columns * pair.shape[1]
        name = f"{self.made.layer.name}/shift"
        shift = derived(name, (across,), pair.dtype, (pair,), lambda array: np.tile(array[1], columns))
        view = self.made.constant(shift)
        repeated = (UNIT, ViewAxis(blocks.valid[0]), ViewAxis(blocks.counts[0]))
        return replace(view, axes=(*repeated, ViewAxis(across, 0), UNIT))

    def inverse(self, spectrum: str) -> str:
        """Add the inverse across the lines from 1 on: complex, valid positions only; (N, 2, TH S, TW M)."""
        blocks, made = self.made.blocks, self.made
        (valid, _), (rows, columns) = blocks.valid, blocks.counts
        across = columns * blocks.groups * blocks.outputs
        name = made.value(f"columns of {self.what}", (self.lines, 2, rows * valid, across), "columns")
        positions = (ViewAxis(valid, 2), ViewAxis(rows, 2, valid))
        axes = (ViewAxis(self.lines, 0), *positions, ViewAxis(across, 3), UNIT)
        for part, (kind, make) in enumerate(matrices.INVERSE.items()):
            weights = made.window(f"inverse/{kind}", make(blocks.length, valid))
            target = View(name, (0, part, 0, 0), axes)
            source = self._spectrum_view(spectrum)
            made.add(f"inverse DFT of {self.what}", Function.CONVOLVE, [source], target, PARTS, weights)
        return name


def picture_of(view: View, index: int) -> View:
    """Return one picture of a map (N, C, H, W) as (H, W, C)."""
    one = views.sliced(view, 0, index, 1)
    return View(one.value, one.start, (one.axes[2], one.axes[3], one.axes[1]))


def inverse_rows(made: Rewriting, columns: str, constant: str, index: int, of: str) -> None:
    """Add the inverse along the rows: real outputs at valid positions, for full columns of blocks and a ragged one."""
    blocks, layer = made.blocks, made.layer
    height, outputs = blocks.map_size[0], blocks.groups * blocks.outputs
    for first, count, wide in _columns_of_blocks(blocks):
        start = first * outputs
        axes = (ViewAxis(blocks.half, 0), ViewAxis(height, 2), ViewAxis(outputs, 3), ViewAxis(2, 1))
        source = View(columns, (0, 0, 0, start), (ViewAxis(count, 3, outputs), *axes))
        axes = (ViewAxis(wide), ViewAxis(height, 0), ViewAxis(outputs, 1), UNIT)
        line_0 = View(constant, (0, start), (ViewAxis(count, 1, outputs), *axes))
        place = (first * blocks.valid[1], count, wide)
        if layer.residual is not None:
            line_0 = _with_residual(made, line_0, _in_blocks(layer.residual, index, *place), f"{of}.{first}")
        weights = made.window("inverse/lines", matrices.inverse_lines(blocks.length, wide))
        settings = replace(layer.settings, kernel=PARTS.kernel, pad=PARTS.pad)
        output = _in_blocks(layer.output, index, *place)
        made.add(f"inverse row DFT{of}", Function.CONVOLVE, [source], output, settings, weights, line_0)


def _columns_of_blocks(blocks: OddBlocks) -> Iterator[tuple[int, int, int]]:
    """Yield first column of blocks, number of columns, and outputs of each: full columns, then a ragged one."""
    full, rest = divmod(blocks.map_size[1], blocks.valid[1])
    if full:
        yield 0, full, blocks.valid[1]
    if rest:
        yield full, 1, rest


def _in_blocks(view: View, index: int, start: int, count: int, wide: int) -> View:
    """Return the columns of a picture from `start` on as (blocks, columns of a block, H, C, 1)."""
    part = views.sliced(picture_of(view, index), 1, start, count * wide)
    height, width, channels = part.axes
    of_blocks = ViewAxis(count, width.base, width.step * wide)
    return View(part.value, part.start, (of_blocks, replace(width, size=wide), height, channels, UNIT))


def _with_residual(made: Rewriting, line_0: View, residual: View, of: str) -> View:
    """Return the sum of line 0 and the residual, which the last layer adds."""
    count, wide, height, channels, _ = line_0.shape
    name = made.value(f"residual{of}", (height, count * wide, channels))
    axes = (ViewAxis(count, 1, wide), ViewAxis(wide, 1), ViewAxis(height, 0), ViewAxis(channels, 2), UNIT)
    view = View(name, (0, 0, 0), axes)
    made.add(f"residual{of}", Function.BINARY, [line_0, residual], view, Settings(mode=Binary.ADD))
    return view
