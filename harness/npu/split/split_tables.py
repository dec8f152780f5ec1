"""A comparison of splits as the fields of a JSON object and as text tables."""

from collections.abc import Iterator
from typing import Any

from device_agents.emulated_npu.compiler.prediction.split_choice import ONE
from harness.npu.split.split_study import CLOSE, SplitComparison, SplitStudy, StudiedLayer, StudiedNetwork
from harness.text import NAME_WIDTH, Part, Table, counted, printable


def json_fields(split: SplitComparison) -> dict[str, Any]:
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
        "networks": [
            {
                "split": each.name,
                "split_layers": each.split_layers,
                "predicted_cycles": split.cycles(each.predicted_ps),
                "cycles": None if each.true_ps is None else split.cycles(each.true_ps),
            }
            for each in _ways(study)
        ],
        "one_core_wins": study.one_core_wins,
        "agreement": {
            "layers": len(study.layers),
            "well_chosen": study.well_chosen if split.verified else None,
            "layer_tau_b": study.layer_tau if split.verified else None,
            "network_tau_b": study.network_tau if split.verified else None,
        },
    }


def _layer_fields(split: SplitComparison, studied: StudiedLayer, operator: str) -> dict[str, Any]:
    choice = studied.choice
    return {
        "name": choice.layer.name,
        "operators": operator,
        "predicted_best": choice.best.name,
        "true_best": studied.true_best if split.verified else None,
        "excess": studied.excess if split.verified else None,
        "tau_b": studied.tau if split.verified else None,
        "candidates": [
            {
                "split": one.name,
                "cores": max(map(len, one.split.phases)),
                "predicted_cycles": split.cycles(one.predicted_ps),
                "cycles": split.cycles(studied.true_ps[one.name]) if split.verified else None,
            }
            for one in choice.candidates
        ],
        "refused": dict(choice.refused),
    }


def _ways(study: SplitStudy) -> tuple[StudiedNetwork, ...]:
    """Return one core at its best, then the ways to split the network."""
    return study.networks if study.chained is None else (study.chained, *study.networks)


def split_tables(split: SplitComparison) -> list[Part]:
    """Return a table of the layers, one of the network, and how well predictions and runs agree."""
    parts: list[Part] = [_layer_table(split)]
    if networks := _ways(split.study):
        rows = [
            (_named(one.name), str(one.split_layers), _times(split, one.predicted_ps, one.true_ps)) for one in networks
        ]
        parts.append(Table(("network", "layers split", "cycles"), rows))
    return [*parts, tuple(_summary(split))]


def _layer_table(split: SplitComparison) -> Table:
    present = {one.name for layer in split.study.layers for one in layer.choice.candidates}
    names = [name for name in (ONE, "batch", "rows", "outputs", "inputs") if name in present]
    rows = []
    for layer in split.study.layers:
        choice, true_ps = layer.choice, layer.true_ps
        times = {one.name: _times(split, one.predicted_ps, true_ps.get(one.name)) for one in choice.candidates}
        own = (_named(layer.true_best), f"{layer.excess:.1%}") if split.verified else ()
        name = printable(choice.layer.name, NAME_WIDTH)
        rows.append((name, *(times.get(each, "-") for each in names), _named(choice.best.name), *own))
    header = ("layer", *map(_named, names), "predicted best", *(("true best", "excess") if split.verified else ()))
    return Table(header, rows)


def _named(way: str) -> str:
    """Return the name of a way as a table shows it: `one core, chained` for `one, chained`."""
    return f"one core{way.removeprefix(ONE)}" if way.startswith(ONE) else way


def _times(split: SplitComparison, predicted_ps: int, true_ps: int | None) -> str:
    predicted = f"{split.cycles(predicted_ps):,.0f}"
    return predicted if true_ps is None else f"{predicted} / {split.cycles(true_ps):,.0f}"


def _summary(split: SplitComparison) -> Iterator[tuple[str, str]]:
    study = split.study
    if study.one_core_wins:
        yield "one core", "wins: its chains of layers are as fast as the best split, whose layers are not chained"
    where = f"for {study.cores} cores of {split.machine.name}"
    if not split.verified:
        yield "cycles", f"as predicted {where}; nothing was run"
        return
    yield "cycles", f"as predicted / event by event, {where}"
    yield (
        "agreement",
        f"predicted best is the true best, or within {CLOSE:.0%} of it: "
        f"{study.well_chosen:.1%} of {counted(len(study.layers), 'layer')}",
    )
    tau = [("layers (mean)", study.layer_tau), ("network", study.network_tau)]
    shown = ", ".join(f"{what} {value:.3f}" for what, value in tau if value is not None)
    if shown:
        yield "ranks", f"Kendall's tau-b of {shown}"
