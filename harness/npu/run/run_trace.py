"""A run as Chrome trace, which Perfetto (ui.perfetto.dev) shows."""

from __future__ import annotations

from typing import Any

from device_agents.emulated_npu.inference import TimedProgram
from device_agents.emulated_npu.reports.chrome_trace import LayerLabel, chrome_trace
from harness.errors import InputError
from harness.npu.loading import LoadedProgram
from harness.npu.run.core_run import time_loaded

_MOST_TRACED_ITEMS = 100_000


def trace(loaded: LoadedProgram, cycle_budget: int | None = None) -> tuple[TimedProgram, dict[str, Any]]:
    """Return the timed program and its trace; raises InputError if the run is too long for a trace."""
    timed, _ = time_loaded(loaded, cycle_budget)
    if len(timed.steps) > _MOST_TRACED_ITEMS:
        raise InputError(
            f"The run has {len(timed.steps):,} items, a trace holds at most {_MOST_TRACED_ITEMS:,}",
            why="A trace has several events per item, and the browser that shows them holds them all in memory",
            next_step="Trace a smaller network or input (--dim); `harness npu run` reports the times of the layers",
        )
    labels = tuple(map(LayerLabel, loaded.program.layers))
    if loaded.source is not None:
        layers = zip(loaded.source.compiled.graph.layers, loaded.source.operators, strict=True)
        labels = tuple(LayerLabel(layer.name, operators, layer.nodes) for layer, operators in layers)
    return timed, chrome_trace(timed.timing, loaded.machine, labels, costs=timed.costs)
