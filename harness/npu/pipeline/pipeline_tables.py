"""A network on core groups as the fields of a JSON object and as text tables."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.partition.groups import name_cores
from device_agents.emulated_npu.partition.node_graph import Workload
from harness.npu.pipeline.pipeline_run import PartitionRun, PipelineRun
from harness.text import Part, Table, byte_size, milliseconds, printable

_WIDTH = 28
_REPORT_FIELDS = ("cores", "inputs", "inputs_per_s", "speedup", "efficiency", "imbalance", "bound", "bound_by")


def json_fields(run: PipelineRun) -> dict[str, Any]:
    """Return the fields of `npu pipeline --json`; times are those of the emulated machine, except `took_s`.

    `compute_slots`: multiply-adds that the matrix units could compute in the time that the nodes keep the units busy.
    """
    machine = run.machine
    return {
        "network": run.source.model.name,
        "machine": machine.name,
        "chips": machine.cores.chips,
        "cores_per_chip": machine.cores.per_chip,
        "single_core_s": run.single_core_ps / PS_PER_S,
        "one_core_bytes": run.one_core_bytes,
        "fits_one_chip": run.fits_one_chip,
        "nodes": len(run.nodes.layers),
        "hardware_layers": len(run.source.compiled.graph.layers),
        "partitions": [_partition_fields(run, each) for each in run.runs],
    }


def _partition_fields(run: PipelineRun, divided: PartitionRun) -> dict[str, Any]:
    report = divided.timed.report
    return {
        "method": divided.method,
        "threshold": divided.partition.threshold,
        "steps": [
            {
                "node": run.nodes.graph.nodes[step.node].name,
                "group": step.group,
                "score": step.score,
                "closes": step.closes,
            }
            for step in divided.partition.steps
        ],
        "events": list(divided.partition.events),
        "latency_s": report.latency_ps / PS_PER_S,
        "interval_s": report.interval_ps / PS_PER_S,
        **{name: getattr(report, name) for name in _REPORT_FIELDS},
        "predicted_interval_s": divided.placed.predicted_interval_ps / PS_PER_S,
        "max_rel_error": divided.max_rel_error,
        "took_s": divided.took_s,
        "items": divided.timed.items,
        "groups": [_group_fields(run, divided, number) for number in range(len(divided.timed.compiled.groups))],
        "resources": [
            {
                "chip": one.chip,
                "resource": one.resource.name.lower(),
                "utilisation": one.utilisation,
                "bytes_per_input": one.moved_bytes,
            }
            for one in report.resources
        ],
    }


def _group_fields(run: PipelineRun, divided: PartitionRun, number: int) -> dict[str, Any]:
    used = divided.partition.used[number]
    parts = divided.partition.parts_of(used)
    group, load = divided.timed.compiled.groups[number], divided.timed.report.groups[number]
    workload = sum((part.workload for part in parts), Workload())
    return {
        "group": used,
        "chip": group.chip,
        "cores": [core.core for core in group.cores],
        "stage": group.stage,
        "nodes": _names(run, divided.partition.nodes_of(used)),
        "parts": [_names(run, part.nodes) for part in parts],
        "compute_slots": workload.compute_macs,
        "dynamic_in_bytes": workload.dynamic_in_bytes,
        "static_bytes": workload.static_bytes,
        "routing_bytes": workload.routing_bytes,
        "score": None if divided.method == "balanced" else math.fsum(part.load for part in parts),
        "storage_bytes": divided.partition.groups[used].storage_bytes,
        "ddr_bytes": group.ddr_bytes,
        "resident_bytes": group.resident_bytes,
        "predicted_s": divided.placed.predicted_ps[used] / PS_PER_S,
        "own_s": load.own_ps / PS_PER_S,
        "load": load.load,
        "bound_by": load.by,
        "received_bytes": group.received_bytes,
        "slots": group.depth,
    }


def _names(run: PipelineRun, nodes: Sequence[int]) -> list[str]:
    return [run.nodes.graph.nodes[node].name for node in nodes]


def pipeline_tables(run: PipelineRun) -> list[Part]:
    """Return one row per partition below that of one core, then the groups and the facts of each partition."""
    rows = [_single(run), *map(_summary, run.runs)]
    parts: list[Part] = [Table(("partition", "cores", *_SUMMARY), rows)]
    if not run.fits_one_chip:
        needed, held = byte_size(run.one_core_bytes), byte_size(run.machine.ddr.bytes)
        parts.append((("one core", f"timed with {needed} of DDR, which the network needs; a chip has {held}"),))
    for each in run.runs:
        parts.append(f"{_title(each)}, bound by {each.timed.report.bound}")
        parts.append(Table(_GROUPS, list(_group_rows(run, each)), left=2))
        parts.append(tuple(_facts(each)))
    return parts


def _facts(divided: PartitionRun) -> Iterator[tuple[str, str]]:
    for event in divided.partition.events:
        yield "event", event
    used = [f"{one} {one.utilisation:.0%}" for one in divided.timed.report.resources]
    yield "shared", ", ".join(used) or "nothing"
    if divided.max_rel_error is not None:
        yield "values", f"largest difference from ONNX Runtime {divided.max_rel_error:.2g} of the largest output"
    yield "took", f"compilation and timing {divided.took_s:.2f} s ({divided.timed.items:,} items for an input)"


_SUMMARY = ("latency ms", "interval ms", "inputs/s", "speedup", "efficiency", "imbalance")
_GROUPS = (
    *("group", "cores", "parts", "nodes", "from", "predicted ms", "own ms", "load", "received", "DDR"),
    *("resident", "works on"),
)


def _single(run: PipelineRun) -> tuple[str, ...]:
    seconds = run.single_core_ps / PS_PER_S
    return ("one core", "1", milliseconds(seconds), milliseconds(seconds), f"{1 / seconds:,.1f}", "1.00", "100%", "")


def _summary(divided: PartitionRun) -> tuple[str, ...]:
    report = divided.timed.report
    return (
        _title(divided),
        str(report.cores),
        milliseconds(report.latency_ps / PS_PER_S),
        milliseconds(report.interval_ps / PS_PER_S),
        f"{report.inputs_per_s:,.1f}",
        f"{report.speedup:.2f}",
        f"{report.efficiency:.0%}",
        f"{report.imbalance:.2f}",
    )


def _title(divided: PartitionRun) -> str:
    return {"balanced": "balanced", "score": "by score", "absolute": "absolute"}[divided.method]


def _group_rows(run: PipelineRun, divided: PartitionRun) -> Iterator[tuple[str, ...]]:
    for number, used in enumerate(divided.partition.used):
        found, load = divided.timed.compiled.groups[number], divided.timed.report.groups[number]
        nodes = divided.partition.nodes_of(used)
        yield (
            str(used),
            name_cores(divided.partition.groups[used]),
            str(len(divided.partition.parts_of(used))),
            str(len(nodes)),
            printable(run.nodes.graph.nodes[nodes[0]].name, _WIDTH),
            milliseconds(divided.placed.predicted_ps[used] / PS_PER_S),
            milliseconds(load.own_ps / PS_PER_S),
            f"{load.load:.0%}",
            byte_size(found.received_bytes),
            byte_size(found.ddr_bytes),
            byte_size(found.resident_bytes),
            load.by,
        )
