"""Probes that a session sends before their turn, to a real worker on this machine and behind a real sshd."""

import getpass
from pathlib import Path
from typing import Any

import pytest
from load_requests import request_of
from nullbench import build_network

from device_agents.messages import MOST_PUTS, LoadRequest
from harness.device.inventory import Device, load_inventory
from harness.device.session import Visit, open_session
from harness.errors import BackendError
from harness.network.assemble import AssembledModel, assemble_network
from harness.network.model_references import load_network


@pytest.fixture(params=["cpu01", "board"])
def device(request: Any, tmp_path: Path) -> Device:
    """A device with ONNX Runtime, without and with SSH."""
    settings = tmp_path / "devices.toml"
    if request.param == "board":
        sshd = request.getfixturevalue("sshd")
        settings.write_text(
            f'[devices.board]\ntransport = "ssh"\nhost = "127.0.0.1"\nport = {sshd.port}\n'
            f'user = "{getpass.getuser()}"\nidentity = "{sshd.identity}"\nknown_hosts = "{sshd.known_hosts}"\n'
            "[devices.board.options]\nthreads = 1\n"
        )
    return load_inventory(settings)[request.param]


@pytest.fixture
def model(tmp_path: Path) -> AssembledModel:
    """A small network as it is sent."""
    return assemble_network(load_network(str(build_network(tmp_path / "chain.onnx"))))


def test_only_what_is_put_counts(device: Device, model: AssembledModel) -> None:
    """A refusal is raised by the `put` of its own probe, one that nobody puts by none, and other requests go on."""
    wrong = LoadRequest("wrong", b"not a model", [], [], 4)
    with open_session(device) as session:
        session.acquire()
        waiting = [request_of(model, "a"), wrong, request_of(model, "b"), LoadRequest("other", b"no", [], [], 4)]
        assert all(map(session.put_ahead, waiting))
        assert session.sent_ahead == ("a", "wrong", "b", "other")
        assert session.put(waiting[0]) is None
        with pytest.raises(BackendError):
            session.put(wrong)
        assert session.put(request_of(model, "c")) is None  # b and the other one are not waited for by anyone
        assert session.sent_ahead == ()
        assert session.put_ahead(request_of(model, "d"))
        assert [len(series) for series, _ in session.run([Visit(name, 0, 1) for name in "abc"])] == [3]
        assert session.put_ahead(request_of(model, "e"))
        session.drop(["a", "b", "c"])
        assert session.put_ahead(request_of(model, "f"))
        assert not session.status()["busy"]


def test_a_device_takes_so_many_at_once(device: Device, model: AssembledModel) -> None:
    """Beyond the number that the agent holds, and for long models, `put` sends the probe in its turn."""
    long = LoadRequest("long", b"x" * (1 << 20), [], [], 4)
    with open_session(device) as session:
        session.acquire()
        assert not session.put_ahead(long)
        requests = [request_of(model, f"p{number}") for number in range(MOST_PUTS + 2)]
        taken = [session.put_ahead(one) for one in requests]
        assert taken == [True] * MOST_PUTS + [False] * 2
        for one in requests:
            session.put(one)
        assert sum(len(series) for series, _ in session.run([Visit(one.probe, 0, 1) for one in requests])) == len(
            requests
        )
