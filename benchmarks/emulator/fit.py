"""`harness npu fit` on emulated machines that are drawn at random: truth, fit, interval and error of each parameter.

    python -m benchmarks.emulator.fit [--machines 4] [--seed 1] [--npu01]

Each machine is a device of a temporary workspace. It is profiled and its table built as a user does; the fit reads the
table alone. A part of docs/emulator.md.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generated_page import signed, table, yes
from device_agents.emulated_npu.machine import Machine, load_preset
from harness import build_lut, profile
from harness.npu.fit.fitted_machine import FittedMachine, machine_of, machine_text
from harness.npu.fit.machine_fit import DeviceSamples, MachineFit, Parameter, fit_machine
from harness.npu.sweep.machine_parameters import ParameterValue, changed
from harness.workspace import Workspace

PRESET = "edge"
NETWORKS = ("builtin:alexnet", "builtin:resnet18", "builtin:mobilenetv2")
DEVICE = "drawn"
_SIDES = (8, 16, 24, 32, 48, 64)


def drawn(seed: int) -> Machine:
    """Return a machine with another array, clock, memory and host than the preset."""
    one = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(one.uniform(math.log(low), math.log(high)))

    settings: Mapping[str, ParameterValue] = {
        "clock_hz": round(between(2e8, 2e9)),
        "mfu.rows": one.choice(_SIDES),
        "mfu.columns": one.choice(_SIDES),
        "mfu.packing": one.choice(("none", "row")),
        "vfu.lanes": one.choice((16, 32, 64, 128)),
        "ddr.bytes_per_s": round(between(2e9, 5e10)),
        "ddr.latency_ns": round(between(50, 400)),
        "host.driver_s": between(2e-5, 2e-4),
        "host.preprocess_s_per_byte": between(2e-10, 2e-9),
        "host.postprocess_s_per_byte": between(2e-10, 2e-9),
    }
    return changed(load_preset(PRESET), settings)


def profiled(machine: Machine, root: Path, networks: Sequence[str]) -> DeviceSamples:
    """Profile an emulated device with this machine, and return its samples."""
    text = machine_text(FittedMachine(machine, machine.name, ()), "A machine of a benchmark.")
    lines = [f"[devices.{DEVICE}]", 'backend = "emulated-npu"', f"[devices.{DEVICE}.options]", f"machine = '''{text}'''"]
    workspace = Workspace(root)
    workspace.devices.write_text("\n".join(lines), encoding="utf-8")
    profile(list(networks), device=DEVICE, workspace=workspace)
    return DeviceSamples.of(build_lut(DEVICE, workspace=workspace))


@dataclass(frozen=True)
class Compared:
    """A parameter beside its truth."""

    name: str
    truth: float
    value: float | None
    low: float
    high: float
    why: str = ""

    @property
    def error(self) -> float | None:
        """(fit - truth) / truth."""
        return None if self.value is None else self.value / self.truth - 1


def compared(fit: MachineFit, found: FittedMachine, truth: Machine) -> Iterator[Compared]:
    """Yield each parameter that the machine file has a truth for."""
    array = truth.mfu.rows * truth.mfu.columns
    host = truth.host
    per_transfer = 1 / host.dma_bytes_per_s

    def row(name: str, one: Parameter, true: float) -> Compared:
        return Compared(name, true, one.value, one.low, one.high, one.why)

    yield row("peak of dense convolutions, MAC/s", _peak(fit, "mac/conv/dense"), truth.clock_hz * array)
    yield row("peak of element-wise operators, op/s", _peak(fit, "move/map/simple"), truth.clock_hz * truth.vfu.lanes)
    yield row("bandwidth of weights, byte/s", fit.weights, truth.ddr.bytes_per_s)
    yield row("latency of memory, s", fit.access, truth.ddr.latency_ns * 1e-9)
    yield row("start-up of a run, s", fit.call, host.driver_s + 2 * host.dma_setup_s)
    yield row("input, s/byte", fit.input_byte, host.preprocess_s_per_byte + per_transfer)
    yield row("output, s/byte", fit.output_byte, host.postprocess_s_per_byte + per_transfer)
    for name, true, value in (
        ("rows", truth.mfu.rows, found.machine.mfu.rows),
        ("columns", truth.mfu.columns, found.machine.mfu.columns),
        ("clock, Hz", truth.clock_hz, found.machine.clock_hz),
    ):
        sides = [one.rows if name == "rows" else one.columns for one in fit.arrays]
        known = fit.array_identified
        low, high = (value, value) if name == "clock, Hz" else (min(sides), max(sides))
        yield Compared(name, true, float(value) if known else None, low, high, "" if known else "not identified")
