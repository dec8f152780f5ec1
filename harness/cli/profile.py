"""`harness profile`: measure probes of every layer on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.output import print_json, print_table
from harness.cli.progress import show_progress
from harness.errors import UsageError
from harness.probe.auxiliary import AuxiliaryChoice, AuxiliaryKind, chosen_kind
from harness.workspace import Workspace, find_workspace

if TYPE_CHECKING:
    from harness.measure.policy import RepeatPolicy
    from harness.measure.profiling import DryRun


def profile(
    models: options.OptionalModels = None,
    device: options.DeviceNames = None,
    group: options.Groups = None,
    everything: options.Everything = False,
    aux: Annotated[
        AuxiliaryChoice,
        typer.Option("--aux", help="Auxiliary layer behind each layer; auto selects the device's default."),
    ] = "auto",
    runs: Annotated[
        str, typer.Option("--runs", help="Samples per probe, or auto: until the interval is within 1 %.")
    ] = "auto",
    budget: options.Budget = None,
    space: Annotated[
        str | None,
        typer.Option("--space", help="Measure layers of a space in place of networks: a TOML file, or builtin:vision."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", min=20, max=10_000, help="With --space: at most so many layers (default 500)."),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            "--target",
            min=0.0,
            max=100.0,
            help="With --space: stop once layers at random are predicted within so many percent (median, default 5).",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of the random order.")] = 0,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Ask the device how it fuses, print the plan and its time; measure nothing."),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew instead of resuming.")] = False,
    dim: options.Dims = None,
    workspace: options.WorkspaceFolder = None,
    json: options.Json = False,
) -> None:
    """Measure probes of every layer of networks, or of a space of layers, on devices; the same command resumes.

    Several devices are measured side by side, each board by one job at a time. Before and after, a golden probe tells
    whether a device is as it was.

    Example: harness profile --device cpu01 builtin:resnet50 model.onnx
    """
    place = find_workspace(workspace)
    dims, run_count, budget_s = options.parse_dims(dim), options.parse_runs(runs), options.parse_budget(budget)
    if space is None and (count is not None or target is not None):
        raise UsageError("--count and --target go with --space", next_step="Give --space FILE, or leave them out")
    if space is not None and (models or dims or dry_run):
        why = "Its layers are chosen as results come in" if dry_run else "It says all sizes itself"
        raise UsageError("--space goes without networks, --dim and --dry-run", why=why)

    from harness.device.inventory import load_inventory
    from harness.fleet.selection import select
    from harness.measure.policy import RepeatPolicy

    policy = RepeatPolicy(runs=run_count, budget_s=budget_s)
    kind = chosen_kind(aux)
    names = options.parse_names("cpu01" if device is None and not group and not everything else device)
    devices = select(load_inventory(place.devices), names=names, groups=group or (), everything=everything)
    if dry_run:
        if len(devices) > 1:
            raise UsageError("--dry-run goes with one device", next_step="Name one by --device")
        _dry_run(devices[0].name, models or (), place, kind, policy, dims, json)
        return

    from harness.cli.fleet import profile_devices
    from harness.fleet.job import Job
    from harness.space.planner import DEFAULT_COUNT, DEFAULT_TARGET

    wanted = Job(
        "", tuple(models or ()), space, count=DEFAULT_COUNT if count is None else count,
        target=DEFAULT_TARGET if target is None else target / 100, policy=policy, auxiliary=kind, dims=dims, seed=seed,
        fresh=fresh,
    )  # fmt: skip
    profile_devices([replace(wanted, device=one.name) for one in devices], place, json)


def _dry_run(
    device: str, models: Sequence[str], place: Workspace, auxiliary: AuxiliaryKind | None, policy: RepeatPolicy,
    dims: dict[str, int], json: bool,
) -> None:  # fmt: skip
    from harness.measure import profiling

    with show_progress(device) as observe:
        plan = profiling.dry_run(
            models, device=device, workspace=place, auxiliary=auxiliary, policy=policy, dims=dims, observe=observe
        )
    _show_plan(plan, json)


def _show_plan(dry: DryRun, json: bool) -> None:
    plan, policy = dry.plan, dry.policy
    fewest = policy.runs or policy.min_rounds
    most = policy.runs or policy.max_rounds
    bound_s = policy.budget_s or math.inf
    seconds = (min(bound_s, dry.round_seconds * fewest), min(bound_s, dry.round_seconds * most))
    networks = [
        {"name": cut.network.name, "layers": len(cut.layers), "free": len(cut.network.free)} for cut in dry.networks
    ]
    if json:
        print_json(
            plan=plan.id, probes=len(plan.probes), layers=len(plan.layers), batches=len(plan.batches),
            networks=networks, samples=[fewest * len(plan.probes), most * len(plan.probes)],
            device_seconds=list(seconds),
        )  # fmt: skip
        return
    print_table(
        ("network", "layers", "nodes that cost nothing"),
        [(str(one["name"]), str(one["layers"]), str(one["free"])) for one in networks],
    )
    roles: dict[str, int] = {}
    for probe in plan.probes.values():
        roles[probe.role] = roles.get(probe.role, 0) + 1
    print(f"{len(plan.layers)} different layers, {len(plan.probes)} probes in {len(plan.batches)} batches")
    print_table(("probes", "count"), [(role, str(count)) for role, count in roles.items()])
    print(f"about {seconds[0]:.2g} to {seconds[1]:.2g} s on the device for {fewest} to {most} rounds")
