"""A network on core groups as the fields of a JSON object and as text tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from device_agents.emulated_npu.partition.groups import name_cores
from harness.npu.pipeline_run import PartitionRun, PipelineRun
from harness.npu.tables import Facts, Part, Table
from harness.text import byte_size, milliseconds, printable

_PS_PER_S = 1e12
_WIDTH = 28


def json_fields(run: PipelineRun) -> dict[str, Any]:
    """Return the fields of `npu pipeline --json`; times are those of the emulated machine, except `took_s`.

    `compute_slots`: multiply-adds that the matrix units could compute in the time that the nodes keep the units busy.
    """
    machine = run.source.compiled.machine
    return {
        "network": run.source.model.name,
        "machine": machine.name,
        "chips": machine.cores.chips,
        "cores_per_chip": machine.cores.per_chip,
        "single_core_s": run.single_core_ps / _PS_PER_S,
        "nodes": len(run.nodes.layers),
        "hardware_layers": len(run.source.compiled.graph.layers),
        "partitions": [_partition_fields(run, each) for each in run.runs],
    }


def _partition_fields(run: PipelineRun, each: PartitionRun) -> dict[str, Any]:
    report = each.timed.report
    return {
        "method": each.method,
        "threshold": each.partition.threshold,
        "steps": [
            {
                "node": run.nodes.graph.nodes[step.node].name,
                "group": step.group,
                "score": step.score,
                "closes": step.closes,
            }
            for step in each.partition.steps
        ],
        "events": list(each.partition.events),
        "cores": report.cores,
        "inputs": report.inputs,
        "latency_s": report.latency_ps / _PS_PER_S,
        "interval_s": report.interval_ps / _PS_PER_S,
        "inputs_per_s": report.inputs_per_s,
        "speedup": report.speedup,
        "efficiency": report.efficiency,
        "imbalance": report.imbalance,
        "predicted_interval_s": max(each.placed.predicted_ps) / _PS_PER_S,
        "bound": report.bound,
        "bound_by": report.bound_by,
        "max_rel_error": each.max_rel_error,
        "took_s": each.took_s,
        "items": each.timed.items,
        "groups": [_group_fields(run, each, number) for number in range(len(each.timed.compiled.groups))],
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


def _group_fields(run: PipelineRun, each: PartitionRun, number: int) -> dict[str, Any]:
    part = each.partition.sub_structures[number]
    group, load = each.timed.compiled.groups[number], each.timed.report.groups[number]
    return {
        "group": part.group,
        "chip": group.chip,
        "cores": [core.core for core in group.cores],
        "stage": group.stage,
        "nodes": [run.nodes.graph.nodes[node].name for node in part.nodes],
        "compute_slots": part.workload.compute_macs,
        "dynamic_in_bytes": part.workload.dynamic_in_bytes,
        "static_bytes": part.workload.static_bytes,
        "routing_bytes": part.workload.routing_bytes,
        "score": None if each.method == "balanced" else part.load,
        "predicted_s": each.placed.predicted_ps[number] / _PS_PER_S,
        "own_s": load.own_ps / _PS_PER_S,
        "load": load.load,
        "bound_by": load.by,
        "received_bytes": group.received_bytes,
        "slots": group.depth,
    }


def pipeline_tables(run: PipelineRun) -> list[Part]:
    """Return one row per partition below that of one core, then the groups and the facts of each partition."""
    parts: list[Part] = [
        Table(("", "cores", *_SUMMARY), [_single(run), *(_summary(each) for each in run.runs)]),
    ]
    for each in run.runs:
        parts.append(f"{_title(each)}, bound by {each.timed.report.bound}")
        parts.append(Table(_GROUPS, list(_group_rows(run, each)), left=2))
        parts.append(Facts(tuple(_facts(each))))
    return parts


def _facts(each: PartitionRun) -> Iterator[tuple[str, str]]:
    for event in each.partition.events:
        yield "event", event
    used = [f"{one} {one.utilisation:.0%}" for one in each.timed.report.resources]
    yield "shared", ", ".join(used) or "nothing"
    if each.max_rel_error is not None:
        yield "values", f"largest difference from ONNX Runtime {each.max_rel_error:.2g} of the largest output"
    yield "took", f"compilation and timing {each.took_s:.2f} s ({each.timed.items:,} items for an input)"


_SUMMARY = ("latency ms", "interval ms", "inputs/s", "speedup", "efficiency", "imbalance")
_GROUPS = ("group", "cores", "nodes", "from", "predicted ms", "own ms", "load", "received", "works on")


def _single(run: PipelineRun) -> tuple[str, ...]:
    seconds = run.single_core_ps / _PS_PER_S
    return ("one core", "1", milliseconds(seconds), milliseconds(seconds), f"{1 / seconds:,.1f}", "1.00", "100%", "")


def _summary(each: PartitionRun) -> tuple[str, ...]:
    report = each.timed.report
    return (
        _title(each),
        str(report.cores),
        milliseconds(report.latency_ps / _PS_PER_S),
        milliseconds(report.interval_ps / _PS_PER_S),
        f"{report.inputs_per_s:,.1f}",
        f"{report.speedup:.2f}",
        f"{report.efficiency:.0%}",
        f"{report.imbalance:.2f}",
    )


def _title(each: PartitionRun) -> str:
    return {"balanced": "balanced", "score": "by score", "absolute": "absolute"}[each.method]


def _group_rows(run: PipelineRun, each: PartitionRun) -> Iterator[tuple[str, ...]]:
    for number, part in enumerate(each.partition.sub_structures):
        found, load = each.timed.compiled.groups[number], each.timed.report.groups[number]
        yield (
            str(part.group),
            name_cores(each.partition.groups[part.group]),
            str(len(part.nodes)),
            printable(run.nodes.graph.nodes[part.nodes[0]].name, _WIDTH),
            milliseconds(each.placed.predicted_ps[number] / _PS_PER_S),
            milliseconds(load.own_ps / _PS_PER_S),
            f"{load.load:.0%}",
            byte_size(found.received_bytes),
            load.by,
        )
