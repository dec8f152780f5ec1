"""Every weight is in one block, blocks keep to their budget, and operands address the right bytes."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import small_machine
from scratchpad import Scratchpad
from small_models import model, node, values

from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.planning.chains.chain_weights import (
    WeightBlock,
    cut_weights,
    gather_loads,
    pack_weights,
    slice_outputs,
    weight_operand,
)
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Space


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[HardwareLayer, Array]:
    """Draw a convolution, dense or grouped, with or without a bias, and its weights (M, C / groups, kh, kw)."""
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    inputs, outputs = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    inputs += groups > 1 and inputs == 1  # one channel a group would be a depthwise convolution
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    weights = values((outputs * groups, inputs, *kernel), 5)
    constants = {"w": weights}
    if draw(st.booleans()):
        constants["b"] = values((outputs * groups,), 6)
    x = {"x": values((1, inputs * groups, 4, 4))}
    proto = model([node("Conv", " ".join(("x", *constants)), "y", group=groups)], x, constants)
    (layer,) = import_model(proto).layers
    return layer, weights


def _blocks(layer: HardwareLayer, budget: int, array: tuple[int, int]) -> tuple[WeightBlock, ...] | None:
    try:
        return cut_weights(layer, small_machine(array=array), budget)
    except DoesNotFit as error:
        assert error.next_step == "Raise sb_bytes of the machine"
        return None


@given(convolutions(), st.integers(16, 6000), st.sampled_from(((4, 4), (2, 8), (16, 3))))
def test_every_weight_lies_in_one_block(case: tuple[HardwareLayer, Array], budget: int, array: tuple[int, int]) -> None:
    """Blocks divide output and input channels, keep to the budget and are adjacent."""
    layer, weights = case
    blocks = _blocks(layer, budget, array)
    if blocks is None:
        return
    per_input, per_output = weights.shape[1], weights.shape[0] // layer.groups
    seen = np.zeros(weights.shape[:2], int)
    offset = 0
    for block in blocks:
        assert (block.offset, block.bytes <= budget) == (offset, True)
        offset += block.bytes
        group = block.outputs[0] // per_output
        assert (block.outputs[1] - 1) // per_output == group
        seen[slice(*block.outputs), slice(*(channel - group * per_input for channel in block.channels))] += 1
        assert block.completes == (block.channels[1] == (group + 1) * per_input)
        assert (block.vector_bytes > 0) == (block.completes and layer.scale_shift is not None)
    assert (seen == 1).all()


@given(convolutions(), st.integers(200, 6000))
@settings(max_examples=36)
def test_packed_bytes_are_what_operands_see(case: tuple[HardwareLayer, Array], budget: int) -> None:
    """The operand of a loaded block has (kernel..., channels, outputs) of the weights."""
    layer, weights = case
    blocks = _blocks(layer, budget, (4, 4))
    if blocks is None:
        return
    vectors = None if layer.scale_shift is None else values((2, weights.shape[0]), 7)
    packed = np.frombuffer(pack_weights(layer, blocks, weights, vectors), np.uint8)
    assert packed.size == blocks[-1].offset + blocks[-1].bytes
    pad = Scratchpad()
    pad.put(packed, Space.SB)
    per_input, per_output = weights.shape[1], weights.shape[0] // layer.groups
    for block in blocks:
        shown = pad.machine.memories.view(weight_operand(layer, block, small_machine(), block.offset))
        base = block.outputs[0] // per_output * per_input
        part = weights[slice(*block.outputs), slice(*(channel - base for channel in block.channels))]
        assert np.array_equal(shown[0], part.transpose(2, 3, 1, 0))


@given(convolutions(), st.integers(16, 6000), st.integers(0, 3000))
@settings(max_examples=36)
def test_loads_take_all_blocks_in_order(case: tuple[HardwareLayer, Array], budget: int, most: int) -> None:
    """Blocks that are fetched together are adjacent and within the limit, unless it is a single block."""
    blocks = _blocks(case[0], budget, (4, 4))
    if blocks is None:
        return
    loads = gather_loads(blocks, most)
    assert tuple(block for load in loads for block in load.blocks) == blocks
    for load in loads:
        assert load.bytes == sum(block.bytes for block in load.blocks)
        assert len(load.blocks) == 1 or load.bytes <= most


@given(convolutions(), st.integers(16, 6000))
@settings(max_examples=36)
def test_slices_are_the_layer(case: tuple[HardwareLayer, Array], budget: int) -> None:
    """The parts of a layer divided by output channels add up to its weights and outputs."""
    layer, weights = case
    parts = slice_outputs(layer, small_machine(), budget)
    given_ = [weights] * len(layer.fixed_weights.sources)
    made = [part.fixed_weights.compute(*given_) for part in parts]
    assert np.array_equal(np.concatenate(made), weights)
    assert sum(part.output.shape[1] for part in parts) == layer.output.shape[1]
    start = 0
    for part, array in zip(parts, made, strict=True):
        assert array.shape == part.fixed_weights.shape
        assert part.output.start[1] == layer.output.start[1] + start
        start += part.output.shape[1]


@pytest.mark.parametrize("budget", [16, 64, 100])
def test_blocks_are_rounds_of_the_matrix_unit(budget: int) -> None:
    """A block that cannot hold a layer holds whole rounds of columns."""
    proto = model([node("Conv", "x w", "y")], {"x": values((1, 4, 4, 4))}, {"w": values((23, 4, 1, 1))})
    (layer,) = import_model(proto).layers
    blocks = cut_weights(layer, small_machine(), budget * 4)
    assert all((block.outputs[1] - block.outputs[0]) % 4 == 0 for block in blocks[:-1])
