"""The agent as a real process with the null backend."""

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from device_agents import AGENT_VERSION, wire
from device_agents.lease import holder_of

Start = Callable[[], Any]  # the fixture's AgentProcess
REPOSITORY = Path(__file__).resolve().parents[2]


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_hello_reports_version_backend_and_fingerprint(start_agent: Start) -> None:
    """The answer to hello holds what a table needs to know about the device."""
    fields = start_agent().greet().fields
    assert (fields["major"], fields["agent_version"]) == (wire.PROTOCOL_MAJOR, AGENT_VERSION)
    assert (fields["backend"], fields["clock"], fields["reveals"]) == ("null", "device", ["unfused"])
    assert fields["fingerprint"]["runtime"] == "null"


def test_hello_without_backend_starts_no_worker(start_agent: Start) -> None:
    """A hello without backend starts no worker and disturbs no measurement."""
    agent = start_agent()
    assert agent.greet(None).fields["clock"] is None
    status = agent.ask("status", resource="bench").fields
    assert status["holder"] is None and status["busy"] is False and status["state"]["disk_free_bytes"] > 0
    agent.lease()
    assert agent.put().fields["code"] == "bad-request"


def test_unknown_major_version_is_refused(start_agent: Start) -> None:
    """Another major version is an error of code version, and reports the agent's own version."""
    frame = start_agent().ask("hello", major=99, minor=0, backend="null", options={})
    assert (frame.type, frame.fields["code"], frame.fields["major"]) == ("error", "version", wire.PROTOCOL_MAJOR)


def test_resource_that_is_a_path_is_refused_at_hello(start_agent: Start) -> None:
    """The name of a resource never leads out of the folder of locks, and does not end the agent either."""
    agent = start_agent()
    fields = {"major": wire.PROTOCOL_MAJOR, "minor": 0, "backend": "null", "options": {}}
    answer = agent.ask("hello", resource="../board", **fields)
    assert (answer.type, answer.fields["code"]) == ("error", "bad-request")
    assert agent.greet().type == "hello"


def test_unknown_backend_is_refused(start_agent: Start) -> None:
    """A backend that the agent lacks is an error of code backend."""
    assert start_agent().greet("abacus").fields["code"] == "backend"


def test_unknown_option_is_refused(start_agent: Start) -> None:
    """An option that the backend lacks is an error of code backend."""
    assert start_agent().greet("null", colour="red").fields["code"] == "backend"


def test_run_ends_with_count_and_hash_of_what_was_sent(start_agent: Start) -> None:
    """The end record confirms every sample."""
    agent = start_agent().ready()
    request = agent.send("run", token=agent.token, visits=[["p", 1, 3], ["p", 0, 2]])
    digest, series = hashlib.sha256(), []
    while (frame := agent.receive()).type == "samples":
        assert frame.id == request
        digest.update(frame.payload)
        series += json.loads(frame.payload)["series"]
    assert (frame.type, frame.fields) == ("end", {"count": 5, "hash": digest.hexdigest(), "cancelled": False})
    assert [(item["visit"], len(item["samples"])) for item in series] == [(0, 3), (1, 2)]


def test_cancel_stops_after_the_current_visit(start_agent: Start) -> None:
    """A cancelled run ends with a record that confirms what was measured until then."""
    agent = start_agent().ready()
    request = agent.start_long_run()
    assert agent.receive().type == "samples"
    agent.send("cancel", id=request, token=agent.token)
    while (frame := agent.receive()).type == "samples":
        pass
    assert frame.type == "end" and frame.fields["cancelled"] is True and 0 < frame.fields["count"] < 1000
    assert agent.ask("drop", token=agent.token, probes=["p"]).type == "drop"


def test_second_request_while_busy_is_refused_and_the_run_goes_on(start_agent: Start) -> None:
    """One request at a time; heartbeats and status are answered beside it."""
    agent = start_agent().ready()
    run = agent.start_long_run()
    second = agent.send("drop", token=agent.token, probes=["p"])
    beat = agent.send("heartbeat", token=agent.token)
    status = agent.send("status")
    answers = {}
    while len(answers) < 3:
        frame = agent.receive()
        if frame.id != run:
            answers[frame.id] = frame
    assert answers[second].fields["code"] == "bad-request"
    assert answers[beat].fields == {"busy": True}
    assert answers[status].fields["busy"] is True


@pytest.mark.parametrize("type", ["put", "drop", "run", "heartbeat", "renew", "release"])
def test_wrong_token_is_lease_lost(start_agent: Start, type: str) -> None:
    """Nothing that needs the lease happens without its token."""
    agent = start_agent()
    agent.greet(None)
    agent.lease()
    for fields in ({}, {"token": 1}, {"token": True}, {"token": "x"}):
        frame = agent.ask(type, **fields)
        assert (frame.type, frame.fields["code"]) == ("error", "lease-lost"), fields
    assert agent.ask("renew", token=agent.token).type == "renew"


def test_second_controller_gets_the_name_of_the_first(start_agent: Start) -> None:
    """Two controllers never hold one resource, and the second gets the name of the first."""
    first, second = start_agent(), start_agent()
    first.greet(None)
    second.greet(None)
    assert first.lease(holder="alice@lab").type == "lease"
    refused = second.lease()
    assert (refused.fields["code"], refused.fields["holder"]) == ("busy", "alice@lab")
    assert first.ask("release", token=first.token).type == "release"
    assert second.lease().fields["token"] > first.token


def test_a_virtual_device_serves_sessions_that_share_it(start_agent: Start) -> None:
    """Sessions that share a virtual device lease it at the same time and load probes; real devices refuse it."""
    version = {"major": wire.PROTOCOL_MAJOR, "minor": wire.PROTOCOL_MINOR, "resource": "bench", "shared": True}
    shared = [start_agent(), start_agent()]
    for agent in shared:
        assert agent.ask("hello", backend="null", options={}, **version).type == "hello"
    tokens = [agent.lease().fields["token"] for agent in shared]
    assert tokens[0] < tokens[1]
    assert [agent.put().type for agent in shared] == ["put", "put"]
    refused = start_agent().ask("hello", backend="onnxruntime", options={"threads": 1}, **version)
    assert (refused.fields["code"], "cannot be shared" in refused.fields["message"]) == ("bad-request", True)


def test_agent_whose_lock_file_is_removed_ends(start_agent: Start, runtime_folder: Path) -> None:
    """After the lock file is gone a second agent gets the lease, and the first measures no further beside it."""
    first, second = start_agent().ready(), start_agent()
    second.greet()
    (runtime_folder / "bench.lease").unlink()
    assert second.lease().fields["token"] > first.token
    first.send("heartbeat", token=first.token)
    frame = first.receive()
    assert frame is not None and frame.fields["code"] == "lease-lost" and "was removed" in frame.fields["message"]
    assert first.process.wait(300) == 3


def test_old_token_is_refused_after_release(start_agent: Start) -> None:
    """A released token is refused, also after the lease was taken again."""
    agent = start_agent().ready()
    old = agent.token
    agent.ask("release", token=old)
    assert agent.ask("run", token=old, visits=[["p", 0, 1]]).fields["code"] == "lease-lost"
    agent.lease()
    assert agent.ask("run", token=old, visits=[["p", 0, 1]]).fields["code"] == "lease-lost"


def test_killed_worker_is_reported_with_its_signal(start_agent: Start) -> None:
    """The death of the worker is an error frame, and the agent repeats it for later requests."""
    agent = start_agent().ready()
    request = agent.start_long_run()
    assert agent.receive().type == "samples"
    os.kill(agent.worker, signal.SIGKILL)
    while (frame := agent.receive()).type == "samples":
        pass
    assert (frame.type, frame.id, frame.fields["code"]) == ("error", request, "worker-died")
    assert frame.fields["ending"] == "signal SIGKILL"
    assert agent.put().fields["code"] == "worker-died"
    assert agent.end() == 0


def test_worker_that_dies_idle_is_reported_at_the_next_request(start_agent: Start) -> None:
    """The death of an idle worker is reported at the next request."""
    agent = start_agent().ready()
    os.kill(agent.worker, signal.SIGTERM)
    while (frame := agent.put()).type == "put":
        pass
    assert (frame.fields["code"], frame.fields["ending"]) == ("worker-died", "signal SIGTERM")


def test_end_of_input_frees_the_lock_and_leaves_no_process(start_agent: Start) -> None:
    """A host that disconnects during a run leaves the device free and no process or file."""
    agent = start_agent().ready()
    agent.start_long_run()
    assert agent.receive().type == "samples"
    worker = agent.worker
    folder = Path(f"/proc/{worker}/cwd").resolve()
    assert holder_of("bench") == "the test"
    assert agent.end() == 0
    assert holder_of("bench") is None and _gone(worker) and not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_agent_cleans_up(start_agent: Start, number: int) -> None:
    """SIGTERM and SIGHUP end agent and worker and free the lock."""
    agent = start_agent().ready()
    worker = agent.worker
    agent.process.send_signal(number)
    assert agent.process.wait(300) == 128 + number
    assert holder_of("bench") is None and _gone(worker)


def test_folder_of_a_killed_agent_is_removed_by_the_next(start_agent: Start) -> None:
    """The next agent removes the folders that a killed agent left."""
    killed, alive = start_agent(), start_agent()
    killed.greet()
    alive.greet()
    left = Path(f"/proc/{killed.worker}/cwd").resolve()
    used = Path(f"/proc/{alive.worker}/cwd").resolve()
    killed.process.kill()
    killed.process.wait()
    assert left.exists()
    start_agent().greet()
    assert used.exists() and not left.exists()


def test_lease_that_is_not_renewed_ends_the_agent(start_agent: Start) -> None:
    """A silent host loses the device: the worker is killed, the lock is free, the reason is reported."""
    agent = start_agent().ready(ttl_s=2.5)
    worker = agent.worker
    frame = agent.receive()
    assert (frame.type, frame.fields["code"]) == ("error", "lease-lost")
    assert agent.receive() is None
    assert agent.process.wait(300) == 3
    assert holder_of("bench") is None and _gone(worker)


def test_host_that_does_not_read_cannot_keep_the_device(start_agent: Start) -> None:
    """Answers that the host does not read block nothing: the lease still runs out."""
    agent = start_agent().ready(ttl_s=2.5)
    for _ in range(3):
        agent.send("run", token=agent.token, visits=[["p", 0, 60_000]])
    assert agent.process.wait(300) == 3
    assert holder_of("bench") is None


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, struct.pack(">I", 2) + b"[]"])
def test_malformed_frames_end_the_agent_with_an_error(start_agent: Start, data: bytes) -> None:
    """Malformed bytes are an error of code protocol and a non-zero exit."""
    agent = start_agent()
    agent.greet(None)
    agent.stdin.write(data)
    frame = agent.receive()
    assert (frame.type, frame.fields["code"]) == ("error", "protocol")
    assert agent.process.wait(300) == 2


@pytest.mark.parametrize(
    ("type", "fields"),
    [
        ("lease", {}),
        ("lease", {"resource": "../x", "ttl_s": 5, "holder": "me"}),
        ("lease", {"resource": "x", "ttl_s": True, "holder": "me"}),
        ("lease", {"resource": "x", "ttl_s": 1e9, "holder": "me"}),
        ("lease", {"resource": 3, "ttl_s": 5, "holder": "me"}),
        ("status", {"resource": "../x"}),
        ("hello", {"major": wire.PROTOCOL_MAJOR, "backend": "null"}),
    ],
)
def test_bad_requests_are_refused_and_the_session_goes_on(
    start_agent: Start, type: str, fields: dict[str, object]
) -> None:
    """An invalid request is an error frame, and the session goes on."""
    agent = start_agent()
    agent.greet(None)
    assert agent.ask(type, **fields).fields["code"] == "bad-request"
    assert agent.ask("status").type == "status"


def test_requests_before_hello_are_refused(start_agent: Start) -> None:
    """Any request before hello is refused."""
    assert start_agent().ask("status").fields["code"] == "bad-request"


def test_unknown_request_is_refused(start_agent: Start) -> None:
    """An unknown type is an error frame."""
    agent = start_agent()
    agent.greet(None)
    agent.lease()
    assert agent.ask("dance", token=agent.token).fields["code"] == "bad-request"


def test_wrong_hash_of_a_probe_is_refused(start_agent: Start) -> None:
    """A probe that changed on its way is not loaded."""
    agent = start_agent().ready()
    fields = {"probe": "q", "model_bytes": 1, "output_bytes": 1, "reveal": False, "sha256": "0" * 64}
    assert agent.ask("put", b"m{}", token=agent.token, **fields).fields["code"] == "bad-request"


def test_watchdog_ends_a_process_that_hangs() -> None:
    """The watchdog ends a process beyond its deadline, whatever its main thread does."""
    script = (
        "import sys, time; from device_agents.watchdog import Watchdog\n"
        "Watchdog(0.1, 0.1, 7, lambda: print('last act', flush=True)).start()\n"
        "time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout) == (7, b"last act\n")
