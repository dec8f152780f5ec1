"""A job on the worker that it was sent to: unpacked, run in the worker's own workspace, and sent back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import get_worker

from harness.device.inventory import find_device, load_inventory
from harness.errors import EngineError, HarnessError
from harness.fleet.cluster.job_archive import Order, unpack, write_outcome
from harness.fleet.cluster.worker import PLUGIN, LabPlugin
from harness.fleet.execution import run_job
from harness.fleet.job import Failure, Job, JobOutcome
from harness.fleet.store import now
from harness.measure.extract import extract
from harness.measure.journal import Journal
from harness.measure.merge import hold_out, merge
from harness.workspace import Workspace


def run_here(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Runs a packed job on this worker: its outcome, and all that its journal holds of the job."""
    started = now()
    try:
        worker = get_worker()
        lab = worker.plugins.get(PLUGIN)
        if not isinstance(lab, LabPlugin):
            step = "Start workers of a lab by `harness worker SCHEDULER`"
            raise EngineError("A Dask worker that is none of a lab offers a device", next_step=step)
        place = Workspace(Path(lab.root))
        order = unpack(payload, place.journal.parent / "cluster")
        job = order.job
        device = find_device(load_inventory(place.devices), job.device)
        with lab.running(str(worker.get_current_task())) as stop, lab.board(device.board, stop):
            _prepare(place, order)
            outcome = run_job(job, place, stop=stop, patience=order.patience)
        # A path of this host is nobody's business.
        outcome = replace(outcome, job=Job(job.device, name=job.name))
        return {"outcome": write_outcome(outcome), "extract": extract(place.journal, job.name)}
    except HarnessError as error:
        failed = JobOutcome(Job(""), started, now(), 0, failure=Failure.of(error))
        return {"outcome": write_outcome(failed), "extract": b""}


def _prepare(place: Workspace, order: Order) -> None:
    """Lets this host's journal know what the controller's knows of the job."""
    job = order.job
    with Journal(place.journal) as journal:
        hold_out(journal, order.held_out, job=job.name, device=job.device)
        if order.earlier is not None:
            merge(journal, order.earlier.extract, job=order.earlier.job, device=job.device)
