"""Large maps are cut into many tiles, and the compiler's choice is as good as any that a person forces."""

from __future__ import annotations

import itertools

import pytest
from networks_on_npu import network_of
from small_models import node, values

from device_agents.emulated_npu.compiler.options import DEFAULT, Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import find_machine

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


def cycles(model: bytes, options: Options = DEFAULT) -> float:
    """Return the cycles of one run."""
    return time_program(compile_model(model, EDGE, options).program, EDGE).cycles


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
    [((400, 720), (3, 24, 24, 3), 3), ((320, 320), (32, 32, 32), 3), ((272, 480), (1, 40, 10, 10, 16), 3)],
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


def test_a_map_of_half_a_million_pixels_is_compiled() -> None:
    """The finest cut, a pass for each pixel, is not the first that is tried."""
    assert cycles(convolutions((600, 960), (3, 48, 32), 5)) > 0
