"""Campaigns with real faults of device, link, disk or controller.

To run all faults, with those that take minutes, and write one JSON object per fault:

    HARNESS_FAULT_TABLE=faults.jsonl python -m pytest -m "long or not long" tests/system/faults
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import FaultProxy
from fault_rig import Rig
from nullbench import Bench, build_network
from sshd_server import Sshd


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the campaign without faults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_RUNTIME_FOLDER", str(tmp_path_factory.mktemp("leases")))
        rig = Rig(_bench(tmp_path_factory.mktemp("undisturbed")), {}, patch)
        rig.run_session()
        outcome = rig.outcome()
    (visits,) = outcome["visits"]
    assert len(visits) == rig.samples().total() > 200
    return outcome


def _bench(folder: Path) -> Bench:
    bench = Bench(folder)
    build_network(bench.model, widths=(8, 16))
    return bench


@pytest.fixture
def rig(tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A device on this machine."""
    return Rig(_bench(tmp_path / "workspace"), undisturbed, monkeypatch)


@pytest.fixture
def proxy(sshd: Sshd) -> Iterator[FaultProxy]:
    """A link to the sshd that can break."""
    with FaultProxy(("127.0.0.1", sshd.port)) as link:
        sshd.trust(link.port)
        yield link


@pytest.fixture
def remote(rig: Rig, sshd: Sshd, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A device behind SSH and the proxy; closing a dead link waits shorter than usual."""
    monkeypatch.setattr("harness.device.ssh.ssh_connection.CLOSE_S", 0.3)
    rig.put_behind(sshd, proxy.port)
    return rig
