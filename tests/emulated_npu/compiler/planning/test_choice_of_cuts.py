"""Layers are cut so that they fetch little more than they must, and as well as any choice that a person forces."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from networks_on_npu import network_of
from small_models import node, values

from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.timing.formula import formula

EDGE = find_machine("edge")
SLACK = 1.005
FORCED = (
    Options(chains="whole"),
    Options(chains="layers"),
    Options(halo="recompute"),
    Options(halo="retain"),
    Options(chains="whole", tile=(32, 32)),
    Options(chains="whole", tile=(16, 64), halo="recompute"),
)


def cycles(model: bytes, options: Options = DEFAULT, machine: Machine = EDGE) -> float:
    """Return the cycles of one run."""
    return time_program(compile_model(model, machine, options).program, machine).cycles


def convolutions(size: tuple[int, int], channels: tuple[int, ...], kernel: int) -> bytes:
    """Return convolutions with activations, one behind the other, that keep the size of the map."""
    nodes, constants, last = [], {}, "x"
    for at, (read, written) in enumerate(itertools.pairwise(channels)):
        constants[f"w{at}"] = values((written, read, kernel, kernel), at)
        nodes += [node("Conv", f"{last} w{at}", f"c{at}", pads=[kernel // 2] * 4), node("Relu", f"c{at}", f"r{at}")]
        last = f"r{at}"
    return network_of(nodes, {"x": values((1, channels[0], *size))}, constants, [last]).model


@pytest.mark.parametrize(
    ("size", "channels", "kernel"),
    [
        ((320, 320), (32, 32, 32), 3),
        ((48, 48), (24, 24, 24, 24), 5),
        pytest.param((400, 720), (3, 24, 24, 3), 3, marks=pytest.mark.long),
        pytest.param((272, 480), (1, 40, 10, 10, 16), 3, marks=pytest.mark.long),
    ],
)
def test_no_forced_choice_is_faster(size: tuple[int, int], channels: tuple[int, ...], kernel: int) -> None:
    """The automatic choice is at most 0.5 % slower than the best of chains, halos and tiles that are forced."""
    model = convolutions(size, channels, kernel)
    forced = []
    for options in FORCED:
        try:
            forced.append(cycles(model, options))
        except DoesNotFit:
            continue
    assert cycles(model) <= SLACK * min(forced)


@pytest.mark.parametrize("rows", [2, 4])
def test_the_second_pass_waits_for_its_loads(rows: int) -> None:
    """The prediction of a chain is within 1 % of the formula although all its weights arrive in the first pass."""
    compiled = compile_model(convolutions((64, 32), (64, 64, 64), 3), EDGE, Options(chains="whole", tile=(rows, 32)))
    found = formula(sequence(compiled.program.code, layer_of=compiled.program.layer_of), EDGE)
    (decision,) = compiled.decisions
    assert decision.chosen.passes == 64 // rows
    assert decision.chosen.predicted_ps == pytest.approx(found.total_ps, rel=0.01)


def _separable(size: tuple[int, int], channels: tuple[int, ...]) -> bytes:
    """Return pairs of a depthwise and a pointwise convolution; two of the first have a stride."""
    nodes = [node("Conv", "x w", "r", pads=[1] * 4, strides=[2, 2])]
    constants, last, read = {"w": values((channels[0], 1, 3, 3))}, "r", channels[0]
    for at, written in enumerate(channels):
        constants |= {f"d{at}": values((read, 1, 5, 5), at), f"p{at}": values((written, read, 1, 1), at)}
        strides = [2 if at in (4, 8) else 1] * 2
        nodes += [
            node("Conv", f"{last} d{at}", f"a{at}", group=read, pads=[2] * 4, strides=strides),
            node("Conv", f"a{at} p{at}", f"b{at}"),
            node("Relu", f"b{at}", f"r{at}"),
        ]
        last, read = f"r{at}", written
    return network_of(nodes, {"x": values((1, 1, *size))}, constants, [last]).model


@pytest.mark.parametrize(
    ("preset", "size", "channels"),
    [
        ("nvdla-256", (128, 64), (10,) * 4 + (20,) * 4 + (34,) * 4),
        pytest.param("nvdla-128", (96, 96), (8,) * 4 + (16,) * 4 + (24,) * 6, marks=pytest.mark.long),
    ],
)
def test_a_deep_thin_network_runs_as_one_chain(preset: str, size: tuple[int, int], channels: tuple[int, ...]) -> None:
    """More layers than a chain of the first search has stay on chip, where that is faster than several chains."""
    model, machine = _separable(size, channels), find_machine(preset)
    assert cycles(model, machine=machine) <= SLACK * cycles(model, Options(chains="whole"), machine)


def test_a_map_of_half_a_million_pixels_is_compiled() -> None:
    """The finest cut, a pass for each pixel, is not the first that is tried."""
    assert cycles(convolutions((600, 960), (3, 48, 32), 5)) > 0


def _convolution(read: int, written: int, size: int, kernel: int, stride: int, **attributes: int) -> bytes:
    """Return one convolution that keeps the size of the map but for its stride."""
    apart, groups = attributes.get("dilation", 1), attributes.get("group", 1)
    made = node(
        "Conv",
        "x w",
        "y",
        pads=[apart * (kernel // 2)] * 4,
        strides=[stride] * 2,
        dilations=[apart] * 2,
        group=groups,
    )
    weights = values((written, read // groups, kernel, kernel), 1)
    return network_of([made], {"x": values((1, read, size, size))}, {"w": weights}, ["y"]).model


@pytest.mark.parametrize("preset", ["nvdla-64", "nvdla-256", "eyeriss"])
def test_no_way_in_fewer_passes_costs_as_little(preset: str) -> None:
    """Where transfers have no latency, finer tiles are slightly faster without end: those worth 0.2 % are taken."""
    compiled = compile_model(_convolution(10, 14, 144, 3, 1), find_machine(preset))
    (decision,) = compiled.decisions
    ways = (decision.chosen, *decision.others)
    least_ps = min(way.cost_ps for way in ways)
    fewest = min(way.passes for way in ways if way.cost_ps <= 1.002 * least_ps)
    assert fewest <= decision.chosen.passes <= 500
    assert decision.chosen.cost_ps <= 1.02 * least_ps


def _pool(channels: int, size: int, kernel: int, stride: int) -> bytes:
    made = node("MaxPool", "x", "y", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)
    return network_of([made], {"x": values((1, channels, size, size))}, {}, ["y"]).model


def _cumulative(shape: tuple[int, ...], axis: int) -> bytes:
    made = node("CumSum", "x a", "y")
    return network_of([made], {"x": values(shape)}, {"a": np.array(axis)}, ["y"]).model


def _gate(channels: int, size: int) -> bytes:
    made = [node("Split", "x", "a b", axis=1), node("Mul", "a b", "y")]
    return network_of(made, {"x": values((1, channels, size, size))}, {}, ["y"]).model


def _transposition(shape: tuple[int, ...], order: tuple[int, ...]) -> bytes:
    return network_of([node("Transpose", "x", "y", perm=list(order))], {"x": values(shape)}, {}, ["y"]).model


@pytest.mark.parametrize(
    ("model", "least_bytes"),
    [
        pytest.param(_convolution(900, 900, 30, 5, 2, group=900), 4 * 900 * (900 + 225), id="depthwise"),
        pytest.param(_convolution(600, 240, 48, 3, 2, group=3), 4 * (600 * 2304 + 240 * 576 + 432_000), id="grouped"),
        pytest.param(_convolution(72, 12, 64, 3, 1, dilation=14), 4 * (84 * 4096 + 7776), id="dilated"),
        pytest.param(_pool(400, 60, 5, 2), 4 * 400 * (3600 + 900), id="pool"),
        pytest.param(_transposition((1, 2800, 8, 10), (0, 3, 2, 1)), 8 * 2800 * 80, id="transposition"),
        pytest.param(_cumulative((1, 1024, 512), 1), 8 * 1024 * 512, id="cumulative sum"),
        pytest.param(_gate(256, 56), 4 * 384 * 56 * 56, id="gate"),
    ],
)
def test_a_layer_fetches_little_more_than_it_must(model: bytes, least_bytes: int) -> None:
    """Channels, groups or parts that lie together are cut before tiles with much halo: at most 3.5 times the least."""
    assert cycles(model) / EDGE.clock_hz <= 3.5 * least_bytes / EDGE.ddr.bytes_per_s


def _dense_block(channels: int, growth: int, layers: int, size: int) -> bytes:
    """Return convolutions that each read the results of all before them."""
    nodes, constants, parts = [], {}, ["x"]
    for at in range(layers):
        constants[f"w{at}"] = values((growth, channels + at * growth, 3, 3), at)
        nodes += [
            node("Concat", " ".join(parts), f"j{at}", axis=1),
            node("Conv", f"j{at} w{at}", f"c{at}", pads=[1] * 4),
            node("Relu", f"c{at}", f"r{at}"),
        ]
        parts.append(f"r{at}")
    return network_of(nodes, {"x": values((1, channels, size, size))}, constants, [parts[-1]]).model


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(_dense_block(48, 16, 4, 56), id="dense block", marks=pytest.mark.long),
        pytest.param(convolutions((56, 56), (64, 96, 48, 128), 3), id="convolutions"),
    ],
)
def test_a_larger_buffer_is_hardly_slower(model: bytes) -> None:
    """Where a chain fits in one pass, it is still cut if that is faster: doubling NB costs at most 1 %."""
    before = cycles(model, machine=EDGE)
    for doublings in (1, 2, 3):
        larger = replace(EDGE, nb_bytes=EDGE.nb_bytes << doublings, halo_bytes=EDGE.halo_bytes << doublings)
        after = cycles(model, machine=larger)
        assert after <= 1.01 * before
        before = min(before, after)
