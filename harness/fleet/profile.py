"""`harness.profile`: measure networks, or layers of a space, on a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace

from harness.arguments import check_fields, checked, fields_of, instance, spread
from harness.fleet.execution import NO_WAIT, WaitPolicy, run_request
from harness.fleet.local_engine import LocalEngine
from harness.fleet.profile_outcome import ProfileOutcome
from harness.measure.busy_device import BusyWait
from harness.measure.calls import DeviceCall, Reading
from harness.measure.policy import RepeatPolicy
from harness.measure.profiling import ProfileResult
from harness.measure.progress import Observer, ignore
from harness.measure.request import ProfileRequest
from harness.network.model_references import Models, model_references
from harness.probe.auxiliary import AUTO, AuxiliaryChoice, chosen_kind
from harness.workspace import AnyWorkspace, Workspace, as_workspace

_POLL_S = 2.0
"""The pause between two looks at a busy device that a person waits for."""


@dataclass(frozen=True)
class ProfileCall(Reading, DeviceCall):
    """The arguments of `profile`."""

    models: Models = ()
    _: KW_ONLY
    device: str | None = None
    policy: RepeatPolicy | None = None
    auxiliary: AuxiliaryChoice | None = AUTO
    seed: int = 0
    fresh: bool = False

    def __post_init__(self) -> None:
        check_fields(self, policy=instance(RepeatPolicy))


@spread(ProfileCall)
def profile(call: ProfileCall) -> ProfileResult:
    """Measure every layer of networks on a device; the same call resumes what was interrupted.

    `models` is a path, `builtin:NAME`, an `onnx.ModelProto`, or a list of these; empty selects the reference networks.
    `batch` sets the leading dimension of all inputs, `threads` the number of threads in place of the inventory's;
    tables for them are built with the same values. A device in use is waited for up to `wait_s` seconds. Networks that
    harness or the device refuses are skipped and listed in the result; with `strict`, or if all are refused, the
    refusal is raised. Raises the errors of `harness.errors`; the samples taken until then are kept.
    """
    workspace = as_workspace(call.workspace)
    request = ProfileRequest(
        device=call.device or workspace.default_device,
        models=model_references(call.models),
        policy=call.policy or RepeatPolicy(),
        auxiliary=chosen_kind(call.auxiliary),
        seed=call.seed,
        fresh=call.fresh,
        **fields_of(Reading, call),
    )
    result = profile_request(request, workspace=workspace, **fields_of(BusyWait, call)).result
    assert result is not None  # noqa: S101 - an outcome without failure has one
    return result


@checked(request=instance(ProfileRequest))
def profile_request(
    request: ProfileRequest,
    *,
    workspace: AnyWorkspace = None,
    wait_s: float = 0.0,
    observe: Observer = ignore,
    stop: threading.Event | None = None,
) -> ProfileOutcome:
    """Run a request and return its outcome; raises the errors of `harness.errors`."""
    wait, stop = _patience(wait_s), stop or threading.Event()
    outcome = run_request(request, as_workspace(workspace), stop=stop, wait=wait, observe=observe)
    if outcome.failure is not None:
        raise outcome.failure.error()
    return outcome


def profile_devices(
    requests: Sequence[ProfileRequest],
    workspace: Workspace,
    *,
    observer: Callable[[ProfileRequest], Observer],
    stop: threading.Event,
    wait_s: float | None = None,
) -> Iterator[ProfileOutcome]:
    """Yield the outcomes of requests for several devices, measured side by side.

    A busy device is waited for up to `wait_s` seconds. By default that is five minutes for several requests, and no
    time for a single one, which runs in the calling thread.
    """
    if len(requests) == 1:
        wait = _patience(wait_s or 0.0)
        yield run_request(requests[0], workspace, stop=stop, wait=wait, observe=observer(requests[0]))
    else:
        wait = WaitPolicy() if wait_s is None else WaitPolicy(busy_s=wait_s)
        yield from LocalEngine(workspace, wait, observer=observer).run(requests, stop)


def _patience(wait_s: float) -> WaitPolicy:
    return replace(NO_WAIT, busy_s=wait_s, pause_s=_POLL_S)
