"""`harness estimate`: the latency of networks from a table, without a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.estimate_candidates import SpaceOptions, estimate_candidates
from harness.cli.options import arguments
from harness.cli.options.arguments import command_words
from harness.cli.options.option_groups import Heading, spread
from harness.cli.options.result_files import file_option
from harness.cli.terminal.layer_table import LayerView, ShownLayer, show_layers, work_fields
from harness.cli.terminal.output import error_fields, note, print_error, print_json, print_line, print_table, write_csv
from harness.errors import CoverageError, UsageError
from harness.text import clock_name, counted, interval_ms, microseconds, milliseconds, sentences
from harness.workspace import find_workspace

if TYPE_CHECKING:
    from harness.estimation.layer_estimates import LayerEstimate
    from harness.estimation.network_estimate import NetworkEstimate, NetworkEstimates
    from harness.lut.layer_work import LayerWork
    from harness.lut.table import Lut
    from harness.network.keyed_network import KeyedNetwork
    from harness.network.network_list import NetworksRead
    from harness.workspace import Workspace


@dataclass(frozen=True)
class EstimateView(LayerView):
    """Whether and how layers are listed, and whether some may be missing in the table."""

    layers: Annotated[
        bool, typer.Option("--layers", help="List every layer with multiply-adds and bytes moved; also in --json.")
    ] = False
    allow_partial: Annotated[bool, typer.Option("--allow-partial", help="Accept layers that are not in the table.")] = (
        False
    )

    @property
    def lists_layers(self) -> bool:
        """Whether an option about layers is given."""
        return self != EstimateView(allow_partial=self.allow_partial)


@dataclass(frozen=True)
class OutputFiles:
    """The files that the command writes."""

    html: arguments.HtmlFile = None
    csv: Annotated[Path | None, file_option("--csv", help="Write the layers to this file.")] = None


@spread
def estimate(
    models: Annotated[list[str] | None, arguments.models_argument()] = None,
    *,
    choice: arguments.TableChoice,
    view: EstimateView,
    files: OutputFiles,
    candidates: Annotated[SpaceOptions, Heading("Options with --space")],
    reading: arguments.ReadingOptions,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Estimate the latency of networks from the table of a device.

    If a network cannot be used, it is listed, the others are estimated, and the exit code is 3. Many files are read in
    parallel, on all cores. Layers of files that were read before come from the cache of HARNESS_CACHE_DIR.

    With --space, the command estimates candidates of a search space instead, and shows the best.

    Example: harness estimate builtin:resnet50 --device cpu01 --layers

    Example: harness estimate --space super.onnx --candidates random:1000000
    """
    workspace = find_workspace(directory)
    if candidates.space is not None:
        if models or view != EstimateView() or files != OutputFiles():
            step = "Omit networks, --layers, --sort, --top, --wide, --allow-partial, --html and --csv"
            raise UsageError("--space estimates candidates, without their layers", next_step=step)
        estimate_candidates(candidates, choice, reading, workspace, json=json)
        return
    if not models or candidates != SpaceOptions():
        what = "Some options are only for search spaces" if models else "There is nothing to estimate"
        raise UsageError(what, next_step="Name networks, or give --space and --candidates instead")
    from harness.estimation.network_estimate import NetworkEstimates
    from harness.lut.table_choice import open_table

    table = open_table(choice.device, choice.lut, workspace, reading.variant)
    read = reading.networks(models, table)
    estimates = NetworkEstimates.of(read, table)
    _write(files, estimates, read, table, workspace)
    works = _works(read.networks, estimates, table) if view.lists_layers else None
    warnings = _warnings(estimates)
    for warning in warnings:
        note(f"warning: {warning}")
    if json:
        print_json(**_document(estimates, works or [()] * len(estimates), table), warnings=warnings)
    else:
        _show(estimates)
        for network, work in zip(estimates, works or (), strict=works is not None):
            _show_layers(network, work, view)
        print_line(f"table: {table.name}  method: {table.method}  clock: {clock_name(table.clock)}")
    _note_source(table, by_default=choice.lut is None)
    covering = _covering(estimates, models, table, reading) if _lacking(estimates) else ""
    if view.allow_partial:
        if covering:
            note(covering)
        _require_complete(estimates, None, {})
    else:
        refused = _refused(estimates, table, workspace)
        _require_complete(estimates, _step_to_cover(estimates, table, reading, covering, refused), refused)


_SHOWN = 10
_MOSTLY = 0.5
_NETWORK_FIELDS = ("name", "latency_s", "interval_s", "covered_latency_s", "overhead_s", "predicted_share")


def _write(
    files: OutputFiles, estimates: NetworkEstimates, read: NetworksRead[KeyedNetwork], table: Lut, workspace: Workspace
) -> None:
    if files.csv is not None:
        write_csv(files.csv, [_row(network, layer) for network in estimates for layer in network.layers])
    if files.html is not None:
        from harness.report.html import report_networks

        report_networks(files.html, workspace, table, read, command_words())


def _works(
    networks: Sequence[KeyedNetwork], estimates: NetworkEstimates, table: Lut
) -> list[Sequence[LayerWork | None]]:
    """Return the work of the layers of each network."""
    from harness.lut.layer_work import DeviceRoofs, WorkedLayer

    roofs = DeviceRoofs.of(table)
    pairs = [zip(network.layers, one.layers, strict=True) for network, one in zip(networks, estimates, strict=True)]
    return [roofs.works([WorkedLayer(layer.key.text, known.latency_s) for layer, known in layers]) for layers in pairs]


def _document(estimates: NetworkEstimates, works: Sequence[Sequence[LayerWork | None]], table: Lut) -> dict[str, Any]:
    from harness.lut.table_choice import is_published

    return {
        "lut": table.name,
        **{name: getattr(table, name) for name in ("device", "clock", "method", "machine")},
        "published": is_published(table),
        "networks": [_json(network, work) for network, work in zip(estimates, works, strict=True)],
        "refused_networks": [error_fields(one) for one in estimates.refused_networks],
    }


def _note_source(table: Lut, *, by_default: bool) -> None:
    """Note what limits the use of the table's latencies: their origin, method and machine."""
    from harness.lut.table_choice import is_published

    if by_default and is_published(table):
        note(
            f"The workspace has no table of {table.device}: the published one is used."
            f" To measure your networks: harness profile --device {table.device} MODEL.onnx …"
        )
    if table.is_imported:
        tool = table.fingerprint.get("tool", "another tool")
        note(f"{table.name} holds latencies that {tool} measured, not harness")
    if table.is_comparison:
        note(f"The table was made for comparison, with --method {table.method}")
    if table.machine.startswith("noisy"):
        note(f"The machine that measured the table was {table.machine}")


def _warnings(estimates: Sequence[NetworkEstimate]) -> list[str]:
    """Return one sentence for each network whose latency is mostly predicted."""
    mostly = [network for network in estimates if network.predicted_share > _MOSTLY]
    return [
        f"{network.predicted_share:.0%} of the latency of {network.name} is predicted from other layers; "
        "profile the network to measure its own"
        for network in mostly
    ]


def _json(network: NetworkEstimate, works: Sequence[LayerWork | None]) -> dict[str, Any]:
    return {
        **{name: getattr(network, name) for name in _NETWORK_FIELDS},
        "coverage": dict(network.coverage),
        "layers": [
            {**asdict(layer), **(work_fields(works[at]) if works else {})} for at, layer in enumerate(network.layers)
        ],
        "free": [asdict(node) for node in network.free],
        "unmeasured": [asdict(node) for node in network.unmeasured],
    }


def _show(estimates: Sequence[NetworkEstimate]) -> None:
    rows = []
    for network in estimates:
        known = len(network.layers) - len(network.unknown)
        if network.latency_s is None or network.interval_s is None:
            shown = (f"≥ {milliseconds(network.covered_latency_s)}" if known else "unknown", "unknown")
        else:
            shown = (milliseconds(network.latency_s), interval_ms(network.interval_s))
        rows.append((network.name, *shown, _coverage(network)))
    print_table(("network", "latency ms", "95 % interval", "layers measured"), rows)
    far = sum(network.coverage["extrapolated"] for network in estimates)
    if far:
        note(f"{counted(far, 'layer')} unlike any measured layer: predictions of such layers have wide intervals")


def _coverage(network: NetworkEstimate) -> str:
    """Return a text such as `12/15, 3 predicted`."""
    predicted = network.coverage["interpolated"] + network.coverage["extrapolated"]
    measured = f"{network.coverage['measured']}/{len(network.layers)}"
    return f"{measured}, {predicted} predicted" if predicted else measured


def _show_layers(network: NetworkEstimate, works: Sequence[LayerWork | None], view: LayerView) -> None:
    rows = [
        ShownLayer(
            layer.name,
            layer.op,
            layer.latency_s,
            layer.stderr_s,
            work,
            layer.key,
            layer.context,
            None if layer.latency_s is None else layer.share_of(network.covered_latency_s),
            layer.source,
        )
        for layer, work in zip(network.layers, works, strict=True)
    ]
    print()
    print_line(f"layers of {network.name}")
    show_layers(rows, view, sort="order")
    if 0 < len(network.unknown) < len(network.layers):
        print_line(f"shares are of the known part of the latency, {microseconds(network.covered_latency_s)} µs")
    share = network.overhead_s / network.covered_latency_s if network.covered_latency_s > 0 else 0.0
    print_line(f"overhead of a run: {microseconds(network.overhead_s)} µs, {share:.1%}")
    for reason, count in sorted(Counter(node.reason for node in network.free).items()):
        print_line(f"nodes that take no time, {reason}: {count}")


def _require_complete(estimates: NetworkEstimates, step: str | None, refused: Mapping[str, str]) -> None:
    """Raise if networks were refused, or layers are unknown and `step` is given; print the second error of both."""
    from harness.network.network_list import refusals_error

    uncovered = _uncovered(estimates, step, refused) if step is not None and _lacking(estimates) else None
    if estimates.refused_networks:
        if uncovered:
            print_error(uncovered)
        raise refusals_error(estimates.refused_networks, len(estimates))
    if uncovered:
        raise uncovered


def _covering(estimates: NetworkEstimates, models: Sequence[str], table: Lut, reading: arguments.ReadingOptions) -> str:
    """Return the advice to use the package's table if it has more layers of the networks, else nothing."""
    from harness.estimation.network_estimate import NetworkEstimates
    from harness.lut.table_choice import is_published, published_lut
    from harness.network.keyed_reading import read_keyed_networks

    published = None if is_published(table) else published_lut(table.device, reading.variant)
    if published is None:
        return ""
    read = read_keyed_networks(models, published.rules, reading.dims, batch=reading.batch)
    lacking = _lacking(NetworkEstimates.of(read, published))
    has = f"lacks {counted(lacking, 'layer')} of them" if lacking else "has all layers"
    return f"Give --lut {published.name}, the published table, which {has}" if lacking < _lacking(estimates) else ""


def _refused(estimates: Sequence[NetworkEstimate], table: Lut, workspace: Workspace) -> Mapping[str, str]:
    """Return why the device refused layers, if any are not in its table."""
    if not _lacking(estimates):
        return {}
    from harness.lut.refused_layers import refused_layers  # opens the journal

    return refused_layers(workspace, table.device)


def _lacking(estimates: Sequence[NetworkEstimate]) -> int:
    return sum(len(network.unknown) for network in estimates)


def _step_to_cover(
    estimates: Sequence[NetworkEstimate],
    table: Lut,
    reading: arguments.ReadingOptions,
    covering: str,
    refused: Mapping[str, str],
) -> str:
    """Return the next step if layers are not in a table; `covering` is the advice of `_covering`.

    Layers that the device `refused` are not measured by another campaign.
    """
    from harness.network.learnt_weights import is_quantised

    profile = f"harness profile --device {table.device}{reading.variant.options()}"
    if all(layer.key in refused for network in estimates for layer in network.unknown):
        return sentences(covering, "Use another device, or give --allow-partial for the latency of the other layers")
    measure = f"{'Or measure' if covering else 'Measure'} the network with `{profile} MODEL.onnx`"
    step = f"{measure} and build the table again, or give --allow-partial"
    if table.is_imported:
        step = f"{'Or import' if covering else 'Import'} a file that also has these layers, or give --allow-partial"
    elif any(is_quantised(op) for network in estimates for layer in network.unknown for op in layer.op.split("+")):
        step = f"{step}. `{profile} --space builtin:int8` measures quantised layers of many shapes"
    return sentences(covering, step)


def _uncovered(estimates: Sequence[NetworkEstimate], step: str, refused: Mapping[str, str]) -> CoverageError:
    for network in estimates:
        for layer in network.unknown[:_SHOWN]:
            reason = f"; the device refused it: {refused[layer.key]}" if layer.key in refused else ""
            note(f"not in the table: {network.name}: {layer.name} ({layer.op}){reason}")
        if len(network.unknown) > _SHOWN:
            note(f"not in the table: {network.name}: {len(network.unknown) - _SHOWN} more; --layers --wide lists all")
    names = ", ".join(network.name for network in estimates if network.unknown)
    unknown = _lacking(estimates)
    verb = "is" if unknown == 1 else "are"
    return CoverageError(f"{counted(unknown, 'layer')} of {names} {verb} not in the table", next_step=step)


def _row(network: NetworkEstimate, layer: LayerEstimate) -> dict[str, Any]:
    names = ("op", "key", "context", "latency_s", "stderr_s", "remainder_s", "source")
    return {"network": network.name, "layer": layer.name, **{name: getattr(layer, name) for name in names}}
