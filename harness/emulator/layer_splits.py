"""Compare ways to split a network's layers over cores, as predicted and as they run."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.prediction.split_choice import ONE
from device_agents.emulated_npu.machine import Machine
from harness.emulator import split_study
from harness.emulator.error_translation import errors_of_compiler, errors_of_forced_choices, errors_of_user
from harness.emulator.loading import NetworkModel
from harness.emulator.options import Options, SplitOptions
from harness.emulator.split_study import CLOSE, SplitStudy, StudiedLayer, StudiedNetwork
from harness.emulator.tables import NAME_WIDTH, Facts, Part, Table
from harness.errors import UsageError
from harness.text import printable

_NAMED = 5


@dataclass(frozen=True)
class Split:
    """The splits of a network on a machine; `verified` is True if they were run, not only predicted."""

    network: str
    machine: Machine
    study: SplitStudy
    operators: tuple[str, ...]
    verified: bool

    def cycles(self, ps: int) -> float:
        """Return picoseconds as cycles of the machine."""
        return ps * self.machine.clock_hz / 1e12


def check_cores(cores: int, machine: Machine) -> None:
    """Raise UsageError for a number of cores that a chip of the machine does not have."""
    limit = machine.cores.per_chip
    if not 1 <= cores <= limit:
        where = f"{machine.name} has {limit} core{'s' if limit > 1 else ''}" + (
            " a chip" if machine.cores.chips > 1 else ""
        )
        step = f"Choose from 1 to {limit}" if limit > 1 else "Choose a machine with several cores, such as edge"
        raise UsageError(
            f"--cores {cores} is not possible", why=f"At least 1 core does the work; {where}", next_step=step
        )


def compare_splits(model: NetworkModel, machine: Machine, wanted: SplitOptions, options: Options) -> Split:
    """Compare the splits of a network, or of some of its layers.

    Raises UsageError for an unknown layer, InputError if something does not fit, and HarnessError, a bug, if a
    compiled program cannot run.
    """
    with errors_of_user():
        options.check()
        graph = import_model(model.content)
        places = [_place(name, graph) for name in wanted.layer]
    with errors_of_compiler(), errors_of_forced_choices(options):
        found = split_study.study_splits(
            graph, machine, wanted.cores, options, layers=places or None, verify=wanted.verify
        )
    operators = tuple(
        "+".join(model.operators[node] for node in each.choice.layer.nodes) or each.choice.layer.function.name.lower()
        for each in found.layers
    )
    return Split(model.name, machine, found, operators, wanted.verify)


def _place(name: str, graph: Graph) -> int:
    for layer in graph.layers:
        if name == layer.name or name in layer.nodes:
            return layer.index
    names = [layer.name for layer in graph.layers]
    shown = difflib.get_close_matches(name, names, n=_NAMED, cutoff=0.4) or names[:_NAMED]
    why = f"Layers are {', '.join(shown)}, … ({len(names)})"
    raise UsageError(f"There is no layer {name}", why=why, next_step="Name one of them, or omit --layer")


def json_fields(split: Split) -> dict[str, Any]:
    """Return the fields of `npu split --json`; results of runs are null if nothing was run."""
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


def candidate_rows(split: Split) -> list[dict[str, Any]]:
    """Return the rows of the CSV file: every candidate of every layer, then every split of the network (no layer)."""
    fields = json_fields(split)
    rows = [
        {
            "layer": layer["name"],
            "operators": layer["operators"],
            "split": one["split"],
            "predicted_cycles": one["predicted_cycles"],
            "cycles": one["cycles"],
            "predicted_best": one["split"] == layer["predicted_best"],
            "true_best": one["split"] == layer["true_best"] if split.verified else None,
        }
        for layer in fields["layers"]
        for one in layer["candidates"]
    ]
    blank = dict.fromkeys(("layer", "operators", "predicted_best", "true_best"))
    names = ("split", "predicted_cycles", "cycles")
    return rows + [{**blank, **{name: one[name] for name in names}} for one in fields["networks"]]


def split_tables(split: Split) -> list[Part]:
    """Return a table of the layers, one of the network, and how well predictions and runs agree."""
    fields = json_fields(split)
    parts: list[Part] = [_layer_table(fields, split.verified)]
    if fields["networks"]:
        rows = [(one["split"], str(one["split_layers"]), _times(one)) for one in fields["networks"]]
        parts.append(Table(("network", "layers split", "cycles"), rows))
    return [*parts, Facts(tuple(_summary(fields, split.verified)))]


def _layer_table(fields: dict[str, Any], verified: bool) -> Table:
    present = {one["split"] for layer in fields["layers"] for one in layer["candidates"]}
    names = [name for name in (ONE, "batch", "rows", "outputs", "inputs") if name in present]
    rows = []
    for layer in fields["layers"]:
        times = {one["split"]: _times(one) for one in layer["candidates"]}
        own = (layer["true_best"], f"{layer['excess']:.1%}") if verified else ()
        name = printable(layer["name"], NAME_WIDTH)
        rows.append((name, *(times.get(each, "-") for each in names), layer["predicted_best"], *own))
    header = ("layer", *names, "predicted best", *(("true best", "excess") if verified else ()))
    return Table(header, rows)


def _times(one: dict[str, Any]) -> str:
    predicted = f"{one['predicted_cycles']:,.0f}"
    return predicted if one["cycles"] is None else f"{predicted} / {one['cycles']:,.0f}"


def _summary(fields: dict[str, Any], verified: bool) -> Iterator[tuple[str, str]]:
    where = f"for {fields['cores']} cores of {fields['machine']}"
    if not verified:
        yield "cycles", f"as predicted {where}; nothing was run"
        return
    agreement = fields["agreement"]
    yield "cycles", f"as predicted / event by event, {where}"
    layers = agreement["layers"]
    yield (
        "agreement",
        f"predicted best is the true best, or within {CLOSE:.0%} of it: "
        f"{agreement['well_chosen']:.1%} of {layers} layer{'s' if layers > 1 else ''}",
    )
    tau = [("layers (mean)", agreement["layer_tau_b"]), ("network", agreement["network_tau_b"])]
    shown = ", ".join(f"{what} {value:.3f}" for what, value in tau if value is not None)
    if shown:
        yield "ranks", f"Kendall's tau-b of {shown}"
