"""Measured times of networks on public chips, beside those of the machines that describe the chips.

`chips.toml` holds each figure with its source and, where ours differs by more than `EXPLAINED`, the cause.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from published_figures.published import read_anchor

from benchmarks.topologies import NAMES, build
from device_agents.emulated_npu.compiler.options import Options
from device_agents.emulated_npu.inference import time_program
from device_agents.emulated_npu.machine import Machine, load_preset
from harness.npu.loading import NetworkModel, compile_network, load_model
from harness.npu.run.core_run import run_rows
from harness.npu.sweep.machine_parameters import changed

EXPLAINED = 0.1
"""A larger relative difference has a named cause."""


@dataclass(frozen=True)
class ChipFigure:
    """A published time of a network, or of its convolutions alone, on a chip."""

    system: str
    machine: str
    network: str
    published_ms: float
    source: str
    cause: str
    part: Literal["network", "convolutions"] = "network"
    layer_by_layer: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def described(self) -> Machine:
        """Return the machine of the chip on this board."""
        return changed(load_preset(self.machine), self.settings)

    def ours_ms(self) -> float:
        """Return the simulated time: by event for a network, the shares of its layers for convolutions."""
        options = Options("layers", fences=True) if self.layer_by_layer else Options()
        made = compile_network(_model(self.network), self.described(), options)
        timed = time_program(made.compiled.program, made.compiled.machine)
        if self.part == "network":
            return timed.timing.makespan_ps / 1e9
        layers = zip(run_rows(timed), made.operators, strict=False)
        cycles = sum(row.cycles for row, operators in layers if "Conv" in operators)
        return cycles * timed.timing.cycle_ps / 1e9

    def error(self, ours_ms: float) -> float:
        """Return the difference of our time relative to the published one."""
        return ours_ms / self.published_ms - 1


def chip_figures() -> tuple[ChipFigure, ...]:
    """Return the figures in the order of the file."""
    return tuple(ChipFigure(**each) for each in read_anchor("chips")["figures"])


@cache
def _model(network: str) -> NetworkModel:
    if network not in NAMES:
        return load_model(f"builtin:{network}", {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{network}.onnx"
        path.write_bytes(build(network).SerializeToString())
        return load_model(str(path), {})
