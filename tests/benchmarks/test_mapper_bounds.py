"""benchmarks.emulator.mapper: its bounds on other arrays than that of its study, and its networks and choices."""

from dataclasses import replace

import pytest
from small_models import model, node, values

from benchmarks.emulator import generated_networks
from benchmarks.emulator.mapper import FORCED, bounds_cycles, measure
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.machine import find_machine
from device_agents.emulated_npu.timing.simulation import simulate_program


@pytest.mark.parametrize("preset", ["edge", "edge-tpu", "ethos-u55-256", "dpu-b4096", "eyeriss", "nvdla-small"])
def test_no_program_is_faster_than_the_bounds(preset: str) -> None:
    """Both bounds hold on arrays that compute several pixels side by side, or depthwise convolutions."""
    slow = find_machine(preset)
    machine = replace(slow, ddr=replace(slow.ddr, bytes_per_s=1000 * slow.ddr.bytes_per_s))
    proto = model(
        [
            node("Conv", "x dense", "a", pads=[1] * 4),
            node("Conv", "a deep", "b", pads=[1] * 4, group=128),
            node("Conv", "b point", "y"),
        ],
        {"x": values((1, 64, 16, 16))},
        {
            "dense": values((128, 64, 3, 3), 1),
            "deep": values((128, 1, 3, 3), 2),
            "point": values((64, 128, 1, 1), 3),
        },
    )
    compiled = compile_model(proto.SerializeToString(), machine, Options(chains="layers"))
    cycles = simulate_program(compiled.program, machine).makespan_ps * machine.clock_hz / 1e12
    loose, tight = bounds_cycles(compiled)
    assert 0 < loose <= tight <= cycles


def test_a_generated_network_is_compared_with_forced_choices() -> None:
    """A seed has one network. No forced choice that fits is faster by more than 0.5 %, or below the bound."""
    drawn = [generated_networks.build(seed).SerializeToString() for seed in (7, 7, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    found = measure("generated-7")
    assert {"layers", "recompute", "direct"} <= found.forced.keys() <= FORCED.keys()
    assert found.loose_cycles <= min(found.cycles, *found.forced.values())
    assert found.cycles < found.forced["layers"]
    assert found.loss <= 0.005
