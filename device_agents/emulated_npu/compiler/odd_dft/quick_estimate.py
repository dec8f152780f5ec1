"""Quick estimates of a convolution's time, directly and by DFT, which rule out slow candidates before planning."""

from __future__ import annotations

import math
from dataclasses import dataclass

from device_agents.emulated_npu.arithmetic import ceil_div
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.odd_blocks import OddBlocks
from device_agents.emulated_npu.compiler.odd_dft.levels import CacheLevels, DftSizes
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.cost.command_cost import CostModel
from device_agents.emulated_npu.unit_commands import Command, Descriptor, Function, Operand, Space
from device_agents.emulated_npu.unit_settings import PLAIN, Settings


@dataclass(frozen=True)
class DftEstimates:
    """Estimates times on one machine in picoseconds: each step counts as one command of each unit."""

    costs: CostModel

    @property
    def machine(self) -> Machine:
        """The machine."""
        return self.costs.machine

    def direct_ps(self, layer: HardwareLayer) -> int:
        """Return the time of the direct convolution if everything moves once through DDR without overlap."""
        outputs, channels, *kernel = layer.fixed_weights.shape
        pixels = math.prod(layer.output.shape) // outputs
        settings = Settings(kernel=(1, kernel[0], kernel[1]))
        if layer.function is Function.DEPTHWISE:
            compute_ps = self._vector_ps(math.prod(layer.output.shape) * math.prod(kernel))
        else:
            dims = (1, *kernel, channels, outputs // layer.groups)
            compute_ps = layer.groups * self._matrix_ps(pixels, dims, settings)
        moved = sum(math.prod(view.shape) for view in (layer.output, *layer.reads))
        return compute_ps + self._move_ps((moved + math.prod(layer.fixed_weights.shape)), Space.DDR)

    def transform_ps(self, blocks: OddBlocks, levels: CacheLevels) -> int:
        """Return the time of the convolution by DFT; long steps overlap their loads with computing."""
        sizes = DftSizes.of(blocks, self.machine)
        item = self.machine.data_type.bytes
        channels, outputs = blocks.groups * blocks.channels, blocks.groups * blocks.outputs
        in_ps = self._move_ps(channels * math.prod(blocks.map_size), Space.DDR)
        out_ps = self._move_ps(outputs * math.prod(blocks.map_size), Space.DDR)
        high_ps = self._move_ps(sizes.blocks // item, _space(levels.blocks))
        lines_ps = self._between_ps(sizes.lines, levels.lines)
        columns_ps = self._between_ps(sizes.columns, levels.columns)
        kernels = self.machine.llc if levels.kernels else self.machine.ddr
        kernels_ps = self._move_ps(sizes.kernels // item, _space(levels.kernels))
        kernels_ps += round(blocks.bins * blocks.groups * kernels.latency_ns * 1000)
        between_ps = lines_ps + columns_ps + self._passes(blocks) * kernels_ps
        lines_bytes = (blocks.half + 1) * blocks.counts[0] * self._row_bytes(blocks)
        return blocks.pictures * (
            in_ps
            + high_ps
            + self._step_ps(self._rows_ps(blocks), high_ps + lines_ps, sizes.blocks + sizes.lines)
            + self._step_ps(self._lines_ps(blocks), between_ps + self._spilled_ps(blocks), lines_bytes)
            + self._step_ps(self._outputs_ps(blocks), columns_ps + out_ps, sizes.columns)
        )

    def _step_ps(self, compute_ps: int, move_ps: int, held_bytes: int) -> int:
        """Return the time of a step that overlaps computing and moving; only half overlaps if NB holds the step."""
        longer_ps, shorter_ps = max(compute_ps, move_ps), min(compute_ps, move_ps)
        return longer_ps + (shorter_ps // 2 if held_bytes <= self.machine.nb_bytes else 0)

    def fetches_once(self, blocks: OddBlocks) -> bool:
        """Return whether NB holds a line of all blocks from DFT to inverse, so that kernel DFTs are fetched once."""
        return blocks.counts[0] * self._row_bytes(blocks) <= self.machine.nb_bytes

    def _row_bytes(self, blocks: OddBlocks) -> int:
        """Return the bytes in NB for one line of a row of blocks, from DFT to inverse, with two buffers for moves."""
        channels, outputs = blocks.groups * blocks.channels, blocks.groups * blocks.outputs
        moved = 4 * (blocks.padded[0] * channels // blocks.counts[0] + blocks.valid[0] * outputs)
        held = blocks.length * (4 * outputs + 2 * max(channels, outputs))
        return blocks.counts[1] * (moved + held) * self.machine.data_type.bytes

    def _passes(self, blocks: OddBlocks) -> int:
        """Return how often a picture fetches the kernel DFTs: once for as many rows of blocks as NB holds."""
        rows = max(1, self.machine.nb_bytes // self._row_bytes(blocks))
        return ceil_div(blocks.counts[0], rows)

    def _spilled_ps(self, blocks: OddBlocks) -> int:
        """Return the time to move transforms and products as well, if NB does not hold one row of blocks."""
        if self._row_bytes(blocks) <= self.machine.nb_bytes:
            return 0
        both = blocks.groups * (blocks.channels + blocks.outputs)
        return self._move_ps(2 * blocks.stored * math.prod(blocks.counts) * both, Space.DDR)

    def _rows_ps(self, blocks: OddBlocks) -> int:
        rows = blocks.padded[0] * blocks.counts[1] * blocks.groups * blocks.channels
        return self._matrix_ps(rows, (1, 1, 1, blocks.length, 2 * (blocks.half + 1)))

    def _lines_ps(self, blocks: OddBlocks) -> int:
        """Return the time of the DFT across the lines, the product, and the inverse across the lines."""
        number, lines = math.prod(blocks.counts), blocks.half + 1
        length, pair = blocks.length, Settings(kernel=(1, 1, 2))
        pictures = lines * number * blocks.groups
        forward = self._matrix_ps(pictures * blocks.channels, (1, 1, 2, length, length), pair)
        backward = self._matrix_ps(pictures * blocks.outputs, (1, 1, 2, length, blocks.valid[0]), pair)
        bins = blocks.bins * blocks.groups
        if blocks.is_depthwise:
            products_ps = self._vector_ps(4 * bins * number * blocks.outputs)
        else:
            products_ps = bins * self._matrix_ps(2 * number, (1, 1, 1, blocks.channels, 2 * blocks.outputs))
        return 2 * forward + 2 * backward + products_ps + self._vector_ps(2 * bins * number * blocks.outputs)

    def _outputs_ps(self, blocks: OddBlocks) -> int:
        pixels = blocks.map_size[0] * blocks.counts[1] * blocks.groups * blocks.outputs
        return self._matrix_ps(pixels, (1, 1, 2, blocks.half, blocks.valid[1]), Settings(kernel=(1, 1, 2)))

    def _between_ps(self, size_bytes: int, cached: bool) -> int:
        """Return the time to move a value once between two steps; small values stay in NB."""
        if 4 * size_bytes <= self.machine.nb_bytes:
            return 0
        return self._move_ps(size_bytes // self.machine.data_type.bytes, _space(cached))

    def _matrix_ps(self, pixels: int, dims: tuple[int, ...], settings: Settings = PLAIN) -> int:
        """Return the time to multiply `pixels` windows by weights (kd, kh, kw, C, M)."""
        command = Command(
            Function.CONVOLVE,
            self._operand(Space.NB, (1, 1, pixels, dims[-1])),
            self._operand(Space.NB, (1, 1, pixels, dims[-2])),
            self._operand(Space.SB, dims),
            settings=settings,
        )
        return self.costs.duration_ps(command)

    def _vector_ps(self, operations: int) -> int:
        view = self._operand(Space.NB, (operations,))
        return self.costs.duration_ps(Command(Function.COPY, view, view))

    def _move_ps(self, elements: int, space: Space) -> int:
        there, here = (self._operand(place, (elements,)) for place in (space, Space.NB))
        return self.costs.duration_ps(Command(Function.LOAD, here, there))

    def _operand(self, space: Space, dims: tuple[int, ...]) -> Operand:
        strides, step = [], self.machine.data_type.bytes
        for size in reversed(dims):
            strides.append(step)
            step *= size
        return Operand(Descriptor(space, self.machine.data_type, dims, tuple(reversed(strides))), 0)


def _space(cached: bool) -> Space:
    return Space.LLC if cached else Space.DDR
