"""Run a packed job in the workspace of the worker that received it, and return its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import get_worker

from harness.device.inventory import find_device, load_inventory
from harness.errors import EngineError, HarnessError
from harness.fleet.cluster.dask_worker import PLUGIN, LabPlugin
from harness.fleet.cluster.job_archive import WorkerJob, unpack, write_outcome
from harness.fleet.execution import run_request
from harness.fleet.profile_outcome import Failure, ProfileOutcome
from harness.fleet.store import now
from harness.measure.extract import extract
from harness.measure.journal import Journal
from harness.measure.merge import hold_out, merge
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace


def run_here(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Run a packed job on this worker; returns its outcome, and everything that the journal here holds of the job."""
    started = now()
    try:
        worker = get_worker()
        lab = worker.plugins.get(PLUGIN)
        if not isinstance(lab, LabPlugin):
            step = "Start the workers with `harness worker SCHEDULER`"
            raise EngineError("The Dask worker was not started by harness", next_step=step)
        workspace = Workspace(Path(lab.root))
        job = unpack(payload, workspace.journal.parent / "cluster")
        request = job.request
        device = find_device(load_inventory(workspace.devices), request.device)
        with lab.running(str(worker.get_current_task())) as stop, lab.board(device.board, stop):
            _prepare(workspace, job)
            outcome = run_request(request, workspace, stop=stop, wait=job.wait)
        outcome = replace(outcome, request=ProfileRequest(request.device, name=request.name))  # no paths of this host
        return {"outcome": write_outcome(outcome), "extract": extract(workspace.journal, request.name)}
    except HarnessError as error:
        failed = ProfileOutcome(ProfileRequest(""), started, now(), 0, failure=Failure.of(error))
        return {"outcome": write_outcome(failed), "extract": b""}


def _prepare(workspace: Workspace, job: WorkerJob) -> None:
    """Record in the journal here what the controller's journal holds of the job."""
    request = job.request
    with Journal(workspace.journal) as journal:
        hold_out(journal, job.held_out, job=request.name, device=request.device)
        if job.earlier is not None:
            merge(journal, job.earlier.extract, job=job.earlier.job, device=request.device)
