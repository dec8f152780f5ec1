"""The controller that is killed, and resumes: one job on one device, in a process of its own."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.device import session
from harness.fleet.execution import run_request
from harness.measure.policy import RepeatPolicy
from harness.measure.request import ProfileRequest
from harness.workspace import Workspace

MODEL, TOLD = "small.onnx", "told.json"
POLICY = RepeatPolicy(runs=4)


@dataclass(frozen=True)
class Told:
    """How a sitting ended: the class of its failure, or "" where its campaign is complete."""

    failure: str
    words: str


def run_session(folder: Path, device: str, job: str, deadlines: session.Deadlines | None) -> None:
    """Runs the job once, with these deadlines in place of the usual ones, and writes how it ended."""
    with (folder / "output.txt").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if deadlines is not None:
        session.Deadlines = lambda: deadlines  # type: ignore[assignment,misc]
    wanted = ProfileRequest(device=device, models=(str(folder / MODEL),), policy=POLICY, name=job)
    outcome = run_request(wanted, Workspace(folder), stop=threading.Event())
    failure = outcome.failure
    told = Told("", "") if failure is None else Told(failure.kind, f"{failure.what}. {failure.why}")
    (folder / TOLD).write_text(json.dumps(asdict(told)), encoding="utf-8")


def told_in(folder: Path) -> Told | None:
    """How the last sitting ended; None where it did not live to tell."""
    path = folder / TOLD
    return Told(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
