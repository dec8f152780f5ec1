"""Chooses how many core groups a network runs on fastest: more groups share memories, and may wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.many_cores.core_groups import form_groups
from device_agents.emulated_npu.many_cores.stage_balancing import (
    PartitionTask,
    TimedPartition,
    balance_stages,
    predicted_interval_ps,
)
from device_agents.emulated_npu.partition.groups import CoreGroup, Fabric

_PREDICTION_ERROR = 0.25
"""Numbers of groups whose predicted interval is longer than the best run by more than this are not run."""
_PS_PER_MS = 1e9


@dataclass(frozen=True)
class ChosenGroups:
    """The groups that were fastest, the task on them, and the network as it runs on them."""

    groups: tuple[CoreGroup, ...]
    task: PartitionTask
    placed: TimedPartition


def choose_group_count(
    task_on: Callable[[Sequence[CoreGroup]], PartitionTask], fabric: Fabric, most: int
) -> ChosenGroups:
    """Return the fastest of 1 to `most` groups of one core each, with the balanced partition.

    Every number of groups is predicted. They run in the order of their predictions, as long as a prediction may be
    better than the best run. Raises DoesNotFit if the network fits on no number of groups.
    """
    predicted: list[tuple[float, int, tuple[CoreGroup, ...], PartitionTask]] = []
    problem: DoesNotFit | None = None
    for count in range(1, most + 1):
        groups = form_groups(fabric, str(count))
        task = task_on(groups)
        if count > len(task.nodes.layers):
            break
        try:
            predicted.append((predicted_interval_ps(task, groups), count, groups, task))
        except DoesNotFit as error:
            problem = error
    best: ChosenGroups | None = None
    runs = []
    for expected_ps, count, groups, task in sorted(predicted, key=lambda one: one[:2]):
        if best is not None and expected_ps > (1 + _PREDICTION_ERROR) * _interval_ps(best):
            break
        try:
            found = ChosenGroups(groups, task, balance_stages(task, groups))
        except DoesNotFit as error:
            problem = error
            continue
        runs.append(f"{count}: {_interval_ps(found) / _PS_PER_MS:.4g}")
        if best is None or _interval_ps(found) < _interval_ps(best):
            best = found
    if best is None:
        raise problem or DoesNotFit("no core group is possible", f"there are {most} cores")
    event = f"{len(best.groups)} of at most {most} groups; ms an input by groups that ran: {', '.join(runs)}"
    partition = replace(best.placed.partition, events=(*best.placed.partition.events, event))
    return replace(best, placed=replace(best.placed, partition=partition))


def _interval_ps(chosen: ChosenGroups) -> float:
    return chosen.placed.timed.report.interval_ps
