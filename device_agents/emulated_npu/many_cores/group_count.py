"""Chooses how many core groups a network runs on fastest: more groups share memories, and may wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from device_agents.emulated_npu.arithmetic import PS_PER_S
from device_agents.emulated_npu.emulator_errors import DoesNotFit
from device_agents.emulated_npu.many_cores.core_groups import form_groups
from device_agents.emulated_npu.many_cores.stage_balancing import PartitionTask, TimedPartition, balance_stages
from device_agents.emulated_npu.partition.groups import CoreGroup, Fabric

_PS_PER_MS = 1e9


@dataclass(frozen=True)
class ChosenGroups:
    """The groups that were fastest, the task on them, and the network as it runs on them."""

    groups: tuple[CoreGroup, ...]
    task: PartitionTask
    placed: TimedPartition

    @property
    def interval_ps(self) -> float:
        """The time from one input to the next."""
        return self.placed.timed.report.interval_ps


def choose_group_count(
    task_on: Callable[[Sequence[CoreGroup]], PartitionTask], fabric: Fabric, most: int
) -> ChosenGroups:
    """Return the fastest of several numbers of groups up to `most`, of one core each, with the balanced partition.

    All numbers run whose computation alone, evenly divided, would be faster than the best run. A number that runs for
    some `most` also runs for a larger one, so a larger `most` never gives a longer interval. Raises DoesNotFit if the
    network fits on no number of groups.
    """
    best: ChosenGroups | None = None
    problem: DoesNotFit | None = None
    runs = []
    for count in reversed(group_counts(most)):
        groups = form_groups(fabric, str(count))
        task = task_on(groups)
        works = [node.workload.compute_macs * PS_PER_S / fabric.fastest_macs_per_s for node in task.nodes.graph.nodes]
        if count > len(works) or (best is not None and max(sum(works) / count, *works) > best.interval_ps):
            continue
        try:
            found = ChosenGroups(groups, task, balance_stages(task, groups))
        except DoesNotFit as error:
            problem = error
            continue
        runs.append(f"{count}: {found.interval_ps / _PS_PER_MS:.4g}")
        if best is None or found.interval_ps <= best.interval_ps:
            best = found
    if best is None:
        raise problem or DoesNotFit("no core group is possible", f"there are {most} cores")
    event = f"{len(best.groups)} of at most {most} groups; ms an input by groups that ran: {', '.join(runs)}"
    partition = replace(best.placed.partition, events=(*best.placed.partition.events, event))
    return replace(best, placed=replace(best.placed, partition=partition))


def group_counts(most: int) -> list[int]:
    """Return the numbers of groups to try: 1, 2, 3, 4, 6, 8, 12, 16, and so on up to `most`."""
    found = [1]
    while found[-1] < most:
        found.append(found[-1] + (1 << max(0, found[-1].bit_length() - 2)))
    return [count for count in found if count <= most]
