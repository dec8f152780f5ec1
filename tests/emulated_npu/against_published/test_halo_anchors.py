"""FSRCNN in tiles: multiply-adds, external elements and time for every treatment of the halo (S3.8, DeFiNES)."""

from itertools import pairwise
from typing import Any

import pytest
from fsrcnn import (
    ANCHOR,
    HEIGHT,
    LAYERS,
    MARGIN,
    WIDTH,
    Fsrcnn,
    anchor_machine,
    chained,
    count,
    fsrcnn,
    full_graph,
    layer_by_layer,
)
from networks_on_npu import ORDERS, NetworkCase, execute, relative_error, small_machine
from onnx import load_model_from_string
from small_models import by_runtime

from device_agents.emulated_npu.compiler.options import HaloChoice, Options
from device_agents.emulated_npu.compiler.planning.chains.chain_cutting import cut_chain
from device_agents.emulated_npu.compiler.planning.chains.tiling import Chain, Cut, HaloMode
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.timing.simulation import simulate_program

TILES: list[dict[str, Any]] = ANCHOR["macs"]["tiles"]
HALF_DIGIT = ANCHOR["macs"]["half_digit"]
HALOS: dict[str, HaloChoice] = {"recompute": "recompute", "one_direction": "retain-columns", "retained": "retain"}
CUTS: dict[str, tuple[HaloMode, HaloMode]] = {
    "recompute": ("recompute", "recompute"),
    "one_direction": ("recompute", "retain"),
    "retained": ("retain", "retain"),
}


def _sizes(column: str) -> list[Any]:
    """Return tile sizes; those with more than a thousand passes take minutes."""
    sizes = []
    for tile in TILES:
        passes = -(-WIDTH // tile["width"]) * -(-HEIGHT // tile["height"])
        if passes < 10_000:
            marks = [pytest.mark.long] if passes > 1000 else []
            sizes.append(pytest.param(tile, marks=marks, id=f"{column}-{tile['width']}x{tile['height']}"))
    return sizes


def _closed_form_macs(tile: dict[str, Any], mode: str) -> int:
    """Return the sum over tiles; along a direction whose halo is kept, every row of a layer counts once."""
    total = 0
    margin = MARGIN
    for kernel, channels, filters in LAYERS:
        margin -= kernel - 1
        spans = []
        for whole, size, kept in (
            (HEIGHT, tile["height"], mode == "retained"),
            (WIDTH, tile["width"], mode != "recompute"),
        ):
            tiles = [min(size, whole - first) for first in range(0, whole, size)]
            spans.append(whole + margin if kept else sum(one + margin for one in tiles))
        total += spans[0] * spans[1] * kernel**2 * channels * filters
    return total


@pytest.mark.parametrize("mode", HALOS)
@pytest.mark.parametrize("tile", _sizes("macs"))
def test_multiply_adds_of_the_commands_are_the_published_ones(tile: dict[str, Any], mode: str) -> None:
    """The program's multiply-adds equal the closed form exactly, and the published number as printed."""
    macs = count(chained(tile["width"], tile["height"], HALOS[mode])).macs
    assert macs == _closed_form_macs(tile, mode)
    assert abs(macs / 1e9 - tile[mode]) <= HALF_DIGIT


@pytest.mark.parametrize("mode", HALOS)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile['width']}x{tile['height']}")
def test_multiply_adds_of_the_geometry_are_the_published_ones(tile: dict[str, Any], mode: str) -> None:
    """The planned passes match for all tile sizes, down to a single pixel."""
    graph = full_graph()
    cuts = [Cut(axis, tile[name], how) for axis, name, how in zip((2, 3), ("height", "width"), CUTS[mode], strict=True)]
    geometry = cut_chain(Chain(graph.layers, frozenset(graph.outputs)), cuts)
    macs = 0
    for layer, (kernel, channels, filters) in zip(graph.layers, LAYERS, strict=True):
        rows, columns = (
            sum(high - low for low, high in track.new)
            for track in geometry.tracks[layer.output.value]
            if track is not None
        )
        macs += rows * columns * kernel**2 * channels * filters
    assert abs(macs / 1e9 - tile[mode]) <= HALF_DIGIT


def test_external_elements_are_the_closed_form() -> None:
    """Layer by layer moves every intermediate twice; retaining the halo moves input and output, 21 to 25 times less."""
    rows, columns = HEIGHT + MARGIN, WIDTH + MARGIN
    ends = rows * columns * LAYERS[0][1]
    intermediates = 0
    for kernel, _, filters in LAYERS:
        rows, columns = rows - kernel + 1, columns - kernel + 1
        intermediates += rows * columns * filters
    last = rows * columns * LAYERS[-1][2]
    ends += last
    singly = count(layer_by_layer())
    together = count(chained(60, 72, "retain"))
    assert singly.external == ends + 2 * (intermediates - last)
    assert together.external == ends
    assert ANCHOR["external"]["ratio"]["low"] <= singly.external / together.external
    assert singly.external / together.external <= ANCHOR["external"]["ratio"]["high"]
    assert singly.macs == together.macs


@pytest.mark.parametrize("tile", _sizes("time"))
def test_keeping_the_halo_takes_less_time(tile: dict[str, Any]) -> None:
    """For each tile size, retaining takes fewer cycles than one direction, and that fewer than recomputing."""
    cycles = [
        simulate_program(program, anchor_machine()).makespan_ps
        for program in (chained(tile["width"], tile["height"], halo).program for halo in reversed(HALOS.values()))
    ]
    assert all(less < more for less, more in pairwise(cycles))


def _small() -> NetworkCase:
    net: Fsrcnn = fsrcnn(48, 30)
    proto = load_model_from_string(net.model)
    expected = dict(zip(["v7"], by_runtime(proto, net.inputs), strict=True))
    return NetworkCase(net.model, net.weights, net.inputs, expected)


WAYS = [
    Options(),
    Options("layers"),
    Options("layers", "refetch"),
    Options("whole"),
    *(Options("whole", halo, (9, 8)) for halo in HALOS.values()),
    *(Options("whole", "retain", tile) for tile in ((3, 7), (7, 4), (13, 48), (30, 11))),
    Options("whole", "retain-columns", (11, 47), reorder=False),
]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_values_do_not_depend_on_tiles(options: Options) -> None:
    """A small FSRCNN gives ONNX Runtime's values for any tiles, halo treatment and order of queues."""
    network = _small()
    compiled = compile_model(network.model, find_machine("edge"), options)
    outputs = [execute(compiled, network, order) for order in ORDERS]
    assert relative_error(outputs[0], network.expected) <= 1e-5
    assert all(other["v7"].tobytes() == outputs[0]["v7"].tobytes() for other in outputs)


@pytest.mark.parametrize(
    "halo", [pytest.param("auto", marks=pytest.mark.long), "retain", "retain-columns", "recompute", "refetch"]
)
def test_values_in_little_memory(halo: HaloChoice) -> None:
    """Values agree when the compiler has to divide feature maps that are eight times larger than the buffer."""
    network = _small()
    machine = small_machine(nb_bytes=56 << 10, sb_bytes=16 << 10, halo_bytes=28 << 10)
    compiled = compile_model(network.model, machine, Options(halo=halo))
    assert max(plan.passes for plan in compiled.plans) > 4
    assert relative_error(execute(compiled, network), network.expected) <= 1e-5
