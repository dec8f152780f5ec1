"""OpenVINO on the CPU or another processor of this device, in 32-bit floats where it has them."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from device_agents import arrays
from device_agents.backends import Refused
from device_agents.backends.cpu_runtime import CpuRuntime, LoadedProbe, first_run
from device_agents.backends.onnx_bytes import read_nodes, with_weights
from device_agents.backends.option_reader import OptionReader
from device_agents.backends.runtime_profile import makespan_s, truth_of, undisturbed_mean
from device_agents.messages import LoadRequest, Revealed, TrueLayer, Truth

_MICROSECONDS = 1e6
_NO_WORK = ("Input", "Output", "Const")


class Counters:
    """Runs of a model compiled with counters of nodes, which report the mean of all runs so far in whole microseconds.

    Two consecutive means give the time of one run, to within as many microseconds as there were runs. Over many runs
    the rounding errors cancel out.
    """

    def __init__(self, infer: Callable[[], Any], read: Callable[[], Any], runs: int) -> None:
        self._infer = infer
        self._read = read
        self._runs = runs
        self._totals_us: List[Dict[str, float]] = [self._totals()]

    def run(self) -> None:
        """Run once."""
        self._infer()
        self._runs += 1
        self._totals_us.append(self._totals())

    def per_run_us(self) -> Dict[str, List[float]]:
        """Return for each executed node its time in each call of `run`, in microseconds."""
        last = self._totals_us[-1]
        numbers = range(1, len(self._totals_us))
        return {
            name: [self._totals_us[at][name] - self._totals_us[at - 1][name] for at in numbers]
            for name in last
            if last[name]
        }

    def _totals(self) -> Dict[str, float]:
        totals: Dict[str, float] = {}
        for node in self._read():
            mean_us = round(node.real_time.total_seconds() * _MICROSECONDS)
            totals[node.node_name] = totals.get(node.node_name, 0.0) + self._runs * mean_us
        return totals


def _runtime() -> Any:
    """Import openvino without its telemetry package, with which it reports to its vendor on import."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    import openvino

    return openvino


openvino = _runtime()
FORMAT = "openvino"
_OPTIONS = {"threads", "device"}
_CPU = "CPU"
_WARMUP_RUNS = 2
_TRUNCATED_US = 1.0
"""Mean loss by truncation to whole microseconds: half of one for each run, and half of one for the mean."""


class OpenVinoDevice(CpuRuntime):
    """Compiled models on one of OpenVINO's devices, one stream; a probe's `engine` is its inference request.

    Inputs and outputs are in memory that host and runtime share, so a run copies neither.

    Devices other than the CPU have wall time, because the CPU only waits for them, and reveal nothing of their graph.
    """

    name = "openvino"
    reveals: Tuple[str, ...] = ("placement",)

    def __init__(self, options: Dict[str, Any]) -> None:
        """Read the options; raises Refused for a device that the runtime does not find here."""
        read = OptionReader(self.name, options, _OPTIONS)
        super().__init__(read.threads())
        self._core = openvino.Core()
        self._device = _device(read, self._core)
        self._precision = "f32"
        self._settings: Dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
        if self._device == _CPU:
            self._settings.update(
                INFERENCE_NUM_THREADS=self._threads,
                NUM_STREAMS=1,
                # The operating system or the caller of the agent chooses the core.
                ENABLE_CPU_PINNING=False,
            )
        else:
            self.clock = "wall"
            supported = self._core.get_property(self._device, "OPTIMIZATION_CAPABILITIES")
            self._precision = "f32" if "FP32" in supported else "f16"
        # The default rounds to 16 bits where the device supports that.
        self._settings["INFERENCE_PRECISION_HINT"] = self._precision

    def fingerprint(self) -> Dict[str, str]:
        """Return runtime, version and settings."""
        settings = f"threads={self._threads},streams=1,precision={self._precision},pinning=no,outputs=shared"
        settings += f",device={self._device}"
        facts = {"runtime": "openvino", "runtime_version": openvino.__version__, "settings": settings}
        if self._device == _CPU:
            return {**facts, "activation_memory": "session"}  # compiled models share none
        return {**facts, "device": str(self._core.get_property(self._device, "FULL_DEVICE_NAME"))}

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Compile the model with its weights as constants, and run it once."""
        self._loaded[request.probe] = self._open(request)
        return None

    def _open(self, request: LoadRequest, **settings: Any) -> LoadedProbe:
        try:
            model = with_weights(request.model, {spec["name"]: arrays.make(spec) for spec in request.weights})
            wanted = {**self._settings, **settings}
            started = time.perf_counter()
            compiled = self._core.compile_model(self._core.read_model(model), self._device, wanted)
            compile_s = time.perf_counter() - started
            del model
            inference = compiled.create_infer_request()
            inputs = {spec["name"]: self._input(spec, index) for index, spec in enumerate(request.inputs)}
            read = {name for port in compiled.inputs for name in port.get_names()}  # the runtime drops the others
            for name in inputs.keys() & read:
                inference.set_tensor(name, openvino.Tensor(inputs[name], shared_memory=True))
            # A copy for NumPy would take as long as malloc needs for its pages, which depends on other probes.
            run = partial(inference.infer, share_outputs=True)
            report = first_run(run, compile_s)
        except Exception as error:  # the runtime raises RuntimeError, its bindings anything
            raise Refused(str(error)) from error
        return LoadedProbe(request, inference, run, report, inputs)


class OpenVinoBackend(OpenVinoDevice):
    """The CPU as OpenVINO's device, which also reports the graph that it executes and the times of its nodes.

    With one thread it computes on the calling thread, so that thread's CPU time is that of the process.
    """

    reveals: Tuple[str, ...] = ("fusion",)

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Compile the model with its weights as constants, and run it once."""
        loaded = self._open(request)
        self._loaded[request.probe] = loaded
        return Revealed(FORMAT, encode(_executed(loaded))) if request.reveal else None

    def oracle(self, probe: str) -> Truth:
        """Return a probe's layer latencies from the runtime's counters, in a second model compiled with them.

        Its runs alternate with those of the loaded model. Counters read the clock twice per node, which is below their
        resolution. The remaining difference from a run without counters is removed in proportion to the layers.
        """
        loaded = self._loaded[probe]
        counting = self._open(loaded.request, PERF_COUNT=True)
        for _ in range(_WARMUP_RUNS - 1):  # opening ran it once
            counting.run()
        counters = Counters(counting.run, lambda: counting.engine.profiling_info, _WARMUP_RUNS)
        plain = self._alternate(loaded.run, counters.run)
        slack_us = 2.0 * (_WARMUP_RUNS + len(plain))  # of a single run's time
        means_us = {name: undisturbed_mean(taken, slack_us) for name, taken in counters.per_run_us().items()}
        layers = [
            TrueLayer(node.name, node.serves, max(0.0, means_us[node.name] + _TRUNCATED_US) / 1e6)
            for node in _executed(counting)
            if node.name in means_us
        ]
        return truth_of(layers, makespan_s(plain))


def open_openvino(options: Dict[str, Any]) -> OpenVinoDevice:
    """Return the backend for these options; raises Refused."""
    return (OpenVinoBackend if options.get("device", _CPU) == _CPU else OpenVinoDevice)(options)


def _device(read: OptionReader, core: Any) -> str:
    """Return the device that the options select: one of those that OpenVINO finds, with or without its number."""
    wanted, found = read.text("device", _CPU), list(core.available_devices)
    if wanted not in found and wanted not in {one.partition(".")[0] for one in found}:
        raise read.wrong("device", f"must be one that OpenVINO finds here: {', '.join(found)}; it is {wanted[:80]!r}")
    return wanted


def _executed(loaded: LoadedProbe) -> List[ExecutedNode]:
    return executed_nodes(loaded.engine.get_compiled_model(), loaded.request.model)


@dataclass(frozen=True)
class ExecutedNode:
    """An executed node: the nodes of the sent model that it computes, and the memory layout of its first result.

    A node that OpenVINO adds, such as a reorder or half of a decomposed operator, computes none of them. It `serves`
    the nodes of the first node that reads its result, or else of the node whose result it reads. A layout names
    dimensions in memory order: "abcd" is plain, "acdb" has channels last.
    """

    name: str
    nodes: Tuple[str, ...]
    serves: Tuple[str, ...]
    layout: str


def executed_nodes(compiled: Any, sent: bytes) -> List[ExecutedNode]:
    """Return what a compiled model executes, in an order of execution, without nodes that read constants only."""
    known = _known(sent)
    operations = list(compiled.get_runtime_model().get_ordered_ops())
    facts = [
        {name: str(getattr(value, "value", value)) for name, value in operation.get_rt_info().items()}
        for operation in operations
    ]
    places = {operation.get_friendly_name(): at for at, operation in enumerate(operations)}
    reads = [_reads(operation, places) for operation in operations]
    live = _live(facts, reads)
    nodes = [_originals(fact, known) if at in live else () for at, fact in enumerate(facts)]
    serves = _served(nodes, reads, live)
    layouts = [fact.get("outputLayouts", "").partition(",")[0] for fact in facts]
    return [
        ExecutedNode(operation.get_friendly_name(), nodes[at], serves[at], layouts[at])
        for at, operation in enumerate(operations)
        if at in live and facts[at].get("layerType") not in _NO_WORK
    ]


def encode(nodes: Sequence[ExecutedNode]) -> bytes:
    """Encode as JSON the executed nodes that compute nodes of the sent model."""
    layers = [{"name": node.name, "nodes": node.nodes, "layout": node.layout} for node in nodes if node.nodes]
    return json.dumps({"layers": layers}).encode()


def _reads(operation: Any, places: Dict[str, int]) -> List[int]:
    names = (operation.input_value(at).get_node().get_friendly_name() for at in range(operation.get_input_size()))
    return [places[name] for name in names if name in places]


def _live(facts: Sequence[Dict[str, str]], reads: Sequence[Sequence[int]]) -> Set[int]:
    """Return the indices of operations that depend on an input of the model."""
    live: Set[int] = set()
    for at, fact in enumerate(facts):
        if fact.get("layerType") == "Input" or any(one in live for one in reads[at]):
            live.add(at)
    return live


def _known(sent: bytes) -> Dict[str, str]:
    """Map the names that OpenVINO uses for nodes, their own or those of model outputs, to names of nodes."""
    nodes = read_nodes(sent)
    results = {output: node.name for node in nodes for output in node.outputs if output}
    return {**results, **{node.name: node.name for node in nodes}}


def _originals(facts: Dict[str, str], known: Mapping[str, str]) -> Tuple[str, ...]:
    """Return the sent nodes; OpenVINO appends the part of a node after a slash, as in `n0/WithoutBiases`."""
    names = (name.partition("/")[0] for name in facts.get("originalLayersNames", "").split(","))
    return tuple(dict.fromkeys(known[name] for name in names if name in known))


def _served(nodes: Sequence[Tuple[str, ...]], reads: Sequence[Sequence[int]], live: Set[int]) -> List[Tuple[str, ...]]:
    serves = list(nodes)
    readers: Dict[int, int] = {}
    for at in reversed(range(len(nodes))):
        if at in live:
            if not serves[at] and at in readers:
                serves[at] = serves[readers[at]]
            readers.update((one, at) for one in reads[at])
    for at in sorted(live):
        if not serves[at]:
            serves[at] = next((serves[one] for one in reads[at] if serves[one]), ())
    return serves
