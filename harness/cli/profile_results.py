"""Run the requests of `harness profile`, and show progress, results and plans."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.cli.terminal.output import error_fields, note, print_json, print_line, print_table
from harness.cli.terminal.progress import show_jobs, show_progress, stop_on_interrupt
from harness.errors import HarnessError, gravest

if TYPE_CHECKING:
    from harness.fleet.profile_outcome import ProfileOutcome
    from harness.measure.campaign_forecast import Pace
    from harness.measure.profiling import DryRun, ProfileResult
    from harness.measure.progress import Observer
    from harness.measure.request import ProfileRequest
    from harness.space.space_profile import SpaceProfile
    from harness.workspace import Workspace

_STOPPED = {
    "target": "randomly drawn layers are predicted within the target",
    "count": "as many layers as --count allows were measured",
    "budget": "another round would not fit into --budget",
    "exhausted": "the space has no more layers",
}


def show_profiles(
    requests: Sequence[ProfileRequest], workspace: Workspace, json: bool, *, wait_s: float | None = None
) -> None:
    """Run one request per device and show the results.

    Raises the failure of the device; of several failures, the one with the gravest exit code. Refused networks count as
    a failure after the others have their results.
    """
    from harness.fleet.profile import profile_devices

    outcomes = []
    with _observers(requests) as observer, stop_on_interrupt() as stop:
        for outcome in profile_devices(requests, workspace, observer=observer, stop=stop, wait_s=wait_s):
            outcomes.append(outcome)
            if len(requests) > 1:
                failure, attempts = outcome.failure, outcome.attempts
                ending = f"done after {attempts} attempts" if attempts > 1 else "done"
                note(f"{outcome.request.device}: {f'{failure.what}. {failure.why}' if failure else ending}")
    devices = [request.device for request in requests]
    outcomes.sort(key=lambda outcome: devices.index(outcome.request.device))
    if len(requests) > 1:
        _show_all(outcomes, json)
    elif outcomes[0].space is not None:
        _show_space(outcomes[0].space, json)
    elif outcomes[0].result is not None:
        _show_result(outcomes[0], outcomes[0].result, json)
    errors = [error for outcome in outcomes if (error := _error_of(outcome)) is not None]
    code = gravest(error.exit_code for error in errors)
    for error in errors:
        if error.exit_code == code:
            raise error


def _error_of(outcome: ProfileOutcome) -> HarnessError | None:
    """The error that an outcome ends the command with; None if all networks were measured."""
    from harness.measure.request import reference_networks
    from harness.network.network_list import refusals_error

    if outcome.failure is not None:
        return outcome.failure.error()
    result = outcome.result
    if result is None or not result.refused_networks:
        return None
    asked = outcome.request.models or reference_networks()
    return refusals_error(result.refused_networks, len(asked) - len(result.refused_networks))


@contextlib.contextmanager
def _observers(requests: Sequence[ProfileRequest]) -> Iterator[Callable[[ProfileRequest], Observer]]:
    """Yield a function that returns a request's observer; with several requests, its line names only the device."""
    if len(requests) == 1:
        with show_progress(f"profile {requests[0].device}") as only:
            yield lambda _: only
    else:
        with show_jobs() as begin:
            lines = {one.device: begin(one.device, f"profile {one.device}") for one in requests}
            yield lambda request: lines[request.device]


def _show_all(outcomes: Sequence[ProfileOutcome], json: bool) -> None:
    done = [outcome.result for outcome in outcomes if outcome.result is not None]
    if json:
        print_json(
            devices=[_facts(outcome) for outcome in outcomes],
            campaign=[result.campaign for result in done],
            probes=sum(result.probes for result in done),
            samples=sum(result.samples for result in done),
            device_seconds=sum(result.device_seconds for result in done),
            wall_seconds=max((result.wall_seconds for result in done), default=0.0),
        )
        return
    header = ("device", "campaign", "probes", "samples", "on the device s", "in total s", "attempts", "note")
    print_table(header, [_row(outcome) for outcome in outcomes], left=1)


def _facts(outcome: ProfileOutcome) -> dict[str, Any]:
    result, failure = outcome.result, outcome.failure
    return {
        **{"device": outcome.request.device, "attempts": outcome.attempts, "golden_s": outcome.golden_s},
        **(asdict(result) if result else {}),
        **({"error": error_fields(failure)} if failure else {}),
    }


def _row(outcome: ProfileOutcome) -> tuple[str, ...]:
    result, failure, attempts = outcome.result, outcome.failure, str(outcome.attempts)
    if result is None:
        error = "" if failure is None else f"{failure.kind}: {failure.what}"
        return (outcome.request.device, "", "", "", "", "", attempts, error)
    counts = (str(result.campaign), str(result.probes), f"{result.samples:,}")
    seconds = (f"{result.device_seconds:.2f}", f"{result.wall_seconds:.1f}")
    return (result.device, *counts, *seconds, attempts, "resumed" if result.resumed else "")


def _show_result(outcome: ProfileOutcome, result: ProfileResult, json: bool) -> None:
    if json:
        print_json(**asdict(result), golden_s=outcome.golden_s)
        return
    print_line(
        f"{result.device}  campaign {result.campaign}{' (resumed)' if result.resumed else ''}"
        f"  {result.probes} probes  {result.samples:,} samples, {result.median_runs:g} runs per probe (median)"
        f"  {result.device_seconds:.2f} s on the device  {result.wall_seconds:.1f} s in total"
    )
    if result.refused:
        note(f"The device refused {result.refused} probes; `harness lut build` omits their layers: {result.refusal}")
    if result.unsettled:
        note(f"{result.unsettled} probes did not reach the target interval; their entries have a wider one")
    if result.machine is not None:
        print_line(f"machine: {result.machine.text}")
    note(f"Next: harness lut build --device {result.device}{outcome.request.variant.options()}")


def _show_space(profiled: SpaceProfile, json: bool) -> None:
    if json:
        print_json(**asdict(profiled))
        return
    header = ("round", "measured", "refused", "error of predictions before")
    rows = [(str(one.number), str(one.measured), str(one.refused), _error(one.error)) for one in profiled.result.rounds]
    print_table(header, rows)
    resumed = f" ({profiled.resumed} rounds resumed)" if profiled.resumed else ""
    print_line(
        f"{profiled.device}  {profiled.result.measured} layers{resumed}  {profiled.device_seconds:.2f} s on the device"
        f"  {profiled.wall_seconds:.1f} s in total"
    )
    note(f"Stopped: {_STOPPED[profiled.result.stopped]}")
    note(f"Next: harness lut build --device {profiled.device}")


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def show_dry_run(request: ProfileRequest, workspace: Workspace, json: bool, *, wait_s: float | None = None) -> None:
    """Show the plan of a request and its time."""
    from harness.measure.busy_device import BusyWait
    from harness.measure.profiling import dry_run

    with show_progress(f"plan {request.device}") as observe, stop_on_interrupt() as stop:
        planned = dry_run(request, workspace, BusyWait(wait_s=wait_s or 0.0, observe=observe, stop=stop))
    fewest, most = request.policy.runs or request.policy.min_rounds, request.policy.runs or request.policy.max_rounds
    bound_s = request.policy.budget_s or math.inf
    seconds = [min(bound_s, planned.round_seconds * rounds) for rounds in (fewest, most)]
    networks = [
        {"name": cut.network.name, "layers": len(cut.layers), "free": len(cut.network.free)} for cut in planned.networks
    ]
    plan, probes = planned.plan, len(planned.plan.probes)
    wall_s = None if planned.pace is None else planned.pace.wall_s(probes)
    if json:
        counts = {"probes": probes, "layers": len(plan.layers), "batches": len(plan.batches)}
        samples = [fewest * probes, most * probes]
        refused = [error_fields(one) for one in planned.refused_networks]
        print_json(
            plan=plan.id,
            **counts,
            networks=networks,
            samples=samples,
            device_seconds=seconds,
            wall_seconds=wall_s,
            pace=None if planned.pace is None else asdict(planned.pace),
            refused_networks=refused,
        )
    else:
        _show_plan(planned, networks)
        print_line(f"about {seconds[0]:.2g} to {seconds[1]:.2g} s on the device for {fewest} to {most} rounds")
        print_line(_wall(planned.pace, wall_s))
    if planned.refused_networks:
        from harness.network.network_list import refusals_error

        raise refusals_error(planned.refused_networks, len(networks))


def _wall(pace: Pace | None, wall_s: float | None) -> str:
    if pace is None or wall_s is None:
        return "in total: not known, because no campaign with this backend is in the journal"
    campaigns = "campaign" if pace.campaigns == 1 else f"{pace.campaigns} campaigns"
    return (
        f"about {wall_s:.0f} s in total: {pace.per_probe_s:.2g} s per probe and {pace.around_s:.2g} s for golden probes"
        f" and fusion, as in the last {campaigns}"
    )


def _show_plan(planned: DryRun, networks: Sequence[Mapping[str, Any]]) -> None:
    plan = planned.plan
    print_table(("network", "layers", "nodes that take no time"), [list(map(str, one.values())) for one in networks])
    print_line(f"{len(plan.layers)} different layers, {len(plan.probes)} probes in {len(plan.batches)} batches")
    roles = Counter(probe.role for probe in plan.probes.values())
    print_table(("probes", "count"), [(role, str(count)) for role, count in roles.items()])
