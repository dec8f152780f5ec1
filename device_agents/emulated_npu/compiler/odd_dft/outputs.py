"""The last step of a convolution by DFT: the inverse along the rows, and the epilogue on the outputs (S4.6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from device_agents.emulated_npu.compiler.graph import views
from device_agents.emulated_npu.compiler.graph.hardware_graph import View, ViewAxis
from device_agents.emulated_npu.compiler.graph.odd_blocks import OddBlocks
from device_agents.emulated_npu.compiler.graph.views import UNIT
from device_agents.emulated_npu.compiler.odd_dft import matrices
from device_agents.emulated_npu.compiler.odd_dft.rewriting import PARTS, Rewriting
from device_agents.emulated_npu.unit_commands import Function
from device_agents.emulated_npu.unit_settings import Binary, Settings


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
