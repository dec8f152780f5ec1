"""The controller that is killed and that resumes: one job on one device, in a process of its own."""

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

MODEL, ENDING = "small.onnx", "ending.json"
POLICY = RepeatPolicy(runs=4)


@dataclass(frozen=True)
class Ending:
    """How a run ended: the class and the text of its failure, both empty if its campaign is complete."""

    failure: str
    words: str


def run_job(folder: Path, device: str, job: str, deadlines: session.Deadlines | None) -> None:
    """Run the job once, with these deadlines instead of the defaults, and write how it ended."""
    with (folder / "output.txt").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if deadlines is not None:
        session.Deadlines = lambda: deadlines  # type: ignore[assignment,misc]
    request = ProfileRequest(device=device, models=(str(folder / MODEL),), policy=POLICY, name=job)
    failure = run_request(request, Workspace(folder), stop=threading.Event()).failure
    ending = Ending("", "") if failure is None else Ending(failure.kind, f"{failure.what}. {failure.why}")
    (folder / ENDING).write_text(json.dumps(asdict(ending)), encoding="utf-8")


def read_ending(folder: Path) -> Ending | None:
    """Return how the last run ended, or None if it was killed before it could write that."""
    path = folder / ENDING
    return Ending(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
