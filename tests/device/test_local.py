"""Sessions with the real local agent, and the diagnosis of devices."""

import io
import json
import os
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until

from device_agents.lease import Lease, holder_of
from harness.device.bundle import build_bundle
from harness.device.diagnose import Check, check_device
from harness.device.inventory import BUILT_IN, Device, load_inventory
from harness.device.local import LocalConnection, start_here
from harness.device.session import AgentSession, Deadlines, LoadRequest, Visit, open_session
from harness.errors import LeaseLost

NULL = BUILT_IN["null01"].model_copy(update={"exclusive": True})  # leased like a real device
INPUT = {"name": "x", "shape": [1000], "dtype": "float32", "distribution": "normal", "seed": 1}
PROBE = LoadRequest("p", b"model", (), (INPUT,), 4)


def _agent(session: AgentSession) -> int:
    connection = session._link._connection
    assert isinstance(connection, LocalConnection)
    return connection.pid


def test_known_latency_comes_back() -> None:
    """The null device reports what its formula says."""
    with open_session(NULL) as session:
        session.acquire("me")
        assert session.put(PROBE) is None
        ((series, state),) = list(session.run([Visit("p", 0, 2)]))
        session.drop(["p"])
    assert [sample.device_ns for sample in series[0].samples] == [100_401, 100_401]
    assert state["disk_free_bytes"] > 0


def test_closing_ends_the_agent_and_frees_the_lease() -> None:
    """After the session no agent runs and no lease is held."""
    with open_session(NULL) as session:
        session.acquire("me")
        agent = _agent(session)
        assert holder_of("null01") == "me" and session.status()["holder"] == "me"
    assert holder_of("null01") is None
    with pytest.raises(ProcessLookupError):
        os.kill(agent, 0)


def test_cancel_ends_a_long_run() -> None:
    """A run that would last minutes stops after its current visit."""
    with open_session(NULL) as session:
        session.acquire("me")
        session.put(PROBE)
        count = 0
        for series, _ in session.run([Visit("p", 100_000, 1)] * 5000):
            count += len(series)
            session.cancel()
        assert 0 < count < 5000
        session.drop(["p"])


def test_controller_that_returns_too_late_learns_that_its_lease_is_lost() -> None:
    """A lease that was not renewed is reported as lost, although the agent has ended."""
    device_deadlines = Deadlines(lease_ttl_s=0.3, keep_s=0.0)
    with AgentSession(start_here(), NULL, device_deadlines) as session:
        session.greet()
        session.acquire("me")
        os.waitid(os.P_PID, _agent(session), os.WEXITED | os.WNOWAIT)
        assert holder_of("null01") is None
        with pytest.raises(LeaseLost):
            session.put(PROBE)


def test_heartbeats_keep_the_lease_while_the_controller_is_busy_elsewhere(runtime_folder: Path) -> None:
    """Between requests the session extends its lease by itself."""

    def until_s() -> float:
        return float(json.loads((runtime_folder / "null01.lease").read_text())["until_s"])

    with AgentSession(start_here(), NULL, Deadlines(lease_ttl_s=8.0)) as session:
        session.greet()
        session.acquire("me")
        first_s = until_s()
        wait_until(lambda: until_s() > first_s, "a heartbeat")
        session.put(PROBE)


def test_probe_of_many_megabytes_arrives() -> None:
    """A probe larger than pipes and sockets hold is sent without blocking."""
    with open_session(NULL) as session:
        session.acquire("me")
        assert session.put(LoadRequest("big", os.urandom(1 << 20) * 20, (), (INPUT,), 4)) is None


def test_files_of_the_current_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent imports nothing from the folder in which the command runs."""
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    open_session(NULL).close()


def test_bundle_is_the_same_every_time() -> None:
    """The agent's hash depends on its sources alone."""
    bundle = build_bundle()
    assert bundle == build_bundle()
    with zipfile.ZipFile(io.BytesIO(bundle.content)) as archive:
        names = archive.namelist()
    assert "device_agents/agent.py" in names and "__main__.py" in names
    assert "device_agents/emulated_npu/machine/presets/edge.toml" in names
    assert not any(name.startswith("device_agents/emulated_npu/reports") for name in names)
    assert not any("__pycache__" in name or name.startswith("harness") for name in names)


def _by_name(checks: tuple[Check, ...]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_healthy_device_passes_its_checks() -> None:
    """Agent, backend, clock, disk and lease of the null device are fine."""
    checks = _by_name(check_device(NULL))
    assert all(checks[name].ok for name in ("reachable", "agent", "backend", "clock", "disk", "lease"))
    assert {"governor", "load"} < set(checks)


def test_check_of_a_busy_device_names_the_holder_and_starts_nothing() -> None:
    """A check reports the holder and does not disturb its measurement."""
    lease = Lease("null01")
    lease.acquire("eve@elsewhere")
    try:
        checks = _by_name(check_device(NULL))
    finally:
        lease.release()
    assert checks["backend"].ok is None
    assert checks["lease"].ok is None and "eve@elsewhere" in checks["lease"].found


def test_check_reports_a_wrong_option() -> None:
    """A device whose backend refuses its options fails that check, with a remedy."""
    device = Device(name="x", backend="null", options={"colour": "red"}, resource="x")
    check = _by_name(check_device(device))["backend"]
    assert check.ok is False and "colour" in check.found and check.remedy


def test_check_over_ssh(sshd: Any) -> None:
    """A device behind SSH passes, its host key and identity included."""
    checks = _by_name(check_device(sshd.device()))
    assert all(checks[name].ok for name in ("reachable", "host key", "authentication", "agent", "backend"))


@pytest.mark.parametrize("fault", ["host key", "authentication", "reachable", "agent", "configuration"])
def test_check_names_the_step_that_fails_and_how_to_mend_it(sshd: Any, fault: str) -> None:
    """Each broken link is one failed check, with a next step; the steps before it passed."""
    device = sshd.device()
    if fault == "host key":
        sshd.known_hosts.unlink()
    elif fault == "authentication":
        sshd.authorized_keys.write_text("")
    elif fault == "reachable":
        os.kill(sshd.pid, signal.SIGTERM)
        os.waitid(os.P_PID, sshd.pid, os.WEXITED | os.WNOWAIT)
    elif fault == "agent":
        sshd.force("/nonexistent/agent")
    else:
        sshd.identity.unlink()
    failed = [check for check in check_device(device) if check.ok is False]
    assert [check.name for check in failed] == [fault]
    assert failed[0].remedy
    assert "devices check" not in failed[0].remedy


def test_a_key_that_others_can_read_fails_the_check_of_its_device_alone(tmp_path: Path) -> None:
    """The inventory has all devices; the check of the one with this key fails, with the command that corrects it."""
    key, path = tmp_path / "key", tmp_path / "devices.toml"
    key.touch(mode=0o640)
    path.write_text('[devices.board]\ntransport = "ssh"\nhost = "127.0.0.1"\nuser = "lab"\nidentity = "key"\n')
    inventory = load_inventory(path)
    assert all(check.ok is not False for check in check_device(inventory["null01"]))
    (failed,) = [check for check in check_device(inventory["board"]) if check.ok is False]
    assert (failed.name, failed.remedy) == ("configuration", f"chmod 600 {key}")
