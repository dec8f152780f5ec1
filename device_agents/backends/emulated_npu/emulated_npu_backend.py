"""The emulated NPU as a backend: compiles probes for a described machine and times them on a virtual clock."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import time
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from device_agents import result_cache
from device_agents.backends import Refused
from device_agents.backends.emulated_npu.timed_model import TimedModel, from_json, time_model, time_models, to_json
from device_agents.backends.option_reader import MOST_SEED, OptionReader
from device_agents.emulated_npu.compiler.graph.hardware_graph import HardwareLayer
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import EmulatorError
from device_agents.emulated_npu.host_processor import HostModel
from device_agents.emulated_npu.machine import Machine, Noise, find_machine, parse_machine
from device_agents.fingerprint import available_cores
from device_agents.messages import LoadRequest, Revealed, Sample, TrueLayer, TrueOverhead, Truth
from device_agents.sources import EMULATOR, HOST_ONLY, sources_digest

FORMAT = "emulated-npu"
_EMULATOR, _BACKEND = sources_digest(EMULATOR, without=HOST_ONLY), sources_digest("backends/emulated_npu")
"""Those of the code that was just imported: later a folder may hold other code than the one that runs."""
DEFAULT_PRESET = "edge"
_REVEALS = {"": (), "fusion": ("fusion",), "fusion,chains": ("fusion", "chains")}
_OPTIONS = {"preset", "machine", "seed", "noise", "reveals", "slow"}
_PRESET = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
_FACTOR = re.compile(r"[0-9]{1,3}(\.[0-9]{1,9})?\Z")
_LONGEST_SLOW = 10_000


@dataclass(frozen=True)
class _LoadedProbe:
    """A loaded probe, and the sizes of its input and output arrays."""

    timed: TimedModel
    input_bytes: int
    output_bytes: int


class EmulatedNpuBackend:
    """One machine and its host. The NPU takes the same time in every run of a probe; only the host varies.

    Options: `preset` names the machine, or `machine` is the text of its file; `seed` seeds the host's noise; `noise`
    is 1 for the noise in the machine's description, or 0 for none; `reveals` is "fusion,chains" (default), "fusion"
    or "".

    `slow` plants slowdowns for tests and benchmarks: "SIGNATURE:FACTOR", or several separated by ";", multiplies the
    latency of every hardware layer with that signature by FACTOR, in every probe and network. It is not part of the
    fingerprint, as a real slowdown would not be. `signatures` lists the signatures of a probe.
    """

    name = "emulated-npu"
    clock = "device"

    def __init__(self, options: Dict[str, Any]) -> None:
        read = OptionReader(self.name, options, _OPTIONS)
        preset, self._machine = _machine(options)
        seed, noise = read.whole("seed", 0, 0, MOST_SEED), read.whole("noise", 1, 0, 1)
        reveals = read.one_of("reveals", _REVEALS, "fusion,chains")
        self._reported = _REVEALS[reveals]
        self.reveals: Tuple[str, ...] = (*self._reported, "kept")
        host = self._machine.host
        self._described = host if noise else replace(host, noise=Noise())
        self._host = HostModel(self._described, seed)
        self._settings = f"preset={preset},machine={self._machine.digest[:16]},noise={noise},seed={seed}"
        self._factors = _factors(options.get("slow", ""))
        self._timed: Dict[str, TimedModel] = {}
        self._probes: Dict[str, _LoadedProbe] = {}

    def fingerprint(self) -> Dict[str, str]:
        """Return the version of the emulator's sources and the machine; a change of either makes another device."""
        return {"runtime": self.name, "runtime_version": _EMULATOR, "settings": self._settings}

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Compile and time the model, once for equal models; the values of weights matter to neither.

        A probe that never runs is not compiled.
        """
        if not request.runs:
            return _fusion(request.model, self._machine) if request.reveal and self._reported else None
        timed = self._known(request.model)
        if timed is None:
            try:
                timed = time_model(request.model, self._machine)
            except EmulatorError as error:
                raise Refused(_words(error)) from error
            self._keep(request.model, timed)
        timed = timed.slowed(self._factors)
        self._probes[request.probe] = _LoadedProbe(timed, sum(map(_bytes, request.inputs)), request.output_bytes)
        chains = timed.chains if "chains" in self._reported else ()
        return _revealed(timed.layers, timed.free_nodes, chains) if request.reveal and self._reported else None

    def prepare(self, models: Sequence[bytes]) -> None:
        """Compile and time models that are new, on all cores; with one core, `load` does it as well."""
        new = {model: None for model in models if self._known(model) is None}
        if min(available_cores(), len(new)) > 1:
            for model, timed in time_models(list(new), self._machine, available_cores()).items():
                self._keep(model, timed)

    def unload(self, probe: str) -> None:
        """Forget the probe; the timing of its model, a few kilobytes, is kept."""
        self._probes.pop(probe, None)

    def run(self, probe: str) -> Sample:
        """Return one inference in virtual device time, beside the wall time of this call."""
        start = time.perf_counter_ns()
        loaded = self._probes[probe]
        total_s = self._host.run(loaded.input_bytes, loaded.output_bytes, loaded.timed.makespan_s)
        device_ns = max(1, round(total_s * 1e9))
        return Sample(wall_ns=max(1, time.perf_counter_ns() - start), device_ns=device_ns)

    def oracle(self, probe: str) -> Truth:
        """Return the true overhead and the true latency of every layer of a loaded probe."""
        timed = self._probes[probe].timed
        return Truth(TrueOverhead(*self._host.true_overhead()), timed.makespan_s, timed.attributed)

    def signatures(self, probe: str) -> Tuple[Tuple[str, TrueLayer], ...]:
        """Return the hardware layers of a loaded probe with their signatures: operation and shapes."""
        timed = self._probes[probe].timed
        return tuple((signature, timed.layers[at]) for at, signature in enumerate(timed.signatures))

    def restarted(self, seed: int, slow: str = "") -> "EmulatedNpuBackend":
        """Return the same device with another seed of the host's noise; it reuses everything compiled.

        The fingerprint stays the same.
        """
        other = copy.copy(self)
        other._host, other._probes, other._factors = HostModel(self._described, seed), {}, _factors(slow)
        return other

    def _known(self, model: bytes) -> Optional[TimedModel]:
        """Return what this session or an earlier one found for a model, None for a new one."""
        key = self._key(model)
        if key not in self._timed:
            try:
                self._timed[key] = from_json(result_cache.get(key) or b"")
            except ValueError:  # nothing was stored
                return None
        return self._timed[key]

    def _keep(self, model: bytes, timed: TimedModel) -> None:
        key = self._key(model)
        self._timed[key] = timed
        result_cache.put(key, to_json(timed))

    def _key(self, model: bytes) -> str:
        parts = (_EMULATOR, _BACKEND, self._machine.digest, hashlib.sha256(model).hexdigest())
        return result_cache.key_of("timed model", *parts)


def _fusion(model: bytes, machine: Machine) -> Revealed:
    """Return the layers of a model on a machine, which are known before it is compiled, without chains."""
    try:
        graph = import_model(model, machine.of_core(0).mfu.columns)
    except EmulatorError as error:
        raise Refused(_words(error)) from error
    return _revealed(graph.layers, graph.free_nodes, ())


def _revealed(
    layers: Iterable[Union[TrueLayer, HardwareLayer]], free_nodes: Sequence[str], chains: Sequence[Sequence[int]]
) -> Revealed:
    named = [{"name": layer.name, "nodes": layer.nodes} for layer in layers]
    return Revealed(FORMAT, json.dumps({"layers": named, "free_nodes": free_nodes, "chains": chains}).encode())


def _factors(slow: Any) -> Dict[str, float]:
    """Return the factor of each signature in the option `slow`."""
    if not isinstance(slow, str) or len(slow) > _LONGEST_SLOW:
        raise Refused("emulated-npu backend: the option slow must be a text SIGNATURE:FACTOR")
    factors = {}
    for part in filter(None, slow.split(";")):
        signature, _, factor = part.rpartition(":")
        if not signature or not _FACTOR.match(factor):
            raise Refused("emulated-npu backend: the option slow must be SIGNATURE:FACTOR, with a factor such as 1.02")
        factors[signature] = float(factor)
    return factors


def _machine(options: Mapping[str, Any]) -> Tuple[str, Machine]:
    """Return the name of the preset and its machine, or "own" and the machine that the option `machine` describes.

    A path is refused, because it would read files of the device.
    """
    text, preset = options.get("machine"), options.get("preset", DEFAULT_PRESET)
    try:
        if text is not None:
            if not isinstance(text, str) or "preset" in options:
                what = "the option machine must be the text of a machine file, without the option preset"
                raise Refused(f"emulated-npu backend: {what}")
            return "own", parse_machine(text, "own")
        if not isinstance(preset, str) or not _PRESET.match(preset):
            what = "the option preset must be a name of lower-case letters, digits and dashes"
            raise Refused(f"emulated-npu backend: {what}")
        return preset, find_machine(preset)
    except EmulatorError as error:
        raise Refused(_words(error)) from error


def _bytes(spec: Dict[str, Any]) -> int:
    return math.prod(int(size) for size in spec["shape"]) * int(np.dtype(spec["dtype"]).itemsize)


def _words(error: EmulatorError) -> str:
    return ". ".join(part.rstrip(".") for part in (error.what, error.why, error.next_step) if part)
