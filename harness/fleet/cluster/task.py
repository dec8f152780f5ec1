"""The task that a Dask scheduler imports; it must load quickly."""

from __future__ import annotations

from typing import Any

from harness.fleet.cluster.access import VERSIONS


def run_task(payload: dict[str, Any]) -> dict[str, Any]:
    """Run a packed job on a worker; for another version, return only the versions here."""
    if tuple(payload["versions"]) != VERSIONS:
        return {"versions": VERSIONS}
    from harness.fleet.cluster.dask_worker import run_here

    return {"versions": VERSIONS, **run_here(payload)}
