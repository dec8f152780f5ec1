"""Transposed convolutions become convolutions that compute phases, and copies that join them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st
from networks_on_npu import execute, network_of, relative_error
from small_models import functions, imported, model, node, values
from systems_of_cores import checked_run, compiled_for, in_turn, with_cores

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.splitting.assignment import Assignment, GroupAssignment
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import UnsupportedOperator
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.reports.accounting import useful_macs
from device_agents.emulated_npu.unit_commands import Function


@st.composite
def _cases(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """Return attributes, and the shapes of input and weights."""
    count, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    read, made = groups * draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 33]))
    sizes, kernel, stride, dilation = (tuple(draw(st.integers(1, most)) for _ in range(count)) for most in (5, 5, 4, 2))
    more = tuple(draw(st.integers(0, step - 1)) for step in stride)
    pads = [
        draw(st.integers(0, apart * (size - 1))) for _ in range(2) for size, apart in zip(kernel, dilation, strict=True)
    ]
    attributes: dict[str, Any] = {
        "group": groups,
        "strides": stride,
        "dilations": dilation,
        "pads": pads,
        "output_padding": more,
    }
    rows = zip(sizes, kernel, stride, dilation, more, pads[:count], pads[count:], strict=True)
    outputs = [
        step * (size - 1) + extra + (taps - 1) * apart + 1 - first - last
        for size, taps, step, apart, extra, first, last in rows
    ]
    assume(min(outputs) > 0)
    return attributes, (draw(st.integers(1, 2)), read, *sizes), (read, made, *kernel)


@given(_cases(), st.booleans())
@settings(max_examples=75)
def test_transposed_convolutions(case: tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]], bias: bool) -> None:
    """Any stride, dilation, padding, output padding and group, over one to three axes, gives the runtime's values."""
    attributes, read, kernel = case
    constants = {"w": values(kernel, 1), "b": values((kernel[1] * attributes["group"],), 2)}
    made = node("ConvTranspose", "x w b" if bias else "x w", "y", **attributes)
    proto = model([made], {"x": values(read)}, constants if bias else {"w": constants["w"]})
    try:
        import_model(proto.SerializeToString())
    except UnsupportedOperator as error:
        assert "leaves out all" in str(error)
        return
    imported(proto, {"x": values(read)})


@pytest.mark.parametrize(("batch", "groups"), [(1, 1), (2, 2)])
def test_three_strides_with_a_chain_for_each_layer(batch: int, groups: int) -> None:
    """Where phases of three axes are joined by several copies, none of them overwrites what another one wrote."""
    made = node("ConvTranspose", "x w", "y", strides=[2, 2, 2], group=groups)
    x = values((batch, 4, 3, 4, 5))
    case = network_of([made], {"x": x}, {"w": values((4, 2, 2, 2, 2), 1)}, ["y"])
    compiled = compile_model(case.model, find_machine("edge"), Options(chains="layers"))
    assert relative_error(execute(compiled, case), case.expected) < 1e-5


@pytest.mark.parametrize("automatic", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("stride", "kernel"), [(2, 3), (3, 2), (2, 4), (1, 3)])
def test_automatic_padding(automatic: str, stride: int, kernel: int) -> None:
    """Padding that follows from the size of the output is divided as the runtime does."""
    made = node("ConvTranspose", "x w", "y", auto_pad=automatic, strides=[stride] * 2)
    x = values((1, 2, 5, 4))
    imported(model([made], {"x": x}, {"w": values((2, 3, kernel, kernel), 1)}), {"x": x})


@pytest.mark.parametrize("size", [(9, 8), (10, 7), (11, 9)])
def test_a_stated_size_of_the_output(size: tuple[int, int]) -> None:
    """`output_shape` takes the place of the padding."""
    made = node("ConvTranspose", "x w", "y", output_shape=size, strides=[2, 2])
    x = values((1, 2, 5, 4))
    imported(model([made], {"x": x}, {"w": values((2, 3, 3, 3), 1)}), {"x": x})


def test_a_stride_of_one_needs_no_copy() -> None:
    """With one phase, the convolution writes the result."""
    x = values((1, 3, 6, 6))
    made = node("ConvTranspose", "x w", "y", pads=[1, 1, 1, 1])
    graph = imported(model([made], {"x": x}, {"w": values((3, 4, 3, 3), 1)}), {"x": x})
    assert functions(graph) == ["CONVOLVE"]


def test_a_network_that_enlarges_its_map_runs() -> None:
    """A decoder of two transposed convolutions computes the runtime's values on the emulated NPU, in several passes."""
    constants = {"a": values((24, 16, 4, 4), 1), "s": values((16,), 2), "b": values((16, 3, 9, 9), 3)}
    nodes = [
        node("ConvTranspose", "x a s", "p", strides=[2, 2], pads=[1] * 4),
        node("Relu", "p", "r"),
        node("ConvTranspose", "r b", "y", strides=[2, 2], pads=[4] * 4, output_padding=[1, 1]),
    ]
    network = network_of(nodes, {"x": values((1, 24, 72, 64))}, constants, ["y"])
    compiled = compile_model(network.model, find_machine("edge"))
    assert max(plan.passes for plan in compiled.plans) > 1
    assert relative_error(execute(compiled, network), network.expected) <= 1e-5
    assert network.expected["y"].shape == (1, 3, 288, 256)


@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "groups", "channels"),
    [(3, 2, 1, 1, 48), (5, 2, 2, 1, 32), (4, 2, 1, 1, 64), (5, 3, 1, 2, 64), (3, 2, 1, 40, 40)],
)
def test_phases_that_fill_the_columns_multiply_no_zeros(
    kernel: int, stride: int, pad: int, groups: int, channels: int
) -> None:
    """Each output sums the taps that meet an input of the stride, not zeros in between, and the values are right."""
    size, more = 12, (2 * pad - kernel) % stride
    weights = values((channels, channels // groups, kernel, kernel), 1, -0.1, 0.1)
    attributes = {"strides": [stride] * 2, "pads": [pad] * 4, "output_padding": [more] * 2, "group": groups}
    made = node("ConvTranspose", "x w", "y", **attributes)
    case = network_of([made], {"x": values((1, channels, size, size))}, {"w": weights}, ["y"])
    compiled = compile_model(case.model, find_machine("edge"))
    outputs = case.expected["y"].shape[2]
    taps = sum(len(range((place + pad) % stride, kernel, stride)) for place in range(outputs))
    assert sum(useful_macs(compiled).values()) == channels * (channels // groups) * taps**2
    assert relative_error(execute(compiled, case), case.expected) <= 1e-5


@pytest.mark.parametrize(("columns", "convolutions"), [(32, 4), (256, 1)])
def test_phases_that_share_the_columns_are_one_convolution(columns: int, convolutions: int) -> None:
    """Four phases of 48 channels are one convolution where the columns of the machine hold all of them at a time."""
    edge = find_machine("edge")
    made = node("ConvTranspose", "x w", "y", strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
    case = network_of([made], {"x": values((1, 48, 9, 9))}, {"w": values((48, 48, 3, 3), 1)}, ["y"])
    compiled = compile_model(case.model, replace(edge, mfu=replace(edge.mfu, columns=columns)))
    assert sum(layer.function is Function.CONVOLVE for layer in compiled.graph.layers) == convolutions
    assert relative_error(execute(compiled, case), case.expected) <= 1e-5


def test_phases_on_several_cores() -> None:
    """Cores that share the phases of a stride, or compute some of them each, find the values of one core."""
    nodes = [
        node("ConvTranspose", "x w b", "t", strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
        node("Relu", "t", "r"),
        node("Conv", "r v", "y", pads=[1] * 4),
    ]
    constants = {"w": values((8, 40, 3, 3), 1), "b": values((40,), 2), "v": values((4, 40, 3, 3), 3)}
    case = network_of(nodes, {"x": values((1, 8, 12, 20))}, constants, ["y"])
    graph, machine = import_model(case.model), with_cores(find_machine("edge"), 2)
    count = len(graph.layers)
    shared = Assignment((GroupAssignment((0, 1), tuple(range(count))),))
    for assignment in (shared, *(in_turn(graph, end) for end in range(1, count))):
        checked_run(case, compiled_for(case, machine, assignment))


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("spatial", [(5,), (4, 3), (2, 3, 2)])
@pytest.mark.parametrize("constant", [(), ("w",), ("b",)], ids=str)
def test_transposed_convolutions_by_computed_weights(
    groups: int, spatial: tuple[int, ...], constant: tuple[str, ...]
) -> None:
    """Weights or a bias that the network computes: a product of matrices, then columns that are added."""
    count = len(spatial)
    feeds = {"x": values((2, 4, *spatial)), "w": values((4, 3, *[3] * count), 1), "b": values((3 * groups,), 2)}
    attributes = {"group": groups, "strides": [2] * count, "pads": [1, 0] * count, "output_padding": [1] * count}
    constants = {name: feeds.pop(name) for name in constant}
    imported(model([node("ConvTranspose", "x w b", "y", **attributes)], feeds, constants), feeds)
