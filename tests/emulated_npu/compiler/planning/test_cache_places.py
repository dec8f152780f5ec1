"""Values share the last-level cache by lifetime, and lie over others that a chain reads for the last time."""

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import NetworkCase, execute, network_of, relative_error, small_machine
from small_models import node, values

from device_agents.emulated_npu.arithmetic import aligned
from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.allocation import Lifetime
from device_agents.emulated_npu.compiler.planning.off_chip.cache_places import place_by_gain
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.timing.cost.transfer_cost import external_bytes
from device_agents.emulated_npu.unit_commands import Command, Space

_ROOM_BYTES = 1 << 14


@st.composite
def _lives(draw: st.DrawFn) -> tuple[list[Lifetime], dict[tuple[str, str], int]]:
    """Draw values with lifetimes, and distances for pairs of which one ends where the other begins."""
    drawn = draw(st.lists(st.tuples(st.integers(1, 6000), st.integers(0, 6), st.integers(0, 3)), max_size=10))
    lives = [Lifetime(str(number), size, first, first + span) for number, (size, first, span) in enumerate(drawn)]
    pairs = [
        (one.name, other.name)
        for one in lives
        for other in lives
        if one.first < one.last == other.first < other.last and draw(st.booleans())
    ]
    return lives, {pair: 64 * draw(st.integers(0, 20)) for pair in pairs}


@settings(max_examples=100)
@given(_lives(), st.integers(0, 2))
def test_values_overlap_only_where_one_trails_the_other(
    drawn: tuple[list[Lifetime], dict[tuple[str, str], int]], parts: int
) -> None:
    """Values that live at the same time are apart, or one begins the given distance before the other."""
    lives, trails = drawn
    part_of = {life.name: int(life.name) % (parts + 1) for life in lives}
    addresses, used = place_by_gain(lives, part_of, trails, _ROOM_BYTES)
    assert used <= _ROOM_BYTES
    kept = [life for life in lives if life.name in addresses]
    for one in kept:
        assert addresses[one.name] % 64 == 0 and 0 <= addresses[one.name] <= used - one.bytes
        for other in kept:
            together = one.first <= other.last and other.first <= one.last
            if one is other or not (together or part_of[one.name] != part_of[other.name]):
                continue
            low, high = addresses[one.name], addresses[other.name]
            apart = low + one.bytes <= high or high + other.bytes <= low
            same_part = part_of[one.name] == part_of[other.name]
            pairs = [(low, high, one.name, other.name), (high, low, other.name, one.name)]
            trailing = [over + trails[a, b] <= under for under, over, a, b in pairs if (a, b) in trails]
            assert apart or (same_part and any(trailing))


def test_what_gains_most_has_its_place_first() -> None:
    """A value that comes later in the list has a place only where the values before it leave room."""
    lives = [Lifetime(name, _ROOM_BYTES // 2, 0, 1) for name in "abc"]
    addresses, used = place_by_gain(lives, dict.fromkeys("abc", 0), {}, _ROOM_BYTES)
    assert set(addresses) == {"a", "b"} and used == aligned(_ROOM_BYTES)


def _maps(kernel: int, count: int = 5) -> NetworkCase:
    """Return convolutions of maps of 48 x 48 x 8, each 72 KiB, one after the other."""
    nodes, constants = [], {}
    for place in range(count):
        constants[f"w{place}"] = values((8, 8, kernel, kernel), place, -0.3, 0.3)
        pads = [kernel // 2] * 4
        nodes.append(node("Conv", f"{f't{place - 1}' if place else 'x'} w{place}", f"t{place}", pads=pads))
    return network_of(nodes, {"x": values((1, 8, 48, 48))}, constants, [f"t{count - 1}"])


def _with_cache(cache_bytes: int) -> Machine:
    return small_machine(nb_bytes=24 << 10, sb_bytes=64 << 10, llc=replace(find_machine("edge").llc, bytes=cache_bytes))


def _bytes_written_to_ddr(compiled: Compiled) -> int:
    steps = sequence(compiled.program.code, layer_of=compiled.program.layer_of)
    commands = (step.item for step in steps if isinstance(step.item, Command))
    traffic = (one for command in commands for one in external_bytes(command) if one.space is Space.DDR)
    return sum(one.written_bytes for one in traffic)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_maps_of_which_two_do_not_fit_lie_over_each_other(kernel: int) -> None:
    """Layer by layer, each map replaces the one before it, so that only the output goes to DDR."""
    network = _maps(kernel)
    map_bytes = 48 * 48 * 8 * 4
    compiled = compile_model(network.model, _with_cache(map_bytes * 15 // 8), Options("layers"))
    assert all(plan.passes > 1 for plan in compiled.plans)
    assert relative_error(execute(compiled, network), network.expected) <= 1e-4
    assert _bytes_written_to_ddr(compiled) == map_bytes


def test_a_small_cache_holds_what_moves_most() -> None:
    """With room for one map of two, the map that three layers read is in the cache, not the one that one reads."""
    nodes = [
        node("Conv", "x w0", "often"),
        node("Conv", "often w1", "once"),
        node("Conv", "once w2", "a"),
        node("Conv", "often w3", "b"),
        node("Conv", "often w4", "c"),
    ]
    constants = {f"w{place}": values((8, 8, 1, 1), place, -0.3, 0.3) for place in range(5)}
    network = network_of(nodes, {"x": values((1, 8, 48, 48))}, constants, ["a", "b", "c"])
    compiled = compile_model(network.model, _with_cache(48 * 48 * 8 * 4), Options("layers"))
    assert relative_error(execute(compiled, network), network.expected) <= 1e-4
    steps = sequence(compiled.program.code, layer_of=compiled.program.layer_of)
    loads = [(step.item.layer, external_bytes(step.item)) for step in steps if isinstance(step.item, Command)]
    readers = {layer for layer, traffic in loads for one in traffic if one.space is Space.LLC and one.read_bytes}
    assert len(readers) == 3
