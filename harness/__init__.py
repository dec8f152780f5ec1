"""Measure how long each layer of a neural network takes on a device, and predict whole networks from it.

docs/api.md documents every name that this package exports. Each is imported when it is first used, so that the
command line starts quickly.
"""

import importlib
import itertools
from typing import TYPE_CHECKING, Any

from harness import version

if TYPE_CHECKING:
    from harness import errors as errors
    from harness.architecture_search.search_space import SearchSpace as SearchSpace
    from harness.architecture_search.space_estimator import (
        CandidateEstimates as CandidateEstimates,
        SpaceEstimator as SpaceEstimator,
        estimate_space as estimate_space,
    )
    from harness.architecture_search.super_network import super_network as super_network
    from harness.benchmarking.benchmark_results import (
        Benchmark as Benchmark,
        BenchmarkedNetwork as BenchmarkedNetwork,
        LatencyFigures as LatencyFigures,
    )
    from harness.benchmarking.measurement import benchmark as benchmark
    from harness.device.inventory import Device as Device, load_inventory as load_inventory
    from harness.errors import HarnessError as HarnessError
    from harness.estimation.layer_estimates import LayerEstimate as LayerEstimate
    from harness.estimation.network_estimate import (
        NetworkEstimate as NetworkEstimate,
        NetworkEstimates as NetworkEstimates,
        estimate as estimate,
    )
    from harness.fleet.profile import profile as profile, profile_request as profile_request
    from harness.fleet.profile_outcome import ProfileOutcome as ProfileOutcome
    from harness.lut.build import build_lut as build_lut
    from harness.lut.table import Entry as Entry, Lut as Lut
    from harness.lut.table_choice import open_lut as open_lut
    from harness.measure.noise.machine_noise import MachineNoise as MachineNoise
    from harness.measure.policy import RepeatPolicy as RepeatPolicy
    from harness.measure.profiling import ProfileResult as ProfileResult
    from harness.measure.progress import Progress as Progress
    from harness.measure.request import ProfileRequest as ProfileRequest, SpaceRequest as SpaceRequest
    from harness.network.network_list import RefusedNetwork as RefusedNetwork
    from harness.notebook import BarPlot as BarPlot, LatencyBar as LatencyBar
    from harness.npu.emulation import CompilerOptions as CompilerOptions, Emulation as Emulation, emulate as emulate
    from harness.probe.auxiliary import AuxiliaryKind as AuxiliaryKind
    from harness.space.space_profile import SpaceProfile as SpaceProfile
    from harness.table_import.importing import (
        Sampling as Sampling,
        TableImport as TableImport,
        import_lut as import_lut,
    )
    from harness.validation.layer_trace import (
        DeviceTrace as DeviceTrace,
        NetworkTrace as NetworkTrace,
        TracedLayer as TracedLayer,
        trace as trace,
    )
    from harness.validation.network_validation import validate as validate
    from harness.validation.results import NetworkValidation as NetworkValidation, Validation as Validation
    from harness.workspace import Workspace as Workspace, find_workspace as find_workspace

__version__ = version.VERSION
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
__all__ = sorted(["__version__", "errors", *itertools.chain(*_MODULES.values())])


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first used."""
    if name == "errors":
        return importlib.import_module("harness.errors")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"harness.{module}"), name)
    raise AttributeError(f"module 'harness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
