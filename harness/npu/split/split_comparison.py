"""Compare ways to split a network's layers over cores, as predicted and as they run."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.machine import Machine
from harness.errors import UsageError
from harness.measure.progress import DONE, Observer, ignore
from harness.npu.error_translation import errors_of_compiler, errors_of_forced_choices, errors_of_user
from harness.npu.network_model import NetworkModel
from harness.npu.npu_options import Options, SplitOptions
from harness.npu.split import split_study
from harness.npu.split.split_study import SplitStudy
from harness.text import counted

_NAMED = 5


@dataclass(frozen=True)
class SplitComparison:
    """The splits of a network on a machine; `verified` is True if they were run, not only predicted."""

    network: str
    machine: Machine
    study: SplitStudy
    operators: tuple[str, ...]
    verified: bool

    def cycles(self, ps: int) -> float:
        """Return picoseconds as cycles of the machine."""
        return ps * self.machine.clock_hz / PS_PER_S


def check_cores(cores: int, machine: Machine) -> None:
    """Raise UsageError for a number of cores that a chip of the machine does not have."""
    limit = machine.cores.per_chip
    if not 1 <= cores <= limit:
        where = f"{machine.name} has {counted(limit, 'core')}{' a chip' if machine.cores.chips > 1 else ''}"
        step = f"Choose from 1 to {limit}" if limit > 1 else "Choose a machine with several cores, such as edge"
        raise UsageError(f"--cores {cores} is not possible", why=f"At least 1 core is needed; {where}", next_step=step)


def compare_splits(
    model: NetworkModel, machine: Machine, compiler: Options, options: SplitOptions, observe: Observer = ignore
) -> SplitComparison:
    """Compare the splits of a network, or of some of its layers; `observe` receives the progress.

    Raises UsageError for an unknown layer, InputError if something does not fit, and HarnessError, a bug, if a
    compiled program cannot run.
    """
    with errors_of_user():
        compiler.check()
        graph = import_model(model.content, machine.of_core(0).mfu.columns)
        indices = [_layer_index(name, graph) for name in options.layer]
    with errors_of_compiler(), errors_of_forced_choices(compiler):
        study = split_study.study_splits(
            graph, machine, options.cores, compiler, layers=indices or None, verify=options.verify, observe=observe
        )
    observe(DONE)
    operators = tuple(model.operators_of(each.choice.layer) for each in study.layers)
    return SplitComparison(model.name, machine, study, operators, options.verify)


def _layer_index(name: str, graph: Graph) -> int:
    for layer in graph.layers:
        if name == layer.name or name in layer.nodes:
            return layer.index
    names = [layer.name for layer in graph.layers]
    shown = difflib.get_close_matches(name, names, n=_NAMED, cutoff=0.4) or names[:_NAMED]
    why = f"Layers are {', '.join(shown)}, … ({len(names)})"
    raise UsageError(f"There is no layer {name}", why=why, next_step="Name one of them, or omit --layer")
