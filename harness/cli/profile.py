"""`harness profile`: measure probes of every layer on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import arguments
from harness.cli.options.option_groups import Heading, spread
from harness.cli.profile_results import show_dry_run, show_profiles
from harness.errors import UsageError
from harness.probe.auxiliary import AUXILIARY_HELP, AuxiliaryChoice, chosen_kind
from harness.settings import BUILTIN_SPACES, DEFAULT_SPACE, SPACE_COUNT, SPACE_TARGET
from harness.workspace import find_workspace

if TYPE_CHECKING:
    from harness.measure.policy import RepeatPolicy
    from harness.measure.request import SpaceRequest


@dataclass(frozen=True)
class Measuring:
    """How probes are measured, and when they have enough samples."""

    aux: Annotated[AuxiliaryChoice, typer.Option(help=AUXILIARY_HELP)] = "auto"
    runs: Annotated[
        str, typer.Option(metavar="N|auto", help="Samples per probe, or auto: until the interval is within 1 %.")
    ] = "auto"
    budget: arguments.Budget = None
    time_limit: arguments.TimeLimit = None
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Seed of the random order.")] = 0
    fresh: Annotated[bool, typer.Option("--fresh", help="Start a new campaign instead of resuming.")] = False

    @property
    def policy(self) -> RepeatPolicy:
        """Return when probes have enough samples; raises UsageError."""
        from harness.measure.policy import RepeatPolicy

        return RepeatPolicy(
            runs=arguments.parse_runs(self.runs),
            budget_s=arguments.parse_budget(self.budget),
            wall_s=arguments.parse_budget(self.time_limit, "--time-limit"),
        )


@dataclass(frozen=True)
class SpaceOptions:
    """A space of layers, and when enough of them are measured."""

    space: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.toml",
            help=f"Measure layers of a space: a TOML file, or {DEFAULT_SPACE}, the default without networks.",
        ),
    ] = None
    count: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=20, max=10_000, help=f"Maximum number of layers of a space (default {SPACE_COUNT})."
        ),
    ] = None
    target: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            min=0.0,
            max=100.0,
            help="Stop when the median error of predictions, each made before its layer is measured, is at most this"
            f" percentage (default {100 * SPACE_TARGET:g}).",
        ),
    ] = None

    def request(self, reference: str | None) -> SpaceRequest | None:
        """Return what to measure of a space, None without one; raises UsageError."""
        if reference is None:
            if self.count is not None or self.target is not None:
                raise UsageError("--count and --target only apply with --space", next_step="Omit them, or the networks")
            return None
        from harness.measure.request import SpaceRequest

        target_share = SPACE_TARGET if self.target is None else self.target / 100
        return SpaceRequest(reference, SPACE_COUNT if self.count is None else self.count, target_share)


@spread
def profile(
    models: Annotated[list[str] | None, arguments.models_argument(" Default: layers of builtin:common.")] = None,
    *,
    devices: arguments.DeviceChoice,
    measuring: Measuring,
    layers: Annotated[SpaceOptions, Heading("Options for layers of a space")],
    reading: arguments.ReadingOptions,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Read from the device how it fuses operators, print the plan and its time; measure nothing.",
        ),
    ] = False,
    directory: arguments.WorkspaceFolder = None,
    json: arguments.Json = False,
) -> None:
    """Measure the layers of networks, or of a space, on devices.

    Without networks, up to 500 layers of many kinds are measured; a table of them predicts networks that were never
    measured. A space given in place of networks is measured as with --space.

    If the command is interrupted, the same command resumes it. Several devices are measured side by side, one job per
    board at a time. A golden probe before and after each campaign checks that the device is in its usual state.
    If a network cannot be used, or the device refuses it, it is listed, the others are measured, and the exit code is
    3.

    Example: harness profile --device cpu01 builtin:resnet50 model.onnx
    """
    workspace, wait_s = find_workspace(directory), arguments.parse_wait(devices.wait)
    space = layers.space
    if space is None and models and len(models) == 1 and _is_space(models[0]):
        space, models = models[0], None
    if space is not None or not models:
        _check_space(models or (), reading, dry_run)
    chosen = layers.request(space if models else space or DEFAULT_SPACE)

    from harness.measure.request import ProfileRequest

    used = devices.select(workspace)
    if dry_run and len(used) > 1:
        raise UsageError("--dry-run needs exactly one device", next_step="Name one with --device")
    request = ProfileRequest(
        device=used[0].name,
        models=tuple(models or ()),
        space=chosen,
        policy=measuring.policy,
        auxiliary=chosen_kind(measuring.aux),
        seed=measuring.seed,
        fresh=measuring.fresh,
        **reading.keywords,
    )
    for one in used:
        request.variant.device(one)  # a backend without threads is an error before anything is measured
    if dry_run:
        show_dry_run(request, workspace, json, wait_s=wait_s)
    else:
        show_profiles([replace(request, device=one.name) for one in used], workspace, json, wait_s=wait_s)


def _is_space(reference: str) -> bool:
    return reference in BUILTIN_SPACES or reference.endswith(".toml")


def _check_space(models: Sequence[str], reading: arguments.ReadingOptions, dry_run: bool) -> None:
    """Raise UsageError for options that layers of a space exclude."""
    if models or reading.dims or reading.batch or dry_run:
        why = "A space chooses its layers while measuring" if dry_run else "A space file already sets all sizes"
        step = "" if models else f"Name networks; without any, layers of {DEFAULT_SPACE} are measured"
        what = "--space cannot be combined with networks, --dim, --batch or --dry-run"
        raise UsageError(what, why=why, next_step=step)
