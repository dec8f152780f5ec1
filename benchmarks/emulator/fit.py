"""`harness npu fit` on emulated machines that are drawn at random: truth, fit, interval and error of each parameter.

    python -m benchmarks.emulator.fit [--machines 4] [--seed 1] [--layers 60]

Each machine is a device of a temporary workspace. It is profiled over layers of `builtin:machine`, and its table is
built, as a user does; the fit reads the table alone. A part of docs/emulator_figures.md.
"""

import argparse
import math
import random
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generated_page import signed, table, yes
from device_agents.emulated_npu.machine import Machine, load_preset
from harness import ProfileRequest, SpaceRequest, build_lut, profile_request
from harness.npu.fit.fitted_machine import FittedMachine, machine_of, machine_text
from harness.npu.fit.layer_samples import PRODUCTS
from harness.npu.fit.machine_fit import DeviceSamples, MachineFit, Parameter, fit_machine
from harness.npu.sweep.machine_parameters import ParameterValue, changed
from harness.workspace import Workspace

PRESET = "edge"
SPACE = "builtin:machine"
DEVICE = "drawn"
SIDES = (8, 16, 24, 32, 48, 64)
WITHIN = 0.05


def drawn(seed: int) -> Machine:
    """Return a machine with another array, clock, vector unit, memory and host than the preset."""
    one = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(one.uniform(math.log(low), math.log(high)))

    settings: Mapping[str, ParameterValue] = {
        "clock_hz": round(between(2e8, 2e9)),
        "mfu.rows": one.choice(SIDES),
        "mfu.columns": one.choice(SIDES),
        "mfu.packing": one.choice(("none", "row")),
        "vfu.lanes": one.choice((16, 32, 64, 128)),
        "ddr.bytes_per_s": round(between(2e9, 5e10)),
        "ddr.latency_ns": round(between(50, 400)),
        "host.driver_s": between(2e-5, 2e-4),
        "host.preprocess_s_per_byte": between(2e-10, 2e-9),
        "host.postprocess_s_per_byte": between(2e-10, 2e-9),
    }
    return changed(load_preset(PRESET), settings)


def measured(machine: Machine, root: Path, layers: int) -> DeviceSamples:
    """Profile an emulated device with this machine over layers of `builtin:machine`, and return its samples."""
    text = machine_text(FittedMachine(machine, machine.name, {}), "A machine of a benchmark.")
    options = f"[devices.{DEVICE}.options]\nmachine = '''{text}'''\n"
    workspace = Workspace(root)
    root.mkdir(parents=True, exist_ok=True)
    workspace.devices.write_text(f'[devices.{DEVICE}]\nbackend = "emulated-npu"\n{options}', encoding="utf-8")
    profile_request(ProfileRequest(device=DEVICE, space=SpaceRequest(SPACE, count=layers)), workspace=workspace)
    return DeviceSamples.of(build_lut(DEVICE, workspace=workspace))


@dataclass(frozen=True)
class Compared:
    """A parameter beside its truth; `value` is None where the fit does not identify it."""

    name: str
    truth: float
    value: float | None
    low: float | None
    high: float | None

    @property
    def error(self) -> float | None:
        """(fit - truth) / truth."""
        return None if self.value is None else self.value / self.truth - 1

    @property
    def holds(self) -> bool:
        """Whether the truth is in the interval."""
        return (self.low or 0.0) <= self.truth <= (math.inf if self.high is None else self.high)


def compared(fit: MachineFit, truth: Machine) -> Iterator[Compared]:
    """Yield each parameter that the truth has a number for."""
    array, host = truth.mfu.rows * truth.mfu.columns, truth.host
    by_name = {one.name: one for one in fit.parameters}

    def row(name: str, one: Parameter | None, true: float) -> Compared:
        found = (None, None, None) if one is None else (one.value, one.low, one.high)
        return Compared(name, true, *found)

    yield row("peak, MAC/s", by_name.get(PRODUCTS), truth.clock_hz * array)
    yield row("depthwise, MAC/s", by_name.get("mac/conv/depthwise"), truth.clock_hz * truth.vfu.lanes)
    yield row("element-wise, op/s", by_name.get("move/map/simple"), truth.clock_hz * truth.vfu.lanes)
    found = machine_of(fit, truth, "fitted").machine
    for name, true, value, sides in (
        ("rows", truth.mfu.rows, found.mfu.rows, [one.rows for one in fit.arrays]),
        ("columns", truth.mfu.columns, found.mfu.columns, [one.columns for one in fit.arrays]),
    ):
        yield Compared(name, true, value if fit.array_identified else None, min(sides), max(sides))
    yield row("bandwidth of weights, byte/s", fit.weights, truth.ddr.bytes_per_s)
    yield row("latency of memory, s", fit.access, truth.ddr.latency_ns * 1e-9)
    yield row("start-up of a run, s", fit.call, host.driver_s + 2 * host.dma_setup_s)
    yield row("input, s/byte", fit.input_byte, host.preprocess_s_per_byte + 1 / host.dma_bytes_per_s)
    yield row("output, s/byte", fit.output_byte, host.postprocess_s_per_byte + 1 / host.dma_bytes_per_s)


def main() -> None:
    """Print a table over all machines, and how many parameters are within 5 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=60)
    arguments = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    found: list[Compared] = []
    machines = {PRESET: load_preset(PRESET)}
    machines |= {str(seed): drawn(seed) for seed in range(arguments.seed, arguments.seed + arguments.machines)}
    with tempfile.TemporaryDirectory() as root:
        fits = {
            name: fit_machine(measured(machine, Path(root) / name, arguments.layers))
            for name, machine in machines.items()
        }
    for name, fit in fits.items():
        for one in compared(fit, machines[name]):
            value = "not identified" if one.value is None else f"{one.value:.4g}"
            ends = ("open" if end is None else f"{end:.4g}" for end in (one.low, one.high))
            rows.append(
                (name, one.name, f"{one.truth:.4g}", value, f"[{', '.join(ends)}]", yes(one.holds), signed(one.error))
            )
            found.append(one)
    print(table(("machine", "parameter", "truth", "fit", "95 % interval", "holds", "error"), rows), end="\n\n")
    known = [one for one in found if one.error is not None]
    near = sum(abs(one.error or 0.0) <= WITHIN for one in known)
    print(f"{near} of {len(known)} parameters are within 5 %; {len(found) - len(known)} are not identified.")
    print(f"{sum(one.holds for one in known)} of {len(known)} parameters are inside their interval.")


if __name__ == "__main__":
    main()
