"""`harness profile`: measure probes of every layer on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import arguments
from harness.cli.options.option_groups import spread
from harness.errors import UsageError
from harness.probe.auxiliary import AUXILIARY_HELP, AuxiliaryChoice, chosen_kind
from harness.settings import BUILTIN_SPACES, DEFAULT_SPACE, SPACE_COUNT, SPACE_TARGET
from harness.workspace import find_workspace

if TYPE_CHECKING:
    from harness.measure.policy import RepeatPolicy
    from harness.measure.request import SpaceRequest

Auxiliary = Annotated[AuxiliaryChoice, typer.Option("--aux", help=AUXILIARY_HELP)]
Runs = Annotated[
    str, typer.Option("--runs", metavar="N|auto", help="Samples per probe, or auto: until the interval is within 1 %.")
]
SpaceFile = Annotated[
    str | None,
    typer.Option(
        "--space",
        metavar="FILE.toml",
        help=f"Measure layers of a space: a TOML file, or {DEFAULT_SPACE}, the default without networks.",
    ),
]
Count = Annotated[
    int | None,
    typer.Option(
        "--count", metavar="N", min=20, max=10_000, help=f"Maximum number of layers of a space (default {SPACE_COUNT})."
    ),
]
Target = Annotated[
    float | None,
    typer.Option(
        "--target",
        metavar="PERCENT",
        min=0.0,
        max=100.0,
        help="Stop when layers of a space are predicted, before they are measured, within this percentage in the median"
        f" (default {100 * SPACE_TARGET:g}).",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**63 - 1, help="Seed of the random order.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Read from the device how it fuses operators, print the plan and its time; measure nothing."
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start a new campaign instead of resuming.")]


# Each parameter is an option of the command; its length is theirs.
@spread
def profile(
    models: Annotated[list[str] | None, arguments.models_argument(" Default: layers of builtin:common.")] = None,
    device: arguments.DeviceNames = None,
    group: arguments.Groups = None,
    everything: arguments.Everything = False,
    aux: Auxiliary = "auto",
    runs: Runs = "auto",
    budget: arguments.Budget = None,
    time_limit: arguments.TimeLimit = None,
    space: SpaceFile = None,
    count: Count = None,
    target: Target = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    fresh: Fresh = False,
    wait: arguments.Wait = None,
    *,
    reading: arguments.Reading,
    workspace: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Measure the layers of networks, or of a space, on devices.

    Without networks, at most 500 layers of many kinds are measured, from which a table predicts other networks. A space
    given in place of networks is measured as with --space.

    If the command is interrupted, the same command resumes it. Several devices are measured side by side, one job per
    board at a time. A golden probe before and after each campaign checks that the device is in its usual state.
    Networks that cannot be used, or that the device refuses, are listed; the others are measured, and the exit code is
    3.

    Example: harness profile --device cpu01 builtin:resnet50 model.onnx
    """
    found, wait_s = find_workspace(workspace), arguments.parse_wait(wait)
    policy = _policy(runs, budget, time_limit)
    if space is None and models and len(models) == 1 and _is_space(models[0]):
        space, models = models[0], None
    if space is not None or not models:
        _check_space(models or (), reading, dry_run)
    chosen = _space(space if models else space or DEFAULT_SPACE, count, target)

    from harness.cli.profile_output import show_dry_run, show_profiles
    from harness.device.inventory import load_inventory
    from harness.fleet.device_selection import select
    from harness.measure.request import ProfileRequest

    names = arguments.parse_names(found.default_device if device is None and not group and not everything else device)
    devices = select(load_inventory(found.devices), names=names, groups=group or (), everything=everything)
    if dry_run and len(devices) > 1:
        raise UsageError("--dry-run needs exactly one device", next_step="Name one with --device")
    request = ProfileRequest(
        device=devices[0].name,
        models=tuple(models or ()),
        space=chosen,
        policy=policy,
        auxiliary=chosen_kind(aux),
        dims=reading.dims,
        seed=seed,
        fresh=fresh,
        strict=reading.strict,
        batch=reading.batch,
        threads=reading.threads,
    )
    for one in devices:
        request.variant.device(one)  # a backend without threads is an error before anything is measured
    if dry_run:
        show_dry_run(request, found, json, wait_s=wait_s)
    else:
        show_profiles([replace(request, device=one.name) for one in devices], found, json, wait_s=wait_s)


def _is_space(reference: str) -> bool:
    return reference in BUILTIN_SPACES or reference.endswith(".toml")


def _policy(runs: str, budget: str | None, time_limit: str | None) -> RepeatPolicy:
    from harness.measure.policy import RepeatPolicy

    return RepeatPolicy(
        runs=arguments.parse_runs(runs),
        budget_s=arguments.parse_budget(budget),
        wall_s=arguments.parse_budget(time_limit, "--time-limit"),
    )


def _check_space(models: Sequence[str], reading: arguments.Reading, dry_run: bool) -> None:
    """Raise UsageError for options that layers of a space exclude."""
    if models or reading.dims or reading.batch or dry_run:
        why = "A space chooses its layers while measuring" if dry_run else "A space file already sets all sizes"
        step = "" if models else f"Name networks; without any, layers of {DEFAULT_SPACE} are measured"
        what = "--space cannot be combined with networks, --dim, --batch or --dry-run"
        raise UsageError(what, why=why, next_step=step)


def _space(reference: str | None, count: int | None, target: float | None) -> SpaceRequest | None:
    if reference is None:
        if count is not None or target is not None:
            raise UsageError("--count and --target only apply with --space", next_step="Omit them, or the networks")
        return None
    from harness.measure.request import SpaceRequest

    target_share = SPACE_TARGET if target is None else target / 100
    return SpaceRequest(reference, SPACE_COUNT if count is None else count, target_share)
