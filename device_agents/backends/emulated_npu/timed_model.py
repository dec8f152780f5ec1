"""The latencies of models on a machine: found by compiling and simulating them, kept as JSON without loss."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from dataclasses import dataclass, replace
from typing import IO, Any, Container, Dict, Iterator, List, Sequence, Tuple

from device_agents.child_processes import end_with_parent
from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.options import OF_DEVICE
from device_agents.emulated_npu.compiler.planning.search.known_estimates import known_estimates
from device_agents.emulated_npu.compiler.stages import compile_model
from device_agents.emulated_npu.gc_tuning import YOUNG_OBJECTS_OF_MANY_MODELS, rare_collections
from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.timing.simulation import simulate_program
from device_agents.messages import TrueLayer

_CONTROL = "control"
"""The name of the layer for time that belongs to no layer of the model."""
MOST_MODELS = 1000
"""As many numbers as a pipe holds with room to spare."""
_NUMBER = struct.Struct("<H")


@dataclass(frozen=True)
class TimedModel:
    """The latencies of one model on the machine, and its hardware layers.

    `chains` holds indices of layers; `signatures` has one entry per layer, in the same order, without the control.
    """

    makespan_s: float
    layers: Tuple[TrueLayer, ...]
    free_nodes: Tuple[str, ...]
    chains: Tuple[Tuple[int, ...], ...]
    signatures: Tuple[str, ...]

    def slowed(self, factors: Dict[str, float]) -> "TimedModel":
        """Return the model with the latencies of layers multiplied by the factors of their signatures.

        The makespan grows by as much as the layers do.
        """
        if factors.keys().isdisjoint(self.signatures):
            return self
        layers = list(self.layers)
        for at, signature in enumerate(self.signatures):
            layers[at] = replace(layers[at], latency_s=layers[at].latency_s * factors.get(signature, 1.0))
        added_s = sum(layer.latency_s for layer in layers) - sum(layer.latency_s for layer in self.layers)
        return replace(self, makespan_s=self.makespan_s + added_s, layers=tuple(layers))

    @property
    def attributed(self) -> Tuple[TrueLayer, ...]:
        """The layers, each with its nodes; all layers that a node became have this node, not only the last.

        Layers that a node became have names that begin with its own. Those that the compiler added have none.
        """
        known = {node for layer in self.layers for node in layer.nodes}.union(self.free_nodes)
        return tuple(
            layer if layer.nodes else replace(layer, nodes=_nodes_of(layer.name, known)) for layer in self.layers
        )


def time_model(model: bytes, machine: Machine) -> TimedModel:
    """Compile a model and simulate one run; raises an EmulatorError."""
    compiled = compile_model(model, machine, OF_DEVICE)
    timing = simulate_program(compiled.program, machine)
    latencies_ps = dict(enumerate(timing.layers))
    layers = [
        TrueLayer(layer.name, tuple(layer.nodes), latencies_ps.get(layer.index, 0) / PS_PER_S)
        for layer in compiled.graph.layers
    ]
    rest_ps = timing.makespan_ps - sum(timing.layers)
    if rest_ps:
        layers.append(TrueLayer(_CONTROL, (), rest_ps / PS_PER_S))
    signatures = tuple(map(_signature, compiled.graph.layers))
    chains = tuple(tuple(map(int, chain)) for chain in compiled.chains)
    return TimedModel(
        timing.makespan_ps / PS_PER_S, tuple(layers), tuple(compiled.graph.free_nodes), chains, signatures
    )


def _nodes_of(name: str, known: Container[str]) -> Tuple[str, ...]:
    """Return the node whose name a layer's name begins with, followed by a dot or a slash; nothing if there is none."""
    while name and name not in known:
        name = name[: max(name.rfind("."), name.rfind("/"), 0)]
    return (name,) if name else ()


def to_json(timed: TimedModel) -> bytes:
    """Return a timed model as one line of JSON."""
    fields = {
        "makespan_s": timed.makespan_s,
        "layers": [[layer.name, layer.nodes, layer.latency_s] for layer in timed.layers],
        "free_nodes": timed.free_nodes,
        "chains": timed.chains,
        "signatures": timed.signatures,
    }
    return json.dumps(fields, allow_nan=False).encode()


def from_json(content: bytes) -> TimedModel:
    """Return the timed model that `to_json` wrote; raises ValueError for any other content."""
    try:
        fields = json.loads(content)
        layers = tuple(
            TrueLayer(_text(name), tuple(map(_text, nodes)), _seconds(latency_s))
            for name, nodes, latency_s in fields["layers"]
        )
        return TimedModel(
            _seconds(fields["makespan_s"]),
            layers,
            tuple(map(_text, fields["free_nodes"])),
            tuple(tuple(map(_index, chain)) for chain in fields["chains"]),
            tuple(map(_text, fields["signatures"])),
        )
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("not a timed model: %s" % error) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _seconds(value: Any) -> float:
    if type(value) is not float or not 0 <= value < float("inf"):
        raise ValueError("not a time in seconds")
    return value


def _index(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("not an index")
    return value


def _signature(layer: HardwareLayer) -> str:
    """Return operation and shapes of a hardware layer as text, equal for equal layers of all models."""
    read = ["x".join(map(str, view.shape)) for view in layer.reads]
    weights = [] if layer.weights is None else ["w" + "x".join(map(str, layer.weights.shape))]
    window = "x".join(map(str, layer.settings.kernel))
    written = "x".join(map(str, layer.output.shape))
    return f"{layer.function.name} {','.join([*read, *weights])} {window} {written}"


def time_models(models: Sequence[bytes], machine: Machine, jobs: int) -> Dict[bytes, TimedModel]:
    """Return the timed models that `jobs` processes compiled, those left out that could not be; raises OSError.

    This process and its forks take the numbers of models from one pipe, the largest model first, and each fork writes
    what it finds to a file of its own. What one does not finish is missing in the result; loading the probe compiles
    the model then, and reports what is wrong with it. After each model they exchange the estimates of the chains that
    they met; this process keeps them, and later forks inherit them.
    """
    found: Dict[bytes, TimedModel] = {}
    for first in range(0, len(models), MOST_MODELS):
        part = sorted(models[first : first + MOST_MODELS], key=len, reverse=True)
        found.update(_time_part(part, machine, min(jobs, len(part))))
    return found


def _time_part(models: Sequence[bytes], machine: Machine, jobs: int) -> Dict[bytes, TimedModel]:
    waiting, fill = os.pipe()
    children: List[int] = []
    results = [tempfile.TemporaryFile() for _ in range(jobs - 1)]  # noqa: SIM115 - closed below
    with tempfile.TemporaryFile(buffering=0) as exchange:
        work = _Work(models, machine, waiting, exchange)
        try:
            try:
                os.write(fill, b"".join(map(_NUMBER.pack, range(len(models)))))
            finally:
                os.close(fill)  # the forks do not have it, and all see the end of the numbers
            try:
                with contextlib.suppress(OSError):  # as many processes as the system allows
                    for result in results:
                        children.append(_fork(work, result))
                own = list(work.timed())
            finally:
                for child in children:
                    os.waitpid(child, 0)
            work.exchange_estimates()
            found = (*own, *(one for result in results for one in _read(result)))
            return {models[number]: from_json(content) for number, content in found}
        finally:
            os.close(waiting)
            for result in results:
                result.close()


@dataclass
class _Work:
    """The models that processes share, the pipe with the numbers of those left, and a file with all their estimates."""

    models: Sequence[bytes]
    machine: Machine
    waiting: int
    exchange: IO[bytes]
    seen_bytes: int = 0

    def timed(self) -> Iterator[Tuple[int, bytes]]:
        """Compile models whose numbers arrive on the pipe; yields their numbers and results."""
        with rare_collections(YOUNG_OBJECTS_OF_MANY_MODELS):
            while taken := os.read(self.waiting, _NUMBER.size):
                (number,) = _NUMBER.unpack(taken)
                with contextlib.suppress(Exception):  # loading the probe meets the same error, and reports it
                    yield number, to_json(time_model(self.models[number], self.machine))
                self.exchange_estimates()

    def exchange_estimates(self) -> None:
        """Write what this process found to the file, whose end all processes share, and keep what others wrote."""
        self.exchange.write(known_estimates().new_json() + b"\n")
        file = self.exchange.fileno()
        content = os.pread(file, os.fstat(file).st_size - self.seen_bytes, self.seen_bytes)
        *lines, rest = content.split(b"\n")
        self.seen_bytes += len(content) - len(rest)
        for line in lines:
            with contextlib.suppress(ValueError):  # a process that was killed may have left part of a line
                known_estimates().add_json(line)


def _fork(work: _Work, result: IO[bytes]) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        end_with_parent(parent)
        for number, content in work.timed():
            result.write(b"%d %s\n" % (number, content))
            result.flush()
        code = 0
    finally:
        os._exit(code)  # nothing of the worker's own ending may run here


def _read(result: IO[bytes]) -> Iterator[Tuple[int, bytes]]:
    """Yield the results of a fork; one that was killed may have left part of a line."""
    result.seek(0)
    for line in result.read().split(b"\n")[:-1]:
        number, _, content = line.partition(b" ")
        yield int(number), content
