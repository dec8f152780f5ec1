"""`harness.emulate`: run a network on the emulated NPU from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.arguments import COUNT, Rule, checked
from harness.network.model_references import Model, model_reference
from harness.notebook import BarPlot, LatencyBar, frame, html_table
from harness.npu.loading import LoadedProgram, compile_reference
from harness.npu.npu_options import MachineChoice, Options as CompilerOptions, RunOptions, changed
from harness.npu.run.core_run import CoreRun, run_on_one_core
from harness.npu.run.run_fields import json_fields, layer_rows
from harness.text import milliseconds

if TYPE_CHECKING:
    import pandas

__all__ = ["CompilerOptions", "Emulation", "emulate"]

LAYERS_DRAWN = 25


def _read(options: Any) -> CompilerOptions:
    """Return options whose values are allowed, as plain values; raises ValueError and TypeError for any other."""
    from pydantic import TypeAdapter

    if not isinstance(options, CompilerOptions):
        raise TypeError
    found = TypeAdapter(CompilerOptions).validate_python(vars(options))
    for number in (*(found.tile or ()), 1 if found.dft_block is None else found.dft_block):
        COUNT.read(number)
    return found


def _shown(options: Any) -> str:
    """Return options by the name that callers know, with only the fields that differ from their defaults."""
    if not isinstance(options, CompilerOptions):
        return repr(options)
    return f"CompilerOptions({', '.join(f'{name}={getattr(options, name)!r}' for name in changed(options))})"


_COMPILER = Rule("CompilerOptions with the values that its fields allow", _read, _shown)


@dataclass(frozen=True)
class Emulation:
    """A network run on one core of the emulated NPU.

    `cycles` and `latency_s` are the time of the device, without the overhead of a host. `max_rel_error` is the
    largest difference of an output from ONNX Runtime's, None where no values were computed. `fields` holds all that
    `harness npu run --json` prints.
    """

    name: str
    machine: str
    cycles: float
    latency_s: float
    max_rel_error: float | None
    fields: Mapping[str, Any] = field(repr=False)
    run: CoreRun = field(repr=False)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with one hardware layer in each row; the rows of `harness npu run --csv` without the total."""
        rows = layer_rows(self.run)
        return frame(rows[:-1], tuple(rows[-1]))

    def plot(self, most: int = LAYERS_DRAWN) -> BarPlot:
        """Return a plot of the `most` layers that take longest."""
        cycle_s = self.latency_s / self.cycles
        longest = sorted(self.run.rows[:-1], key=lambda row: -row.cycles)[:most]
        bars = tuple(LatencyBar(row.name, row.cycles * cycle_s) for row in longest)
        return BarPlot(f"{self.name} on {self.machine}: {len(bars)} of {len(self.run.rows) - 1} layers", bars)

    def _repr_html_(self) -> str:
        rows = [(row.name, f"{row.cycles:,.0f}", f"{row.macs:,}", row.bound) for row in self.run.rows]
        caption = f"{self.name} on {self.machine}: {milliseconds(self.latency_s)} ms, {self.cycles:,.0f} cycles"
        return html_table(caption, ("layer", "cycles", "multiply-adds", "bound by"), rows)


@checked(compiler=_COMPILER)
def emulate(
    model: Model,
    *,
    preset: str | None = None,
    machine: str | PathLike[str] | None = None,
    dims: Mapping[str, int] | None = None,
    compiler: CompilerOptions | None = None,
    values: bool = True,
    note: Callable[[str], None] = lambda _: None,
) -> Emulation:
    """Compile a network, run it on one core of the emulated NPU, and compare its values with ONNX Runtime's.

    `preset` names a built-in machine (default edge), `machine` is the path of your own. With `values=False` only the
    time is computed. `note` receives the reason where a machine computes no values, and a line if a part of the network
    is skipped. Raises InputError if the machine cannot run the network.
    """
    choice = MachineChoice(preset, None if machine is None else Path(machine))
    source = compile_reference(model_reference(model), choice, compiler or CompilerOptions(), dims or {}, note=note)
    loaded = LoadedProgram.of(source)
    run = run_on_one_core(loaded, RunOptions(values=values), note)
    found = json_fields(run)
    return Emulation(
        run.name, loaded.machine.name, found["cycles"], found["seconds"], found["max_rel_error"], found, run
    )
