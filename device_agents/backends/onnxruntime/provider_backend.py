"""ONNX Runtime with an execution provider: a graphics processor, a neural processor, or another library for the CPU.

A provider compiles parts of a network into its own nodes, or runs kernels on its own device. Its sessions
report no fusion, so the host searches for it with probes. Loading compiles the network and runs it twice, untimed.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

import numpy as np
import onnxruntime

from device_agents import arrays
from device_agents.backends import Refused
from device_agents.backends.cpu_runtime import CpuRuntime, LoadedProbe
from device_agents.backends.onnx_bytes import chain_model, with_weights
from device_agents.backends.onnxruntime.node_times import named_after, nodes_on
from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend
from device_agents.backends.onnxruntime.session_settings import CPU, OPTIONS, SessionSettings, read_provider
from device_agents.backends.option_reader import OptionReader
from device_agents.messages import LoadReport, LoadRequest, Revealed

_MOST_NAMED = 20
_SHOWN_OPTIONS = 300


@dataclass(frozen=True)
class _Opened:
    """A session that ran once, how to run it, the seconds that opening took, and its nodes on the CPU."""

    session: Any
    run: Callable[[], Any]
    compile_s: float
    first_run_s: float
    on_cpu: List[str]


class ProviderBackend(CpuRuntime):
    """Sessions on one execution provider, timed by wall time: the CPU only waits for other devices.

    If the device has separate memory, inputs are there before a timed run, and outputs stay there.
    """

    name = "onnxruntime"
    reveals: Tuple[str, ...] = ("placement",)

    def __init__(self, options: Dict[str, Any]) -> None:
        """Start the provider; raises Refused if it does not start with its options."""
        self._settings = settings = SessionSettings(self.name, options)
        super().__init__(settings.threads)
        self.clock = "wall"
        self._provider = settings.provider
        started = self._session(chain_model(1), settings.session_options()).get_providers()
        if self._provider.name not in started:
            why = "libraries or a driver that it needs are missing, or the device that its options name"
            raise Refused(f"the provider {self._provider.short_name} does not start here: {why}")

    def fingerprint(self) -> Dict[str, str]:
        """Return runtime, version, settings, and the provider with its options."""
        chosen = ",".join(f"{name}={value}" for name, value in sorted(self._provider.options.items()))
        if len(chosen) > _SHOWN_OPTIONS:
            chosen = f"{chosen[:_SHOWN_OPTIONS]}… {hashlib.sha256(chosen.encode()).hexdigest()[:16]}"
        fallback = "allowed" if self._provider.allow_fallback else "refused"
        facts = {"provider_options": chosen or "none", "cpu_fallback": fallback, "build": _build()}
        return {**self._settings.fingerprint(), **facts}

    def load(self, request: LoadRequest) -> Optional[Revealed]:
        """Compile the network and run it twice; raises Refused with the nodes that fell back to the CPU, if any."""
        try:
            weights = {spec["name"]: arrays.make(spec) for spec in request.weights}
            model = with_weights(request.model, weights)
            feeds = {spec["name"]: self._input(spec, index) for index, spec in enumerate(request.inputs)}
            opened = self._open(model, feeds, None)
            on_cpu = opened.on_cpu
            if on_cpu and not self._provider.allow_fallback:
                del opened
                # The highest levels rename nodes after they have been assigned.
                raise self._fell_back(self._open(model, feeds, "basic").on_cpu or on_cpu)
            opened.run()
            report = LoadReport(opened.compile_s, named_after(request.model, on_cpu), opened.first_run_s)
        except Refused:
            raise
        except Exception as error:  # the runtime's exceptions share no narrower base
            raise Refused(str(error)) from error
        self._loaded[request.probe] = LoadedProbe(request, opened.session, opened.run, report)
        return None

    def _open(self, model: bytes, feeds: Dict[str, "np.ndarray[Any, Any]"], level: Optional[str]) -> "_Opened":
        """Open a session and run it once, with a record of where its nodes run."""
        options = self._settings.session_options(level)
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(os.getcwd(), "placement")
        started = time.perf_counter()
        session = self._session(model, options)
        compile_s = time.perf_counter() - started
        run = self._runner(session, feeds)
        started = time.perf_counter()
        try:
            run()
            first_run_s = time.perf_counter() - started
        finally:
            path = session.end_profiling()
            with open(path, "rb") as content:
                profile = content.read()
            os.unlink(path)
        return _Opened(session, run, compile_s, first_run_s, nodes_on(profile, CPU))

    def _session(self, model: bytes, options: Any) -> Any:
        providers = [(self._provider.name, dict(self._provider.options))]
        try:
            # Without this setting a provider that fails is replaced by the CPU.
            return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
        except Exception as error:  # as above
            raise Refused(f"the provider {self._provider.short_name} refused: {error}") from error

    def _runner(self, session: Any, feeds: Dict[str, "np.ndarray[Any, Any]"]) -> Callable[[], Any]:
        """Return how to run a session once, until its results are there."""
        memory, device = self._provider.memory, self._provider.device_id
        if memory is None:
            return partial(session.run, None, feeds)
        binding = session.io_binding()
        for name, values in feeds.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(values, memory, device))
        for output in session.get_outputs():
            binding.bind_output(output.name, memory, device)

        def run() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return run

    def _fell_back(self, nodes: List[str]) -> Refused:
        shown = ", ".join(nodes[:_MOST_NAMED]) + (f" and {len(nodes) - _MOST_NAMED} more" * (len(nodes) > _MOST_NAMED))
        which = f"the provider {self._provider.short_name} does not execute {len(nodes)} nodes, which run on the CPU"
        return Refused(f"{which}: {shown}; allow_fallback = true in the device's options measures them there")


def _build() -> str:
    """Return the package of the runtime and the libraries it was built for, if it records them."""
    try:
        from onnxruntime.capi import build_and_package_info as found
    except ImportError:
        return "unknown"
    names = ("package_name", "cuda_version", "rocm_version")
    return " ".join(str(getattr(found, name)) for name in names if getattr(found, name, None)) or "unknown"


def open_onnxruntime(options: Dict[str, Any]) -> Union[OnnxRuntimeBackend, ProviderBackend]:
    """Return the backend for these options; raises Refused."""
    provider = read_provider(OptionReader(OnnxRuntimeBackend.name, options, OPTIONS))
    return OnnxRuntimeBackend(options) if provider.name == CPU else ProviderBackend(options)
