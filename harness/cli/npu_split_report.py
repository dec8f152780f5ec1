"""The study of `harness npu split`: what it is made of, and how it is written."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.cli.npu_errors import errors_of_compiler, errors_of_forced_choices, errors_of_user, shortened
from harness.cli.output import print_table
from harness.errors import UsageError
from harness.files import spreadsheet_csv
from harness.text import printable

if TYPE_CHECKING:
    from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
    from device_agents.emulated_npu.compiler.options import Options
    from device_agents.emulated_npu.machine import Machine
    from device_agents.emulated_npu.many_cores.split_study import SplitStudy, StudiedLayer, StudiedNetwork
    from harness.cli.npu_source import NetworkModel

_WIDTH = 48
_NAMED = 5


@dataclass(frozen=True)
class Split:
    """A network on a machine with its study; `verified` tells whether anything was run."""

    network: str
    machine: Machine
    study: SplitStudy
    operators: tuple[str, ...]
    verified: bool

    def cycles(self, ps: int) -> float:
        """Picoseconds in cycles of the machine."""
        return ps * self.machine.clock_hz / 1e12


def check_cores(cores: int, machine: Machine) -> None:
    """Raises UsageError for a number of cores that a chip of the machine does not have."""
    limit = machine.cores.per_chip
    if not 1 <= cores <= limit:
        where = f"{machine.name} has {limit} core{'s' if limit > 1 else ''}" + (
            " a chip" if machine.cores.chips > 1 else ""
        )
        step = f"Choose from 1 to {limit}" if limit > 1 else "Choose a machine with several cores, such as edge"
        raise UsageError(
            f"--cores {cores} is not possible", why=f"At least 1 core shares the work; {where}", next_step=step
        )


def study(
    source: NetworkModel, machine: Machine, cores: int, options: Options, layers: Sequence[str], verify: bool
) -> Split:
    """Studies a network, or some of its layers; raises UsageError for a layer that it does not have, and InputError.

    HarnessError where what was compiled does not run: that is a bug.
    """
    from device_agents.emulated_npu.compiler.graph.importer import import_model
    from device_agents.emulated_npu.many_cores.split_study import study_splits

    with errors_of_user():
        graph = import_model(source.content)
        places = [_place(name, graph) for name in layers]
    with errors_of_compiler(), errors_of_forced_choices(options):
        found = study_splits(graph, machine, cores, options, layers=places or None, verify=verify)
    operators = tuple(
        "+".join(source.operators[node] for node in each.choice.layer.nodes) or each.choice.layer.function.name.lower()
        for each in found.layers
    )
    return Split(source.name, machine, found, operators, verify)


def _place(name: str, graph: Graph) -> int:
    for layer in graph.layers:
        if name == layer.name or name in layer.nodes:
            return layer.index
    names = [layer.name for layer in graph.layers]
    shown = difflib.get_close_matches(name, names, n=_NAMED, cutoff=0.4) or names[:_NAMED]
    why = f"Layers are {', '.join(map(shortened, shown))}, … ({len(names)})"
    raise UsageError(
        f"There is no layer {shortened(name)}", why=why, next_step="Name one of them, or leave --layer out"
    )


# --- JSON and CSV ---------------------------------------------------------------------------------------------------


def json_fields(split: Split) -> dict[str, Any]:
    """All that is known, as JSON; what only a run tells is null where there was none."""
    study = split.study
    return {
        "network": split.network,
        "machine": split.machine.name,
        "cores": study.cores,
        "cycles_per_s": split.machine.clock_hz,
        "layers": [
            _layer_fields(split, each, operator) for each, operator in zip(study.layers, split.operators, strict=True)
        ],
        "networks": [_network_fields(split, each) for each in study.networks],
        "agreement": {
            "layers": len(study.layers),
            "well_chosen": study.well_chosen if split.verified else None,
            "layer_tau_b": study.layer_tau if split.verified else None,
            "network_tau_b": study.network_tau if split.verified else None,
        },
    }


def _layer_fields(split: Split, each: StudiedLayer, operator: str) -> dict[str, Any]:
    choice = each.choice
    return {
        "name": choice.layer.name,
        "operators": operator,
        "predicted_best": choice.best.name,
        "true_best": each.true_best if split.verified else None,
        "excess": each.excess if split.verified else None,
        "tau_b": each.tau if split.verified else None,
        "candidates": [
            {
                "split": one.name,
                "cores": max(map(len, one.split.phases)),
                "predicted_cycles": split.cycles(one.predicted_ps),
                "cycles": split.cycles(each.true_ps[one.name]) if split.verified else None,
            }
            for one in choice.candidates
        ],
        "refused": dict(choice.refused),
    }


def _network_fields(split: Split, each: StudiedNetwork) -> dict[str, Any]:
    return {
        "split": each.name,
        "split_layers": each.split_layers,
        "predicted_cycles": split.cycles(each.predicted_ps),
        "cycles": None if each.true_ps is None else split.cycles(each.true_ps),
    }


def candidates_csv(split: Split) -> str:
    """A row for every candidate of every layer, and for every way to split the network (without a layer)."""
    header = ("layer", "operators", "split", "predicted_cycles", "cycles", "predicted_best", "true_best")
    rows: list[tuple[object, ...]] = []
    fields = json_fields(split)
    for layer in fields["layers"]:
        for one in layer["candidates"]:
            best = (
                one["split"] == layer["predicted_best"],
                one["split"] == layer["true_best"] if split.verified else "",
            )
            head = (layer["name"], layer["operators"], one["split"])
            rows.append((*head, one["predicted_cycles"], one["cycles"], *best))
    for one in fields["networks"]:
        rows.append(("", "", one["split"], one["predicted_cycles"], one["cycles"], "", ""))
    return spreadsheet_csv(header, rows)


# --- text -----------------------------------------------------------------------------------------------------------


def show(split: Split) -> None:
    """A table of the layers, one of the network, and how well prediction and run agree."""
    from device_agents.emulated_npu.compiler.prediction.split_choice import ONE
    from device_agents.emulated_npu.many_cores.split_study import CLOSE

    fields = json_fields(split)
    present = {one["split"] for layer in fields["layers"] for one in layer["candidates"]}
    names = [name for name in (ONE, "batch", "rows", "outputs", "inputs") if name in present]
    verified = ("true best", "excess") if split.verified else ()
    rows = []
    for layer in fields["layers"]:
        times = {one["split"]: _times(one) for one in layer["candidates"]}
        own = (layer["true_best"], f"{layer['excess']:.1%}") if split.verified else ()
        name = printable(layer["name"], _WIDTH)
        rows.append((name, *(times.get(each, "-") for each in names), layer["predicted_best"], *own))
    print_table(("layer", *names, "predicted best", *verified), rows)
    if fields["networks"]:
        print()
        print_table(
            ("network", "layers split", "cycles"),
            [(one["split"], str(one["split_layers"]), _times(one)) for one in fields["networks"]],
        )
    print()
    for line in _summary(fields, split.verified, CLOSE):
        print(line)


def _times(one: dict[str, Any]) -> str:
    predicted = f"{one['predicted_cycles']:,.0f}"
    return predicted if one["cycles"] is None else f"{predicted} / {one['cycles']:,.0f}"


def _summary(fields: dict[str, Any], verified: bool, close: float) -> Iterator[str]:
    if not verified:
        yield f"cycles as predicted for {fields['cores']} cores of {fields['machine']}; nothing was run"
        return
    agreement = fields["agreement"]
    yield f"cycles as predicted / event by event, for {fields['cores']} cores of {fields['machine']}"
    layers = agreement["layers"]
    yield (
        f"predicted best is the true best, or within {close:.0%} of it: "
        f"{agreement['well_chosen']:.1%} of {layers} layer{'s' if layers > 1 else ''}"
    )
    tau = [("layers (mean)", agreement["layer_tau_b"]), ("network", agreement["network_tau_b"])]
    shown = ", ".join(f"{what} {value:.3f}" for what, value in tau if value is not None)
    if shown:
        yield f"rank agreement (Kendall's tau-b): {shown}"
