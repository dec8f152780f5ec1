"""What `harness profile --space` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli.output import note, print_table

if TYPE_CHECKING:
    from harness.space.profiling import SpaceProfile

_STOPPED = {
    "target": "layers at random are predicted within the target",
    "count": "all layers that --count allows were measured",
    "budget": "another round would not fit into --budget",
    "exhausted": "the space has no more layers",
}


def show_space(found: SpaceProfile) -> None:
    """The rounds of a space, and why it stopped."""
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
