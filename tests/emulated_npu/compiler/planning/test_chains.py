"""The commands of the binary show the passes of a chain: rows computed, kept in and retrieved from the halo buffer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from networks_on_npu import NetworkCase, execute, network_of, relative_error, small_machine
from small_models import by_runtime, model, node, values

from device_agents.emulated_npu.compiler.compiled import Compiled
from device_agents.emulated_npu.compiler.options import HaloChoice, Options
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.execution.functional import FunctionalMachine, memories_for, run
from device_agents.emulated_npu.isa.sequencer import sequence
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command, Function, Operand, Space

Rows = tuple[int, int]

WIDTH, CHANNELS = 7, 3
NAMES = ("x", "conv1", "conv2", "conv3", "conv4")


@dataclass(frozen=True)
class Event:
    """What a command does with rows of a tensor: load, compute, keep (NB to HALO), retrieve (HALO to NB), store."""

    verb: str
    tensor: str
    rows: Rows


def _four_convolutions(height: int = 20) -> tuple[NetworkCase, dict[str, Array]]:
    """Return four 3 x 1 convolutions without padding, and all tensors of the network by name."""
    nodes, constants = [], {}
    for place in range(4):
        constants[f"w{place}"] = values((CHANNELS, CHANNELS, 3, 1), place + 1, -1, 1)
        nodes.append(node("Conv", f"{NAMES[place]} w{place}", NAMES[place + 1]))
    inputs = {"x": values((1, CHANNELS, height, WIDTH))}
    made = by_runtime(model(nodes, inputs, constants, NAMES[1:]), inputs)
    tensors = dict(inputs) | dict(zip(NAMES[1:], made, strict=True))
    return network_of(nodes, inputs, constants, ["conv4"]), tensors


def _chain(halo: HaloChoice, rows: int = 4) -> tuple[Compiled, NetworkCase, dict[str, Array]]:
    network, tensors = _four_convolutions()
    options = Options(chains="whole", tile=(rows, WIDTH), halo=halo, reorder=False)
    return compile_model(network.model, small_machine(), options), network, tensors


def _identify(array: Array, tensors: Mapping[str, Array]) -> tuple[str, Rows]:
    """Return the tensor and the rows that values belong to; columns and channels are complete."""
    count = array.size // (WIDTH * CHANNELS)
    for name, tensor in tensors.items():
        for low in range(tensor.shape[2] - count + 1):
            rows = tensor[0, :, low : low + count]
            for laid_out in (rows, rows.transpose(1, 2, 0)):
                if np.allclose(laid_out.ravel(), array.ravel(), rtol=1e-4, atol=1e-5):
                    return name, (low, low + count)
    raise AssertionError(f"values of shape {array.shape} are rows of no tensor")


def _events(compiled: Compiled, network: NetworkCase, tensors: Mapping[str, Array]) -> Iterator[Event]:
    """Execute the program command by command, and derive from the values what each one moved or computed."""
    machine = FunctionalMachine(memories_for(compiled.machine, compiled.program.footprint))
    run(compiled.program, machine, compiled.image(network.weights), network.inputs)
    machine.memories.clear_on_chip()
    for step in sequence(compiled.program.code, layer_of=compiled.program.layer_of):
        command = step.item
        if isinstance(command, Command):
            machine.execute(command)
            verb = _verb(command)
            if verb:
                moved = machine.memories.view(command.target)
                yield Event(verb, *_identify(moved, tensors))


def _verb(command: Command) -> str:
    target, source = _space(command.target), _space(command.first)
    if command.function is Function.CONVOLVE:
        return "compute"
    if command.function is Function.LOAD and target is Space.NB:
        return "load"
    if command.function is Function.STORE:
        return "store"
    if command.function is Function.COPY and target is Space.HALO:
        return "keep"
    if command.function is Function.COPY and source is Space.HALO:
        return "retrieve"
    return ""


def _space(operand: Operand | None) -> Space | None:
    return None if operand is None else operand.descriptor.space


def _passes(events: Iterator[Event]) -> list[list[Event]]:
    """Return events by pass: a pass ends with its store."""
    passes: list[list[Event]] = [[]]
    for event in events:
        passes[-1].append(event)
        if event.verb == "store":
            passes.append([])
    # What follows the store of a pass would belong to it.
    assert passes.pop() == []
    return passes


def _of(events: list[Event], verb: str) -> dict[str, Rows]:
    found = {event.tensor: event.rows for event in events if event.verb == verb}
    assert len(found) == sum(event.verb == verb for event in events)
    return found


def test_four_layers_in_three_passes_row_by_row() -> None:
    """The chain of S3 (20 rows in, 12 out, three passes) computes every row once, with two halo rows per tensor."""
    first, middle, last = _passes(_events(*_chain("retain")))

    assert _of(first, "load") == {"x": (0, 12)}
    assert _of(first, "compute") == {"conv1": (0, 10), "conv2": (0, 8), "conv3": (0, 6), "conv4": (0, 4)}
    assert _of(first, "keep") == {"x": (10, 12), "conv1": (8, 10), "conv2": (6, 8), "conv3": (4, 6)}
    assert _of(first, "retrieve") == {}
    assert _of(first, "store") == {"conv4": (0, 4)}

    assert _of(middle, "load") == {"x": (12, 16)}
    assert _of(middle, "compute") == {"conv1": (10, 14), "conv2": (8, 12), "conv3": (6, 10), "conv4": (4, 8)}
    assert _of(middle, "retrieve") == {"x": (10, 12), "conv1": (8, 10), "conv2": (6, 8), "conv3": (4, 6)}
    assert _of(middle, "keep") == {"x": (14, 16), "conv1": (12, 14), "conv2": (10, 12), "conv3": (8, 10)}
    assert _of(middle, "store") == {"conv4": (4, 8)}

    assert _of(last, "load") == {"x": (16, 20)}
    assert _of(last, "compute") == {"conv1": (14, 18), "conv2": (12, 16), "conv3": (10, 14), "conv4": (8, 12)}
    assert _of(last, "retrieve") == {"x": (14, 16), "conv1": (12, 14), "conv2": (10, 12), "conv3": (8, 10)}
    assert _of(last, "keep") == {}
    assert _of(last, "store") == {"conv4": (8, 12)}


def test_a_layer_retrieves_before_its_readers_compute() -> None:
    """In every pass, halo rows are retrieved before the layer that needs them, and kept after they were computed."""
    for events in _passes(_events(*_chain("retain"))):
        order = {(event.verb, event.tensor): place for place, event in enumerate(events)}
        for reader, read in zip(NAMES[1:], NAMES, strict=False):
            if ("retrieve", read) in order:
                assert order["retrieve", read] < order["compute", reader]
            if ("keep", read) in order:
                made = order["load", read] if read == "x" else order["compute", read]
                assert made < order["keep", read]


def test_four_layers_recomputed_row_by_row() -> None:
    """With recompute, a pass loads and computes all that it needs, and the auxiliary buffer stays unused."""
    compiled, network, tensors = _chain("recompute")
    passes = _passes(_events(compiled, network, tensors))
    assert [_of(each, "load") for each in passes] == [{"x": (0, 12)}, {"x": (4, 16)}, {"x": (8, 20)}]
    assert [_of(each, "compute") for each in passes] == [
        {"conv1": (0, 10), "conv2": (0, 8), "conv3": (0, 6), "conv4": (0, 4)},
        {"conv1": (4, 14), "conv2": (4, 12), "conv3": (4, 10), "conv4": (4, 8)},
        {"conv1": (8, 18), "conv2": (8, 16), "conv3": (8, 14), "conv4": (8, 12)},
    ]
    assert not any(_of(each, verb) for each in passes for verb in ("keep", "retrieve"))
    assert compiled.program.footprint.halo_bytes == 0


def test_the_size_of_the_auxiliary_buffer_is_what_the_halos_take() -> None:
    """The halo buffer has two rows of every tensor except the output, and its size reduces NB (S3.4)."""
    compiled, _, _ = _chain("retain")
    halo_bytes = 2 * WIDTH * CHANNELS * 4
    footprint = compiled.program.footprint
    assert 4 * halo_bytes <= footprint.halo_bytes <= 4 * (halo_bytes + 63)
    assert footprint.nb_bytes + footprint.halo_bytes <= compiled.machine.nb_bytes


def test_only_the_ends_of_a_chain_touch_external_memory() -> None:
    """A retained chain reads its input once, writes its output once, and moves no other feature maps (S3.1)."""
    events = list(_events(*_chain("retain")))
    assert {event.tensor for event in events if event.verb == "load"} == {"x"}
    assert {event.tensor for event in events if event.verb == "store"} == {"conv4"}
    moved = {verb: sum(e.rows[1] - e.rows[0] for e in events if e.verb == verb) for verb in ("load", "store")}
    assert moved == {"load": 20, "store": 12}


def test_layer_by_layer_every_intermediate_is_written_and_read() -> None:
    """With refetch, every layer's output goes to external memory and back."""
    network, tensors = _four_convolutions()
    compiled = compile_model(network.model, small_machine(), Options(halo="refetch", reorder=False))
    events = list(_events(compiled, network, tensors))
    assert {event.tensor for event in events if event.verb == "load"} == {"x", "conv1", "conv2", "conv3"}
    assert {event.tensor for event in events if event.verb == "store"} == {"conv1", "conv2", "conv3", "conv4"}
    assert all(len(chain) == 1 for chain in compiled.chains)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 11, 12])
@pytest.mark.parametrize("halo", ["retain", "recompute", "retain-columns"])
def test_any_number_of_passes_gives_the_same_values(rows: int, halo: HaloChoice) -> None:
    """For any tile height and halo mode, the output is ONNX Runtime's."""
    compiled, network, _ = _chain(halo, rows)
    assert sum(plan.passes for plan in compiled.plans) == -(-12 // rows)
    assert relative_error(execute(compiled, network), network.expected) < 1e-5
