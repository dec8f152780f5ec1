"""`harness profile --space`: measure layers of a space, chosen so that few serve all of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from harness.cli.output import note, print_json, print_table
from harness.cli.progress import show_progress, stop_on_interrupt

if TYPE_CHECKING:
    from harness.measure.policy import RepeatPolicy
    from harness.probe.auxiliary import AuxiliaryKind
    from harness.space.planner import RoundResult
    from harness.space.profiling import SpaceProfile
    from harness.workspace import Workspace

_STOPPED = {
    "target": "layers at random are predicted within the target",
    "count": "all layers that --count allows were measured",
    "budget": "another round would not fit into --budget",
    "exhausted": "the space has no more layers",
}


def profile_space(
    space: str,
    *,
    device: str,
    workspace: Workspace,
    auxiliary: AuxiliaryKind | None,
    policy: RepeatPolicy,
    count: int | None,
    target: float | None,
    seed: int,
    fresh: bool,
    json: bool,
) -> None:
    """Measures and shows; `target` in percent."""
    from harness.space import planner, profiling

    with show_progress(device) as observe, stop_on_interrupt() as stop:
        found = profiling.profile_space(
            space, device=device, workspace=workspace, auxiliary=auxiliary, policy=policy,
            count=planner.DEFAULT_COUNT if count is None else count,
            target=planner.DEFAULT_TARGET if target is None else target / 100,
            seed=seed, fresh=fresh, observe=observe, told=_tell, stop=stop,
        )  # fmt: skip
    if json:
        print_json(**asdict(found))
    else:
        _show(found)


def _tell(result: RoundResult) -> None:
    note(f"round {result.number}: {result.measured} layers; predicted before: at random {_error(result.control_error)}")


def _show(found: SpaceProfile) -> None:
    header = ("round", "measured", "refused", "error at random", "error where chosen")
    rows = [
        (str(one.number), str(one.measured), str(one.refused), _error(one.control_error), _error(one.chosen_error))
        for one in found.result.rounds
    ]
    print_table(header, rows)
    resumed = f" ({found.resumed} rounds known from before)" if found.resumed else ""
    print(
        f"{found.device}  {found.result.measured} layers{resumed}  {found.device_seconds:.2f} s on the device"
        f"  {found.wall_seconds:.1f} s in all"
    )
    note(f"Stopped: {_STOPPED[found.result.stopped]}")
    note(f"Next: harness lut build --device {found.device}")


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
