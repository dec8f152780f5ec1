"""What a Dask scheduler has to know of harness: the name of a task, and nothing that is slow to import."""

from __future__ import annotations

from typing import Any

from harness.fleet.cluster.access import VERSIONS


def run_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Runs a packed job on a worker; of another version than ours, it only says which one is here."""
    if tuple(payload["versions"]) != VERSIONS:
        return {"versions": VERSIONS}
    from harness.fleet.cluster.run import run_here

    return {"versions": VERSIONS, **run_here(payload)}
