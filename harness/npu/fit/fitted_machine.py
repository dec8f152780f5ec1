"""A fit as a machine of the emulated NPU: fitted values on top of a preset, and the text of its file."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from device_agents.emulated_npu.machine import Machine
from device_agents.emulated_npu.unit_commands import DataType
from harness.npu.error_translation import errors_of_user
from harness.npu.fit.layer_samples import PRODUCTS, WINDOWS
from harness.npu.fit.machine_fit import MachineFit
from harness.npu.fit.multiplier_array import NO_STEPS
from harness.npu.sweep.machine_parameters import ParameterValue, changed

VECTOR_CLASSES = ("move/map/simple", "mac/conv/depthwise")
"""Classes that a vector unit computes, that with the plainest operations first."""
FITTED, SEVERAL = "fitted", "one of several that explain the samples as well"
_MOST_CYCLES = 1_000_000
_FASTEST_BYTES_PER_S = 1e18


@dataclass(frozen=True)
class FittedMachine:
    """A machine, and the origin of each value that is not the preset's, by its key."""

    machine: Machine
    preset: str
    fitted: Mapping[str, str]


def machine_of(fit: MachineFit, preset: Machine, name: str) -> FittedMachine:
    """Return the preset with the fitted values; raises InputError if they contradict its other values."""
    array = dict(_array(fit, preset))
    settings = {**array, **dict(_settings(fit, preset, array))}
    with errors_of_user("Choose another --preset"):
        machine = changed(dataclasses.replace(preset, name=name), settings)
    origin = FITTED if fit.array_identified else SEVERAL
    return FittedMachine(machine, preset.name, {key: origin if key in array else FITTED for key in settings})


def _array(fit: MachineFit, preset: Machine) -> Iterator[tuple[str, ParameterValue]]:
    """Return the array that explains the samples best, nothing if the preset's explains them as well."""
    mfu = preset.mfu
    known = [(one.rows, one.columns, one.packing, mfu.rows * mfu.columns, 1) for one in fit.arrays]
    own = (mfu.rows, mfu.columns, mfu.packing, mfu.multipliers, mfu.step_cycles)
    if NO_STEPS in fit.arrays or (not fit.array_identified and own in known):
        return
    yield from (("mfu.rows", fit.array.rows), ("mfu.columns", fit.array.columns))
    yield from (("mfu.dataflow", "dot-product"), ("mfu.packing", fit.array.packing))
    yield from (("mfu.pixel_rows", 1), ("mfu.pixel_columns", 1), ("mfu.step_cycles", 1))


def _settings(
    fit: MachineFit, preset: Machine, array: Mapping[str, ParameterValue]
) -> Iterator[tuple[str, ParameterValue]]:
    multipliers = fit.array.multipliers if array else preset.mfu.multipliers
    clock_hz = preset.clock_hz
    peak = fit.peak(PRODUCTS, WINDOWS)
    if peak is not None:
        clock_hz = max(1_000, round(peak / multipliers))
        yield "clock_hz", clock_hz
    vector = fit.peak(*VECTOR_CLASSES)
    if vector is not None:
        yield "vfu.lanes", max(1, round(vector / clock_hz))
    if fit.start.value is not None:
        cycles = min(_MOST_CYCLES, round(fit.start.value * clock_hz))
        yield from (("mfu.startup_cycles", cycles), ("vfu.startup_cycles", cycles))
    if fit.weights.value is not None:
        yield "ddr.bytes_per_s", round(fit.weights.value)
    if fit.features.value is not None and preset.llc.bytes:
        yield "llc.bytes_per_s", round(fit.features.value)
    if fit.access.value is not None:
        yield "ddr.latency_ns", round(1e9 * fit.access.value, 3)
    yield from _host_settings(fit, preset)


def _host_settings(fit: MachineFit, preset: Machine) -> Iterator[tuple[str, ParameterValue]]:
    """Return the host's keys; a and b share the bandwidth of transfers, c the set-up of two transfers."""
    host = preset.host
    per_byte = [one.value for one in (fit.input_byte, fit.output_byte)]
    if None not in per_byte:
        a_s, b_s = (each for each in per_byte if each is not None)
        transfer_s = min(1 / host.dma_bytes_per_s, a_s, b_s)
        if transfer_s < 1 / host.dma_bytes_per_s:
            yield "host.dma_bytes_per_s", min(_FASTEST_BYTES_PER_S, 1 / transfer_s)
        yield "host.preprocess_s_per_byte", max(0.0, a_s - transfer_s)
        yield "host.postprocess_s_per_byte", max(0.0, b_s - transfer_s)
    if fit.call.value is not None:
        setup_s = min(host.dma_setup_s, fit.call.value / 2)
        if setup_s < host.dma_setup_s:
            yield "host.dma_setup_s", setup_s
        yield "host.driver_s", max(0.0, fit.call.value - 2 * setup_s)


def machine_text(fitted: FittedMachine, heading: str) -> str:
    """Return the machine's file in TOML; each key says whether it was fitted."""
    lines = [f"# {line}" for line in heading.splitlines()]
    lines += _lines(fitted.machine, "", fitted.fitted)
    return "\n".join(lines) + "\n"


def _lines(table: Any, prefix: str, origin: Mapping[str, str]) -> Iterator[str]:
    """Yield the keys of a table, then the tables inside it."""
    names = [one.name for one in dataclasses.fields(table) if prefix or one.name != "name"]
    for name in names:
        value = getattr(table, name)
        if not dataclasses.is_dataclass(value):
            key = prefix + name
            yield f"{name} = {_literal(value)}" + (f"  # {origin[key]}" if key in origin else "")
    for name in names:
        value = getattr(table, name)
        if dataclasses.is_dataclass(value):
            yield ""
            yield f"[{prefix}{name}]"
            yield from _lines(value, f"{prefix}{name}.", origin)


def _literal(value: Any) -> str:
    if isinstance(value, DataType):
        return json.dumps(value.name.lower())
    if isinstance(value, float):
        return repr(value)  # inf as TOML writes it
    return json.dumps(value)
