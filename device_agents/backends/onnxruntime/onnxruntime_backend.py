"""ONNX Runtime on the CPU of this device."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, List, Optional, Tuple

import onnxruntime

from device_agents import arrays
from device_agents.backends import Refused
from device_agents.backends.cpu_runtime import CpuRuntime, LoadedProbe, first_run
from device_agents.backends.onnx_bytes import chain_model, with_packed
from device_agents.backends.onnxruntime.node_times import WARMUP_RUNS, NodeTimes, read_profile, stands_for
from device_agents.backends.onnxruntime.session_settings import CPU, SessionSettings
from device_agents.backends.runtime_profile import makespan_s, truth_of, undisturbed_mean
from device_agents.fingerprint import available_cores
from device_agents.messages import LoadRequest, Revealed, Sample, TrueLayer, Truth

_EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
_EXTERNAL_FROM_BYTES = "session.optimized_model_external_initializers_min_size_in_bytes"
_MOST_LOADERS = 4
_RESOLUTION_US = 1.0
_CHAIN, _SHORT_CHAIN = 60, 20


@dataclass(frozen=True)
class CallCost:
    """The time of a run outside its nodes, and the time that profiling adds to each node."""

    call_s: float
    profiling_us: float


class OnnxRuntimeBackend(CpuRuntime):
    """Sessions of ONNX Runtime that share one arena."""

    name = "onnxruntime"
    reveals: Tuple[str, ...] = ("fusion", "kept")

    def __init__(self, options: Dict[str, Any]) -> None:
        self._settings = SessionSettings(self.name, options)
        super().__init__(self._settings.threads)
        self._call_cost: Optional[CallCost] = None

    def fingerprint(self) -> Dict[str, str]:
        """Return runtime, version and settings."""
        return self._settings.fingerprint()

    def loads_at_once(self) -> int:
        """Return how many sessions may be loaded side by side: a pool of threads is shared and would be in use."""
        return min(_MOST_LOADERS, available_cores()) if self._threads == 1 else 1

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Load a session and run it once, so that memory of the first run is allocated."""
        if not request.reveal:
            self._loaded[request.probe] = self._open(request, self._settings.session_options())
            return None
        loaded, graph = self._open_revealing(request, self._settings.session_options())
        self._loaded[request.probe] = loaded
        return Revealed("onnxruntime", graph)

    def oracle(self, probe: str) -> Truth:
        """Return a probe's layer latencies from the runtime's own profile, in a second session that profiles.

        Its runs alternate with those of the loaded session. Chains of nearly empty nodes show what a run takes besides
        its nodes, which belongs to no layer, and how much profiling adds to a node; this is subtracted from each. The
        remaining difference from a run without profiling is removed in proportion to the layers.
        """
        loaded = self._loaded[probe]
        if self._call_cost is None:
            self._call_cost = self._measure_call_cost()
        cost = self._call_cost
        plain, times, graph = self._profile(loaded, self._settings.session_options())
        nodes = stands_for(loaded.request.model, graph, [name for name, _ in times])
        layers = []
        for at, (name, taken) in enumerate(times):
            latency_us = undisturbed_mean(taken, _RESOLUTION_US) - cost.profiling_us
            layers.append(TrueLayer(name, nodes[at], max(0.0, latency_us) / 1e6))
        return truth_of(layers, max(0.0, makespan_s(plain) - cost.call_s))

    def _measure_call_cost(self) -> CallCost:
        """Measure two chains of different lengths, in turn, and the profile of the longer one."""
        shape = {"name": "t0", "dtype": "float32", "shape": [1, 1, 1, 1], "distribution": "constant", "low": 1.0}
        options = partial(self._settings.session_options, "disabled")
        chain, short = (
            self._open(LoadRequest("chain", chain_model(length), [], [shape], 4), options())
            for length in (_CHAIN, _SHORT_CHAIN)
        )
        short_runs: List[Sample] = []
        chain_s = makespan_s(self._alternate(chain.run, lambda: short_runs.append(self._timed(short.run))))
        node_s = max(0.0, chain_s - makespan_s(short_runs)) / (_CHAIN - _SHORT_CHAIN)
        call_s = max(0.0, chain_s - _CHAIN * node_s)
        plain, times, _ = self._profile(chain, options())
        profiled_us = sum(undisturbed_mean(taken, _RESOLUTION_US) for _, taken in times)
        return CallCost(call_s, max(0.0, profiled_us - (makespan_s(plain) - call_s) * 1e6) / len(times))

    def _profile(self, loaded: LoadedProbe, options: Any) -> Tuple[List[Sample], NodeTimes, bytes]:
        """Return plain runs, the node times of as many profiled runs, and the runtime's graph."""
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(os.getcwd(), "profile")
        profiled, graph = self._open_revealing(loaded.request, options)
        for _ in range(WARMUP_RUNS - 1):  # opening ran it once
            profiled.run()
        plain = self._alternate(loaded.run, profiled.run)
        path = profiled.engine.end_profiling()
        try:
            with open(path, "rb") as content:
                return plain, read_profile(content.read(), len(plain)), graph
        finally:
            os.unlink(path)

    def _open(self, request: LoadRequest, options: Any) -> LoadedProbe:
        feeds = {spec["name"]: self._input(spec, index) for index, spec in enumerate(request.inputs)}
        try:
            # The values must live until the session exists; it copies or packs them.
            model, weights = with_packed(request.model, {spec["name"]: arrays.make(spec) for spec in request.weights})
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
            if values:
                options.add_external_initializers(list(weights), values)
            started = time.perf_counter()
            session = onnxruntime.InferenceSession(model, options, providers=[CPU])
            compile_s = time.perf_counter() - started
            run = partial(session.run, None, feeds)
            report = first_run(run, compile_s)
        except Exception as error:  # the runtime's exceptions share no narrower base
            raise Refused(str(error)) from error
        return LoadedProbe(request, session, run, report)

    def _open_revealing(self, request: LoadRequest, options: Any) -> Tuple[LoadedProbe, bytes]:
        """Open a session; returns it with the runtime's optimized graph."""
        graph, weights = (os.path.join(os.getcwd(), f"optimized.{ending}") for ending in ("onnx", "weights"))
        options.optimized_model_filepath = graph
        # Nobody reads the rearranged weights, which the runtime writes to a separate file.
        options.add_session_config_entry(_EXTERNAL_FILE, "optimized.weights")
        options.add_session_config_entry(_EXTERNAL_FROM_BYTES, "1024")
        try:
            os.symlink(os.devnull, weights)
            loaded = self._open(request, options)
            with open(graph, "rb") as content:
                return loaded, content.read()
        except OSError as error:
            raise Refused(str(error)) from error
        finally:
            for path in (graph, weights):
                if os.path.exists(path):
                    os.unlink(path)
