"""Measure how long each layer of a neural network takes on a device, and predict whole networks from it.

docs/api.md documents every name that this package exports. Each is imported when it is first used, so that the
command line starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import version

if TYPE_CHECKING:
    from harness import errors
    from harness.architecture_search.search_space import SearchSpace
    from harness.architecture_search.space_estimator import CandidateEstimates, SpaceEstimator, estimate_space
    from harness.architecture_search.super_network import super_network
    from harness.benchmarking.benchmark_results import Benchmark, BenchmarkedNetwork, LatencyFigures
    from harness.benchmarking.measurement import benchmark
    from harness.device.inventory import Device, load_inventory
    from harness.errors import HarnessError
    from harness.estimation.layer_estimates import LayerEstimate
    from harness.estimation.network_estimate import NetworkEstimate, NetworkEstimates, estimate
    from harness.fleet.profile import profile, profile_request
    from harness.fleet.profile_outcome import ProfileOutcome
    from harness.lut.build import build_lut
    from harness.lut.table import Entry, Lut
    from harness.lut.table_choice import open_lut
    from harness.measure.noise.machine_noise import MachineNoise
    from harness.measure.policy import RepeatPolicy
    from harness.measure.profiling import ProfileResult
    from harness.measure.progress import Progress
    from harness.measure.request import ProfileRequest, SpaceRequest
    from harness.network.network_list import RefusedNetwork
    from harness.notebook import BarPlot, LatencyBar
    from harness.npu.emulation import CompilerOptions, Emulation, emulate
    from harness.probe.auxiliary import AuxiliaryKind
    from harness.space.space_profile import SpaceProfile
    from harness.table_import.importing import Sampling, TableImport, import_lut
    from harness.validation.layer_trace import DeviceTrace, NetworkTrace, TracedLayer, trace
    from harness.validation.network_validation import validate
    from harness.validation.results import NetworkValidation, Validation
    from harness.workspace import Workspace, find_workspace

__version__ = version.VERSION
__all__ = [
    "AuxiliaryKind",
    "BarPlot",
    "Benchmark",
    "BenchmarkedNetwork",
    "CandidateEstimates",
    "CompilerOptions",
    "Device",
    "DeviceTrace",
    "Emulation",
    "Entry",
    "HarnessError",
    "LatencyBar",
    "LatencyFigures",
    "LayerEstimate",
    "Lut",
    "MachineNoise",
    "NetworkEstimate",
    "NetworkEstimates",
    "NetworkTrace",
    "NetworkValidation",
    "ProfileOutcome",
    "ProfileRequest",
    "ProfileResult",
    "Progress",
    "RefusedNetwork",
    "RepeatPolicy",
    "Sampling",
    "SearchSpace",
    "SpaceEstimator",
    "SpaceProfile",
    "SpaceRequest",
    "TableImport",
    "TracedLayer",
    "Validation",
    "Workspace",
    "__version__",
    "benchmark",
    "build_lut",
    "emulate",
    "errors",
    "estimate",
    "estimate_space",
    "find_workspace",
    "import_lut",
    "load_inventory",
    "open_lut",
    "profile",
    "profile_request",
    "super_network",
    "trace",
    "validate",
]

_MODULES = {
    "benchmarking.measurement": ("benchmark",),
    "benchmarking.benchmark_results": ("Benchmark", "BenchmarkedNetwork", "LatencyFigures"),
    "device.inventory": ("Device", "load_inventory"),
    "errors": ("HarnessError",),
    "estimation.layer_estimates": ("LayerEstimate",),
    "estimation.network_estimate": ("NetworkEstimate", "NetworkEstimates", "estimate"),
    "fleet.profile": ("profile", "profile_request"),
    "fleet.profile_outcome": ("ProfileOutcome",),
    "table_import.importing": ("Sampling", "TableImport", "import_lut"),
    "lut.build": ("build_lut",),
    "lut.table": ("Entry", "Lut"),
    "lut.table_choice": ("open_lut",),
    "measure.policy": ("RepeatPolicy",),
    "measure.noise.machine_noise": ("MachineNoise",),
    "measure.profiling": ("ProfileResult",),
    "measure.progress": ("Progress",),
    "measure.request": ("ProfileRequest", "SpaceRequest"),
    "network.network_list": ("RefusedNetwork",),
    "notebook": ("BarPlot", "LatencyBar"),
    "npu.emulation": ("CompilerOptions", "Emulation", "emulate"),
    "probe.auxiliary": ("AuxiliaryKind",),
    "architecture_search.super_network": ("super_network",),
    "architecture_search.search_space": ("SearchSpace",),
    "architecture_search.space_estimator": ("CandidateEstimates", "SpaceEstimator", "estimate_space"),
    "space.space_profile": ("SpaceProfile",),
    "validation.layer_trace": ("DeviceTrace", "NetworkTrace", "TracedLayer", "trace"),
    "validation.network_validation": ("validate",),
    "validation.results": ("NetworkValidation", "Validation"),
    "workspace": ("Workspace", "find_workspace"),
}


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first used."""
    import importlib

    if name == "errors":
        return importlib.import_module("harness.errors")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"harness.{module}"), name)
    raise AttributeError(f"module 'harness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
