"""What a process keeps of the networks that it has compiled."""

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from networks_on_npu import execute, network_of, small_machine
from random_networks import machines_for, random_networks
from small_models import node, values

from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.compiler.planning.chains.chain_commands import ChainWriter
from device_agents.emulated_npu.compiler.planning.off_chip.external_memory import choose_spaces, placeholders
from device_agents.emulated_npu.compiler.planning.search import known_estimates
from device_agents.emulated_npu.compiler.planning.search.chain_planner import Planner
from device_agents.emulated_npu.compiler.planning.search.chain_times import ChainTimes
from device_agents.emulated_npu.compiler.planning.search.known_estimates import KnownEstimates
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.emulator_errors import DoesNotFit, EmulatorError
from device_agents.emulated_npu.machine import Machine, find_machine
from device_agents.emulated_npu.timing.cost.command_cost import costs_of
from device_agents.emulated_npu.unit_commands import Queue


def _renamed(model: bytes, order: list[int]) -> bytes:
    """Return a model with other names of its tensors, in an order of their own."""
    proto = onnx.load_model_from_string(model)
    tensors = [name for node in proto.graph.node for name in (*node.input, *node.output) if name]
    names = {name: f"{order[place % len(order)]}.{place}" for place, name in enumerate(dict.fromkeys(tensors))}
    for one in proto.graph.node:
        for part in (one.input, one.output):
            part[:] = [names.get(name, name) for name in part]
    for named in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        named.name = names.get(named.name, named.name)
    return proto.SerializeToString()


def _code(model: bytes, machine: Machine) -> bytes:
    with contextlib.suppress(EmulatorError):
        return compile_model(model, machine, Options(conv_algorithm="direct")).program.code
    return b""


@given(st.data(), st.permutations(range(8)))
@settings(max_examples=6)
def test_programs_do_not_depend_on_what_was_compiled_before(data: st.DataObject, order: list[int]) -> None:
    """A network has the same program alone and after the same network with names in another order."""
    network = data.draw(random_networks())
    machine = data.draw(machines_for(network))
    known_estimates.known_estimates.cache_clear()
    _code(_renamed(network.model, order), machine)
    after = _code(network.model, machine)
    known_estimates.known_estimates.cache_clear()
    assert after == _code(network.model, machine)


def test_zeros_keep_their_sign_after_a_network_with_the_other_one() -> None:
    """A slope of 0.0 and one of -0.0, which are equal, have programs of their own, whichever is compiled first."""
    programs: list[bytes] = []
    for slope in (0.0, -0.0, 0.0):
        nodes = [node("Conv", "x w", "c", pads=[1] * 4), node("LeakyRelu", "c", "y", alpha=slope)]
        network = network_of(nodes, {"x": values((1, 4, 9, 9))}, {"w": values((4, 4, 3, 3))}, ["y"])
        compiled = compile_model(network.model, small_machine())
        found, expected = execute(compiled, network)["y"], network.expected["y"]
        zeros = expected == 0
        assert zeros.any() and np.array_equal(np.signbit(found[zeros]), np.signbit(expected[zeros]))
        programs.append(compiled.program.code)
    assert programs[0] == programs[2] != programs[1]


def test_numbers_of_functions_do_not_matter() -> None:
    """A chain of sums with as many constants needs no more estimates than one with the same constant."""
    counts = []
    for constants in (np.full(8, 1.0), np.arange(1.0, 9.0)):
        nodes = [node("Add", f"{place} c{place}", str(place + 1)) for place in range(8)]
        held = {f"c{place}": np.float32(number) for place, number in enumerate(constants)}
        known_estimates.known_estimates.cache_clear()
        compile_model(network_of(nodes, {"0": values((1, 4, 9, 9))}, held, ["8"]).model, small_machine())
        counts.append(len(known_estimates.known_estimates()))
    assert counts[0] == counts[1] > 0


@given(st.lists(st.integers(0, 24).map(lambda size: 256 * size), min_size=2, max_size=6))
@settings(max_examples=15)
def test_halo_buffers_share_only_what_they_have_in_common(sizes: list[int]) -> None:
    """Each size of the halo buffer has the same chains, and ways to run them, alone and after other sizes."""
    nodes = [node("Conv", f"t{at} w", f"t{at + 1}", pads=[1] * 4) for at in range(4)]
    network = network_of(nodes, {"t0": values((1, 8, 24, 24))}, {"w": values((8, 8, 3, 3))}, ["t4"])
    machine = replace(small_machine(), nb_bytes=24 << 10, halo_bytes=6 << 10)
    graph = compile_model(network.model, machine, Options(conv_algorithm="direct")).graph

    def found(planner: Planner, size: int) -> object:
        with contextlib.suppress(DoesNotFit):
            within = planner.within(size)
            outline = within.outline()
            return outline, [within.decide(start, end) for start, end in itertools.pairwise(outline.ends)]
        return None

    def planner() -> Planner:
        known_estimates.known_estimates.cache_clear()
        return Planner(graph, machine, Options(), placeholders(graph, machine, choose_spaces(graph, machine)))

    together = planner()
    in_turn = [found(together, size) for size in sizes]
    assert in_turn == [found(planner(), size) for size in sizes]


def test_numbers_do_not_come_again() -> None:
    """Where all numbers are forgotten, new ones differ from them, and the same key has the same one again."""
    known, most = KnownEstimates(), 2 * known_estimates.MOST_KEYS
    assert len({known.number(key) for key in range(most)}) == most
    assert known.number(0) == KnownEstimates().number(0)
    first = known.rows("chain", lambda: ())
    assert known.rows("chain", lambda: (_ for _ in ()).throw(AssertionError)) == first


def test_estimates_of_other_processes_do_not_exceed_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process keeps its own estimates, and those of others only while there is room."""
    monkeypatch.setattr(known_estimates, "MOST_KEYS", 4)
    other, own = KnownEstimates(), KnownEstimates()
    for key in range(4):
        other.rows(key, lambda: ((1, 2, 3),))
    for key in ("own", 0):
        own.rows(key, lambda: ())
    own.add_json(other.new_json())
    assert len(own) == 4 and own.rows(0, pytest.fail) == ()
    assert own.rows(1, pytest.fail) == ((1, 2, 3),)


@pytest.mark.parametrize(("kernel", "pooled", "tile"), [(2, False, (12, 12)), (3, True, None)])
def test_tiles_have_their_own_times(kernel: int, *, pooled: bool, tile: tuple[int, int] | None) -> None:
    """Predicted compute times are those of commands: edges read fewer inputs, parts of channels need more blocks."""
    npu = replace(find_machine("ethos-u55-256"), nb_bytes=64 << 10, sb_bytes=64 << 10, halo_bytes=8 << 10)
    weights = {"w": values((64, 16, kernel, 1))}
    nodes = [node("Conv", "x w", "y", pads=[0, 0, kernel - 1, 0]), *[node("GlobalAveragePool", "y", "z")] * pooled]
    model = network_of(nodes, {"x": values((1, 16, 24, 48))}, weights, [nodes[-1].output[0]]).model
    compiled = compile_model(model, npu, Options(tile=tile))
    graph, (decision,) = compiled.graph, compiled.decisions
    externals = placeholders(graph, npu, choose_spaces(graph, npu))
    for (plan,) in [choice.chains for choice in (decision.chosen, *decision.others)]:
        commands = ChainWriter(plan, graph.values, npu, externals).commands()
        computing_ps = sum(costs_of(npu).duration_ps(each) for each in commands if each.queue is Queue.CP)
        assert ChainTimes(graph.values, npu, externals, KnownEstimates()).timed(plan).times.cp_ps == computing_ps
    assert any(plan.passes > 1 for choice in (decision.chosen, *decision.others) for plan in choice.chains)
