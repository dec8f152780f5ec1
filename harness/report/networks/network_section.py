"""The section of one network: coverage, layers with the overhead among them, roll-ups, and nodes that take no time."""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.estimation.layer_estimates import LayerEstimate
from harness.estimation.network_estimate import NetworkEstimate
from harness.measure.summary import Z_95
from harness.report.networks import layer_figures, network_graph
from harness.report.networks.layer_figures import LayerBar
from harness.report.page_values import CaptionedFigure, ReportTable, Unit, display, duration, percent, unit_for

OVERHEAD = "overhead (a, b, c)"
_MOST = 0.8
_SEPARATOR = re.compile(r"[./:]+")
_MOST_BLOCKS = 40


def section(estimate: NetworkEstimate, edges: Sequence[tuple[int, int]] | None) -> dict[str, object]:
    """Return a network's section; `edges` are the numbers of layers and of their readers, and give its graph."""
    unknown, covered = len(estimate.unknown), duration(estimate.covered_latency_s)
    headline, warning = covered, ""
    if unknown:
        headline = f"at least {covered}; {unknown} layers are not in the table"
        others = f"The other layers take {covered}; shares refer to that."
        warning = f"{unknown} of {len(estimate.layers)} layers are not in the table. {others}"
    return {
        "name": display(estimate.name),
        "headline": headline,
        "warning": warning,
        "coverage": [(kind, str(count)) for kind, count in estimate.coverage.items()],
        "figures": [*_figures(estimate), *([] if edges is None else _graph(estimate, edges))],
        "tables": [_layers(estimate), *_roll_ups(estimate)],
        "free": _free(estimate),
    }


def _figures(estimate: NetworkEstimate) -> list[CaptionedFigure]:
    if all(layer.latency_s is None for layer in estimate.layers):
        return []
    name, whole_s = display(estimate.name), estimate.covered_latency_s
    layers = [_bar(layer, whole_s) for layer in estimate.layers]
    text = f"{duration(estimate.overhead_s)}, {_share(estimate.overhead_s, whole_s)}, fitted"
    drawn = [*layers, LayerBar(OVERHEAD, text, estimate.overhead_s, is_overhead=True)]
    several = len(layers) > layer_figures.MAX_BARS
    more = f" There are {len(layers)} layers, so neighbours share a bar." if several else ""
    blank = " Shaded layers are not in the table." if estimate.unknown else ""
    in_order = f"Layers of {name} in order of execution; the last bar is the overhead.{more}{blank}"
    found = [CaptionedFigure(in_order, layer_figures.bars(drawn))]
    times = sorted((bar.latency_s or 0.0 for bar in drawn), reverse=True)
    if sum(times) > 0:
        reached = itertools.accumulate(times)
        count = next(at for at, one in enumerate(reached, 1) if one >= _MOST * sum(times) * (1 - 1e-9))
        said = f"{count} of {len(drawn)} rows, overhead included, take {percent(_MOST, 0)} of the time of {name}."
        found.append(CaptionedFigure(f"Pareto of layers: {said}", layer_figures.pareto(drawn)))
    return found


def _graph(estimate: NetworkEstimate, edges: Sequence[tuple[int, int]]) -> list[CaptionedFigure]:
    if not network_graph.is_drawable(len(estimate.layers), edges):
        return []
    layers = [_bar(layer, estimate.covered_latency_s) for layer in estimate.layers]
    caption = f"Graph of {display(estimate.name)}: data flows from left to right, the colour is the latency of a layer."
    return [CaptionedFigure(caption, network_graph.graph_figure(layers, edges))]


def _bar(layer: LayerEstimate, whole_s: float) -> LayerBar:
    if layer.latency_s is None or layer.stderr_s is None:
        return LayerBar(display(layer.name), f"{display(layer.op)}, not in the table", None)
    times = f"{duration(layer.latency_s)} ± {duration(Z_95 * layer.stderr_s)}, {_share(layer.latency_s, whole_s)}"
    return LayerBar(display(layer.name), f"{display(layer.op)}, {times}, {layer.source}", layer.latency_s)


def _share(latency_s: float | None, whole_s: float) -> str:
    return percent(latency_s / whole_s) if latency_s is not None and whole_s > 0 else ""


@dataclass(frozen=True)
class _Row:
    """A row of the table of layers: a layer, or the overhead, which has no place in the order of execution."""

    name: str
    number: str
    op: str
    source: str
    latency_s: float | None
    stderr_s: float | None = None

    def cells(self, whole_s: float, reached_s: float, unit: Unit) -> tuple[str, ...]:
        """Return the cells; `reached_s` is the time of this row and of all slower ones."""
        times = ("", "", "unknown", "")
        if self.latency_s is not None:
            error = "" if self.stderr_s is None else unit.text(Z_95 * self.stderr_s, 2)
            shares = _share(self.latency_s, whole_s), _share(reached_s, whole_s)
            times = (*shares, unit.text(self.latency_s), error)
        return self.name, self.number, *times, self.op, self.source


def _layers(estimate: NetworkEstimate) -> ReportTable:
    rows = [
        _Row(display(one.name), str(number), display(one.op), display(one.source), one.latency_s, one.stderr_s)
        for number, one in enumerate(estimate.layers, 1)
    ]
    rows.append(_Row(OVERHEAD, "", "", "fitted", estimate.overhead_s))
    rows.sort(key=lambda row: -(row.latency_s or 0.0))
    reached = itertools.accumulate(row.latency_s or 0.0 for row in rows)
    unit, whole_s = unit_for(row.latency_s or 0.0 for row in rows), estimate.covered_latency_s
    header = ("layer", "no.", "share", "cumulative", f"latency, {unit.symbol}", f"± 95 %, {unit.symbol}")
    name = display(estimate.name)
    caption = (
        f"The {len(estimate.layers)} layers of {name} and the overhead, slowest first; no. is the order of execution"
    )
    cells = tuple(row.cells(whole_s, so_far, unit) for row, so_far in zip(rows, reached, strict=True))
    what = "whole network" if estimate.latency_s is not None else "all known"
    total = (what, "", _share(whole_s, whole_s), "", unit.text(whole_s), "", "", "")
    return ReportTable(caption, (*header, "operator", "source"), cells, (0, 6, 7), total)


def _roll_ups(estimate: NetworkEstimate) -> list[ReportTable]:
    """Return the time by operator, and by block if the names of layers have blocks."""
    name = display(estimate.name)
    found = [_roll_up(estimate, f"Time of {name} by operator", "operator", lambda layer: layer.op)]
    blocks = blocks_of([layer.name for layer in estimate.layers])
    if blocks:
        caption = f"Time of {name} by block, the beginning of the layers' names, in order of execution"
        found.append(_roll_up(estimate, caption, "block", lambda layer: blocks[layer.name]))
    return found


def blocks_of(names: Sequence[str]) -> Mapping[str, str]:
    """Return the block of each name, at the finest level with at most 40 blocks; nothing if no level groups layers.

    Names are paths: `/layer1/layer1.0/conv1/Conv` and `layer1.0.conv1` have parts between dots and slashes. The last
    part names the layer itself.
    """
    paths = {name: tuple(part for part in _SEPARATOR.split(name) if part)[:-1] for name in names}
    deepest = max(map(len, paths.values()), default=0)
    found: Mapping[str, str] = {}
    for depth in range(1, deepest + 1):
        level = {name: ".".join(path[:depth]) or name for name, path in paths.items()}
        count = len(set(level.values()))
        if count > _MOST_BLOCKS:
            break
        if 1 < count < len(names):
            found = level
    return found


def _roll_up(
    estimate: NetworkEstimate, caption: str, kind: str, group_of: Callable[[LayerEstimate], str]
) -> ReportTable:
    groups: Mapping[str, list[LayerEstimate]] = defaultdict(list)
    for layer in estimate.layers:
        groups[group_of(layer)].append(layer)
    times = {name: sum(layer.latency_s or 0.0 for layer in group) for name, group in groups.items()}
    unit, whole_s = unit_for([*times.values(), estimate.overhead_s]), estimate.covered_latency_s
    order: Sequence[str] = list(groups) if kind == "block" else sorted(groups, key=lambda name: -times[name])
    rows = [
        (
            display(name) or "(no name)",
            str(len(groups[name])),
            _share(times[name], whole_s),
            unit.text(times[name]),
            str(sum(layer.latency_s is None for layer in groups[name])),
        )
        for name in order
    ]
    rows.append((OVERHEAD, "", _share(estimate.overhead_s, whole_s), unit.text(estimate.overhead_s), ""))
    return ReportTable(caption, (kind, "layers", "share", f"latency, {unit.symbol}", "unknown"), tuple(rows))


def _free(estimate: NetworkEstimate) -> tuple[tuple[str, list[str]], ...]:
    reasons: dict[str, list[str]] = {}
    for node in estimate.free:
        reasons.setdefault(display(node.reason), []).append(f"{display(node.name)} ({display(node.op)})")
    for skipped in estimate.unmeasured:
        reason = "not in any figure, because their sizes depend on the data or their results are not numbers"
        reasons.setdefault(reason, []).append(display(skipped.name))
    return tuple(sorted(reasons.items(), key=lambda item: -len(item[1])))
