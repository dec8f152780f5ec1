"""A session with agents that misbehave: each fault raises the right error, and no wrong sample is accepted."""

import hashlib
import json
import socket
import struct
from dataclasses import replace
from typing import Any

import pytest
from scripted_peer import GOOD, HELLO, SHORT, VISITS, Meet, Peer, run_script, samples_of

from device_agents import wire
from harness.device.session import LoadRequest, Visit
from harness.errors import (
    BackendError,
    DeviceBusy,
    DeviceError,
    DeviceUnreachable,
    HarnessError,
    LeaseLost,
    LinkLost,
    ProtocolError,
    WorkerDied,
)


def test_an_agent_of_an_older_version_gets_no_probe_ahead(meet: Meet) -> None:
    """An agent that would refuse a second request to load gets each in its turn."""
    session, peer = meet()
    session.greet()
    session.acquire("me")
    assert not session.put_ahead(LoadRequest("p", b"model", [], [], 4))
    assert "put" not in {frame.type for frame in peer.seen}


def test_text_of_the_device_is_shown_without_control_characters(meet: Meet) -> None:
    """Fingerprints are cleaned of control characters."""
    session, _ = meet()
    assert session.greet().fingerprint == {"cpu": "a [31mb"}


def _raw(data: bytes, close: bool = False) -> Any:
    def answer(peer: Peer, _: wire.Frame) -> None:
        peer.stream.sendall(data)
        if close:
            peer.stream.shutdown(socket.SHUT_RDWR)

    return answer


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"SSH-2.0-hello",
        struct.pack(">I", 50_000) + b"[" * 50_000,
        wire.encode(wire.Frame("samples", 3, {}, b"", seq=0)),
    ],
)
def test_bytes_that_are_no_frame_are_refused(meet: Meet, data: bytes) -> None:
    """A header of 4 GB, another protocol, bottomless nesting and a replayed frame are a ProtocolError."""
    with pytest.raises(ProtocolError):
        run_script(meet, _raw(data))


@pytest.mark.parametrize("text", ["Welcome to the lab", "Über 3 Updates", "┌──────┐\n│ news │"])
def test_a_text_of_the_shell_is_shown(meet: Meet, text: str) -> None:
    """A greeting before the agent answers is named as what it is, whatever letter it begins with."""
    session, _ = meet(hello=_raw(text.encode()))
    with pytest.raises(ProtocolError, match="prints a text before") as caught:
        session.greet()
    assert text.partition("\n")[0] in str(caught.value) and "~/.bashrc" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\0\0", wire.encode(wire.Frame("samples", 3, {}, b"x" * 100, seq=2))[:-1]])
def test_stream_that_ends_early_is_a_lost_link(meet: Meet, data: bytes) -> None:
    """Without an end record nothing counts as complete, and the reason has no control characters."""
    with pytest.raises(LinkLost) as caught:
        run_script(meet, _raw(data, close=True))
    assert "bye" in str(caught.value) and "\x1b" not in str(caught.value)


@pytest.mark.parametrize("id", [0, 1, 2, 99])
def test_answer_to_another_request_is_refused(meet: Meet, id: int) -> None:
    """A replayed or unknown id is a ProtocolError."""
    with pytest.raises(ProtocolError):
        run_script(meet, lambda peer, _: peer.writer.write("end", id, count=0, hash="0" * 64, cancelled=False))


def test_heartbeat_that_was_not_sent_is_refused(meet: Meet) -> None:
    """An answer to a heartbeat that was not sent is a ProtocolError."""
    with pytest.raises(ProtocolError):
        run_script(meet, lambda peer, _: peer.writer.write("heartbeat", 50, busy=True))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"code": "busy", "message": "m", "holder": "eve\x1b[31m"}, DeviceBusy),
        ({"code": "lease-lost", "message": "\r\n\x1b[31m" + 10_000 * "\u202e"}, LeaseLost),
        ({"code": "worker-died", "message": "m", "ending": "signal SIGSEGV", "tail": "oops"}, WorkerDied),
        ({"code": "worker-silent", "message": "m", "tail": ""}, WorkerDied),
        ({"code": "backend", "message": "m"}, BackendError),
        ({"code": "system", "message": "m"}, DeviceError),
        ({"code": "version", "message": "m", "major": 2, "agent_version": "9"}, ProtocolError),
        ({"code": "protocol", "message": "m"}, ProtocolError),
        ({"code": "bad-request", "message": "m"}, ProtocolError),
        ({"code": "idle", "message": "m"}, LinkLost),
        ({"code": "\x1b]0;x", "message": "m"}, ProtocolError),
        ({"code": 3, "message": "m"}, ProtocolError),
        ({}, ProtocolError),
    ],
)
def test_error_frames_become_errors_of_harness(
    meet: Meet, fields: dict[str, Any], expected: type[HarnessError]
) -> None:
    """Each code has its class, and every text of the device is cleaned."""
    with pytest.raises(expected) as caught:
        run_script(meet, lambda peer, frame: peer.writer.write("error", frame.id, **fields))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 2500


def test_agent_of_an_earlier_protocol_is_to_be_installed_anew(meet: Meet) -> None:
    """The answer of an installed agent of protocol 1 ends in an error that gives both versions and the next step."""
    refusal = {"code": "version", "message": "this agent speaks version 1 of the protocol, not 2"}
    refusal |= {"major": 1, "agent_version": "1.0"}
    session, peer = meet(hello=lambda peer, frame: peer.writer.write("error", frame.id, **refusal))
    with pytest.raises(ProtocolError, match=r"version mismatch.* 1\.0.*version 1.*not 2.*harness agent install null01"):
        session.greet()
    assert peer.seen[0].fields["major"] == wire.PROTOCOL_MAJOR


def test_lease_lost_without_a_request_ends_any_wait(meet: Meet) -> None:
    """An error of id 0 concerns the whole session."""
    with pytest.raises(LeaseLost):
        run_script(meet, lambda peer, _: peer.writer.write("error", 0, code="lease-lost", message="m"))


def test_silent_link_is_lost(meet: Meet) -> None:
    """When even heartbeats stay unanswered the link is lost."""
    session, peer = meet(replace(SHORT, run_s=30.0), heartbeat=lambda *_: None)
    session.greet()
    session.acquire("me")
    with pytest.raises(LinkLost, match="heartbeats included"):
        list(session.run(VISITS))
    assert any(frame.type == "heartbeat" and frame.fields == {"token": 7} for frame in peer.seen)


def test_agent_that_only_answers_heartbeats_is_given_up(meet: Meet) -> None:
    """A run that never ends is given up although heartbeats are answered."""
    with pytest.raises(LinkLost, match="no samples or end within"):
        run_script(meet, lambda *_: None, replace(SHORT, lease_ttl_s=2.0))


def test_no_agent_at_all_is_unreachable(meet: Meet) -> None:
    """A program that ends before hello is an unreachable device."""
    session, _ = meet(hello=_raw(b"", close=True))
    with pytest.raises(DeviceUnreachable, match="No agent answers"):
        session.greet()


@pytest.mark.parametrize(
    "changes",
    [
        {"major": 1},
        {"major": True},
        {"backend": "other"},
        {"clock": "sundial"},
        {"clock": None},
        {"reveals": "all"},
        {"fingerprint": {"x": 1}},
        {"fingerprint": {f"k{index}": "" for index in range(100)}},
        {"surprise": 1},
    ],
)
def test_hello_that_is_none_is_refused(meet: Meet, changes: dict[str, Any]) -> None:
    """Each field of hello is checked."""
    session, _ = meet(hello=lambda peer, frame: peer.writer.write("hello", frame.id, **{**HELLO, **changes}))
    with pytest.raises(ProtocolError):
        session.greet()


def test_cancel_is_sent_once_and_a_shorter_run_is_believed(meet: Meet) -> None:
    """After a cancel the end record may confirm fewer visits."""

    def run(peer: Peer, frame: wire.Frame) -> None:
        peer.text = json.dumps({"series": GOOD[:1], "state": {}}).encode()  # type: ignore[attr-defined]
        peer.writer.write("samples", frame.id, peer.text)  # type: ignore[attr-defined]

    def cancel(peer: Peer, frame: wire.Frame) -> None:
        digest = hashlib.sha256(peer.text).hexdigest()  # type: ignore[attr-defined]
        peer.writer.write("end", frame.id, count=1, hash=digest, cancelled=True)

    session, peer = meet(run=run, cancel=cancel)
    session.greet()
    session.acquire("me")
    received = []
    for series, _ in session.run(VISITS):
        received += series
        session.cancel()
        session.cancel()
    assert len(received) == 1
    assert [frame.type for frame in peer.seen].count("cancel") == 1


def test_long_lists_of_visits_are_sent_in_parts(meet: Meet) -> None:
    """No header grows beyond its limit, and the visits count on over the parts."""

    def run(peer: Peer, frame: wire.Frame) -> None:
        series = [
            {"visit": index, "probe": probe, "samples": [[1, None, 1, 0]] * runs}
            for index, (probe, _, runs) in enumerate(frame.fields["visits"])
        ]
        samples_of(*series)(peer, frame)

    session, peer = meet(run=run)
    session.greet()
    session.acquire("me")
    visits = [Visit("p" * 64, 0, 1)] * 3000
    assert [item.visit for part, _ in session.run(visits) for item in part] == list(range(3000))
    assert [frame.type for frame in peer.seen].count("run") > 2


def test_abandoned_run_leaves_only_close(meet: Meet) -> None:
    """After an abandoned run the session refuses other requests."""
    session, _ = meet(run=samples_of(*GOOD))
    session.greet()
    session.acquire("me")
    next(session.run(VISITS))
    with pytest.raises(HarnessError, match="abandoned"):
        session.drop(["p"])


@pytest.mark.parametrize("visit", [Visit("p", 0, 0), Visit("p", -1, 1), Visit("p", 0, True), Visit("p", 0, 1.5)])  # type: ignore[arg-type]
def test_visits_without_runs_are_a_mistake_of_the_caller(meet: Meet, visit: Visit) -> None:
    """The runs of a visit must be an integer of 1 or more."""
    session, _ = meet()
    with pytest.raises(ValueError):
        list(session.run([visit]))


@pytest.mark.parametrize(
    ("reveal", "payload", "fields"), [(False, b"x", {"format": "f"}), (True, b"", {"format": "f"}), (True, b"x", {})]
)
def test_revelations_that_do_not_fit_are_refused(
    meet: Meet, reveal: bool, payload: bytes, fields: dict[str, Any]
) -> None:
    """A revealed graph has a format, and arrives on request only."""
    session, _ = meet(put=lambda peer, frame: peer.writer.write("put", frame.id, payload, **fields))
    session.greet()
    session.acquire("me")
    with pytest.raises(ProtocolError):
        session.put(LoadRequest("p", b"m", (), (), 1, reveal))


def test_close_is_harmless_when_repeated(meet: Meet) -> None:
    """Closing twice, or after the link broke, is no error."""
    session, peer = meet()
    session.greet()
    peer.stream.shutdown(socket.SHUT_RDWR)
    session.close()
    session.close()
    with pytest.raises(HarnessError):
        session.status()
