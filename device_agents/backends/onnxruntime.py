"""ONNX Runtime on the CPU of this device."""

from __future__ import annotations

import os
import resource
import time
from typing import Any, Dict, Optional, Tuple

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # the wheels report to their vendor unless told before import

import numpy as np
import onnxruntime

from device_agents import arrays
from device_agents.backends import LoadRequest, Refused, Revealed, Sample

_OPTIONS = {"threads", "optimization"}
_LEVELS = {"all", "extended", "basic", "disabled"}
_EXTERNAL_FILE = "session.optimized_model_external_initializers_file_name"
_EXTERNAL_FROM_BYTES = "session.optimized_model_external_initializers_min_size_in_bytes"


class _InputBuffer:
    """One region of memory that the inputs of all probes are views of, as a network's inputs would be."""

    def __init__(self) -> None:
        self._views: Dict[str, "np.ndarray[Any, Any]"] = {}

    def view(self, spec: Dict[str, Any], index: int) -> "np.ndarray[Any, Any]":
        values = {name: spec.get(name) for name in ("dtype", "distribution", "low", "high", "scale")}
        key = f"{index} {sorted(values.items(), key=str)}"
        count = int(np.prod([int(size) for size in spec["shape"]], dtype=np.int64))
        held = self._views.get(key)
        if held is None or held.size < count:
            held = arrays.make({**spec, "shape": [count], "seed": index})
            self._views[key] = held
        return held[:count].reshape([int(size) for size in spec["shape"]])


class OnnxRuntimeBackend:
    """Sessions of ONNX Runtime that share one arena; times are thread CPU time beside wall time."""

    name = "onnxruntime"
    tells: Tuple[str, ...] = ("fusion",)

    def __init__(self, options: Dict[str, Any]) -> None:
        unknown = sorted(set(options) - _OPTIONS)
        if unknown:
            raise Refused(f"the onnxruntime backend has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}")
        self._threads = int(options.get("threads", 1))
        self._level = str(options.get("optimization", "all"))
        if self._threads < 1 or self._level not in _LEVELS:
            raise Refused(f"threads must be 1 or more and optimization one of {', '.join(sorted(_LEVELS))}")
        # Thread CPU time is blind to the other threads of a pool.
        self.clock = "cpu" if self._threads == 1 else "wall"
        self._sessions: Dict[str, Tuple[Any, Dict[str, Any]]] = {}
        self._inputs = _InputBuffer()
        onnxruntime.set_default_logger_severity(4)
        memory = onnxruntime.OrtMemoryInfo(
            "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
        )
        onnxruntime.create_and_register_allocator(memory, None)

    def fingerprint(self) -> Dict[str, str]:
        """Runtime, version and settings."""
        return {
            "runtime": "onnxruntime",
            "runtime_version": onnxruntime.__version__,
            "settings": f"threads={self._threads},optimization={self._level},provider=CPU",
        }

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Loads a session and runs it once, which allocates what the first run allocates."""
        feeds = {spec["name"]: self._inputs.view(spec, index) for index, spec in enumerate(request.inputs)}
        graph = os.path.join(os.getcwd(), "optimized.onnx")
        try:
            options = self._session_options()
            if request.reveal:
                options.optimized_model_filepath = graph
                # Weights the runtime has rearranged go to a file of their own, which nobody reads.
                options.add_session_config_entry(_EXTERNAL_FILE, "optimized.weights")
                options.add_session_config_entry(_EXTERNAL_FROM_BYTES, "1024")
            # The values must outlive the creation of the session, which copies or packs them.
            values = [onnxruntime.OrtValue.ortvalue_from_numpy(arrays.make(spec)) for spec in request.weights]
            if values:
                options.add_external_initializers([spec["name"] for spec in request.weights], values)
            session = onnxruntime.InferenceSession(request.model, options, providers=["CPUExecutionProvider"])
            session.run(None, feeds)
            self._sessions[request.probe] = (session, feeds)
            if not request.reveal:
                return None
            with open(graph, "rb") as content:
                return Revealed("onnxruntime", content.read())
        except Exception as error:  # the runtime's exceptions share no narrower base
            raise Refused(str(error)) from error
        finally:
            for path in (graph, os.path.join(os.getcwd(), "optimized.weights")):
                if os.path.exists(path):
                    os.unlink(path)

    def unload(self, probe: str) -> None:
        """Drops the session."""
        self._sessions.pop(probe, None)

    def run(self, probe: str) -> Sample:
        """One run, from input arrays to output arrays."""
        session, feeds = self._sessions[probe]
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        wall = time.perf_counter_ns()
        cpu = time.thread_time_ns()
        outputs = session.run(None, feeds)
        cpu = time.thread_time_ns() - cpu
        wall = time.perf_counter_ns() - wall
        del outputs
        switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switches
        return Sample(wall, cpu if self._threads == 1 else None, None, switches)

    def _session_options(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        level = "ORT_DISABLE_ALL" if self._level == "disabled" else f"ORT_ENABLE_{self._level.upper()}"
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.add_session_config_entry("session.use_env_allocators", "1")
        return options
