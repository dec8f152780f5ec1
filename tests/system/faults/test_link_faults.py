"""Faults of the link and of what answers at its end, between a controller and a device behind a real sshd."""

import contextlib
import os
import random
import signal
import socket
from pathlib import Path

import pytest
from fault_proxy import BlackHole, Close, Corrupt, Direction, Fault, FaultProxy, Link, Reset, Say, Stall
from fault_rig import SHORT, Rig
from processes import wait_until
from sshd_server import Sshd, free_port, make_key, running_sshd

from harness.device.bundle import build_bundle
from harness.device.session import Deadlines
from harness.errors import AuthenticationError, DeviceUnreachable, HostKeyError, LeaseLost, LinkLost

GARBAGE = b"\x00\xffHTTP/1.1 400 \x1b[2J\r\n" * 20


@pytest.mark.parametrize(("fault", "listed"), [("wrong host key", "another"), ("unknown host key", "none")])
def test_a_host_key_that_is_not_listed(rig: Rig, sshd: Sshd, tmp_path: Path, fault: str, listed: str) -> None:
    """A wrong or unknown host key ends the session before the identity is shown; it is not retried."""
    rig.begin()
    rig.put_behind(sshd)
    right = sshd.known_hosts.read_text()
    content = f"[127.0.0.1]:{sshd.port} {make_key(tmp_path / 'other')}\n" if listed == "another" else ""
    seen: list[str] = []

    def mend() -> None:
        seen.append(sshd.log.read_text())
        sshd.known_hosts.write_text(right)

    error = rig.meet(fault, lambda: sshd.known_hosts.write_text(content), HostKeyError, after_rounds=0, mend=mend)
    assert error is not None and not error.retry_helps
    assert "Accepted" not in seen[0]


def test_a_rotated_host_key(rig: Rig, sshd: Sshd) -> None:
    """A board that was set up anew in the middle of a campaign is refused until its new key is listed."""
    rig.put_behind(sshd)
    rig.begin()

    def rotate() -> None:
        sshd.host_key.unlink()
        make_key(sshd.host_key)
        os.kill(sshd.pid, signal.SIGHUP)
        wait_until(lambda: "Received SIGHUP" in sshd.log.read_text(), "sshd to start again")
        wait_until(lambda: _answers(sshd.port), "sshd to answer again")

    def mend() -> None:
        sshd.known_hosts.unlink()
        sshd.trust(sshd.port)

    rig.meet("rotated host key", rotate, HostKeyError, after_rounds=0, mend=mend)


def test_a_wrong_client_key(rig: Rig, sshd: Sshd, tmp_path: Path) -> None:
    """An identity that the device does not know is an AuthenticationError, and is not tried again."""
    rig.begin()
    stranger = tmp_path / "stranger"
    make_key(stranger)
    error = rig.meet(
        "wrong client key",
        lambda: rig.put_behind(sshd, identity=str(stranger)),
        AuthenticationError,
        after_rounds=0,
        mend=lambda: rig.put_behind(sshd),
    )
    assert error is not None and not error.retry_helps
    # The stranger, and the sessions before and after it, whose key is accepted.
    wait_until(lambda: "closed by authenticating user" in sshd.log.read_text(), "the end of the connection")
    assert sshd.log.read_text().count("closed by authenticating user") == 1


def test_a_closed_port(rig: Rig, sshd: Sshd) -> None:
    """A closed port is a device that cannot be reached."""
    rig.begin()
    rig.put_behind(sshd, free_port())
    error = rig.meet("closed port", lambda: None, DeviceUnreachable, after_rounds=0, mend=lambda: rig.put_behind(sshd))
    assert "port is closed" in str(error)


@pytest.mark.parametrize(
    ("name", "fault", "connects"),
    [("reset on accept", Reset(), 3), ("no banner", BlackHole(), 1), ("garbage banner", Say(GARBAGE), 1)],
)
def test_what_answers_is_no_sshd(
    rig: Rig, sshd: Sshd, proxy: FaultProxy, name: str, fault: Fault, connects: int
) -> None:
    """A device that resets, keeps silent or talks nonsense is not reachable; only the reset is tried again."""
    rig.begin()
    rig.put_behind(sshd, proxy.port, banner_timeout_s=0.5)

    def mend() -> None:
        proxy.heal()
        rig.put_behind(sshd, proxy.port)

    error = rig.meet(name, lambda: proxy.inject(fault, times=connects), DeviceUnreachable, after_rounds=0, mend=mend)
    assert proxy.accepted == connects + 1
    assert str(error).isprintable()


def test_a_burst_beyond_max_startups(rig: Rig, tmp_path: Path, runtime_folder: Path) -> None:
    """A device whose sshd is busy with strangers is not reachable, and the error names sshd's limit."""
    rig.begin()
    with running_sshd(tmp_path / "sshd", runtime_folder, "MaxStartups 2:100:2") as sshd, contextlib.ExitStack() as held:
        rig.put_behind(sshd)

        def crowd() -> None:
            for _ in range(2):
                stranger = held.enter_context(socket.create_connection(("127.0.0.1", sshd.port)))
                assert stranger.recv(4) == b"SSH-"

        def mend() -> None:
            held.close()
            wait_until(lambda: _answers(sshd.port), "a free place")

        error = rig.meet("burst beyond MaxStartups", crowd, DeviceUnreachable, after_rounds=0, mend=mend)
    assert "MaxStartups" in str(error)


@pytest.mark.parametrize(("name", "fault"), [("reset in the middle", Reset()), ("end of stream", Close())])
def test_a_link_that_breaks_in_the_middle(remote: Rig, proxy: FaultProxy, name: str, fault: Fault) -> None:
    """A broken connection is a lost link, and the device is free as soon as sshd has noticed."""
    remote.meet(name, lambda: proxy.inject(fault, after_bytes=200, direction="down"), LinkLost)


def test_a_black_hole_in_the_middle(remote: Rig, proxy: FaultProxy) -> None:
    """Where everything vanishes both sides notice by themselves: the controller gives up, the lease runs out."""
    remote.meet("black hole in the middle", lambda: proxy.inject(BlackHole()), LinkLost, mend=proxy.heal)


@pytest.mark.long
def test_a_link_that_is_down_for_longer_than_the_lease(remote: Rig, proxy: FaultProxy) -> None:
    """A link that returns too late finds the board free, and late samples are dropped."""
    remote.meet("link down beyond the lease", lambda: proxy.inject(Stall(3600)), LinkLost, mend=proxy.heal)


def test_a_link_that_is_down_for_five_seconds(remote: Rig, proxy: FaultProxy) -> None:
    """Shorter than the lease, it costs time and nothing else."""
    patient = Deadlines(lease_ttl_s=20.0)
    remote.meet("link down for 5 s", lambda: proxy.inject(Stall(5.0)), None, deadlines=patient)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_link_that_is_down_for_five_minutes(remote: Rig, proxy: FaultProxy) -> None:
    """With the usual deadlines the board is free within a minute, and the campaign ends when the link is back."""
    usual = Deadlines()
    remote.meet(
        "link down for 5 min",
        lambda: proxy.inject(Stall(300.0)),
        LinkLost,
        bound_s=usual.lease_ttl_s,
        deadlines=usual,
        mend=lambda: wait_until(lambda: _answers(proxy.port), "the link to come back", 320.0),
    )


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("latency of 200 ms", Link(latency_s=0.1)),
        ("slices of 7 bytes", Link(slice_bytes=7)),
        ("64 kB/s", Link(bytes_per_s=64_000)),
    ],
)
def test_a_slow_link(rig: Rig, sshd: Sshd, name: str, link: Link) -> None:
    """A slow link costs time and nothing else; 100 ms each way are 200 ms for a question and its answer."""
    with FaultProxy(("127.0.0.1", sshd.port), link) as proxy:
        sshd.trust(proxy.port)
        rig.begin(1 if link.slice_bytes else 3)
        rig.put_behind(sshd, proxy.port)
        rig.meet(name, lambda: None, None, deadlines=Deadlines(), after_rounds=0)
        assert proxy.passed_bytes["up"] > 3000


@pytest.mark.parametrize(
    ("direction", "after_bytes"),
    [
        ("up", 3001),
        ("down", 1003),
        pytest.param("up", 1, marks=pytest.mark.long),
        pytest.param("up", 100, marks=pytest.mark.long),
        pytest.param("down", 1, marks=pytest.mark.long),
        pytest.param("down", 60, marks=pytest.mark.long),
    ],
)
def test_corrupted_bytes(remote: Rig, proxy: FaultProxy, direction: Direction, after_bytes: int) -> None:
    """A flipped bit never becomes a sample: the message authentication of SSH ends the connection.

    Where it hits the length of a message, the device waits for a larger one until the lease runs out, and says so.
    """
    remote.meet(
        f"bit flipped {direction} after {after_bytes} bytes",
        lambda: proxy.inject(Corrupt(), after_bytes=after_bytes, direction=direction),
        (LinkLost, LeaseLost),
    )


def test_an_agent_upload_that_is_cut(rig: Rig, sshd: Sshd, proxy: FaultProxy) -> None:
    """Wherever the upload of the agent is cut, no half agent is started, and the next push replaces it."""
    sshd.allow_commands()
    rig.begin()
    rig.put_behind(sshd, proxy.port, agent="push")
    target = sshd.home / build_bundle().path
    size = len(build_bundle().content)
    places = [random.Random(1).randrange(6000, size), size]

    def cut(after_bytes: int) -> None:
        proxy.inject(Close(), after_bytes=after_bytes)

    for after_bytes in places[:-1]:
        cut(after_bytes)
        with pytest.raises(DeviceUnreachable, match=r"the connection broke\. Run the same command again"):
            rig.run_session(SHORT)
        assert not target.exists()
    rig.meet(f"upload cut at {len(places)} places", lambda: cut(places[-1]), DeviceUnreachable, after_rounds=0)
    assert target.read_bytes() == build_bundle().content


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_a_probe_upload_that_is_cut(remote: Rig, proxy: FaultProxy, seed: int) -> None:
    """A probe that arrives in part is never loaded: the link is lost, and the campaign loads it again."""
    after_bytes = random.Random(seed).randrange(200, 20_000)
    remote.meet(
        f"link cut {after_bytes} bytes into the loading of probes",
        lambda: proxy.inject(Close(), after_bytes=after_bytes),
        LinkLost,
    )


def test_a_stale_part_of_an_upload_is_removed(rig: Rig, sshd: Sshd) -> None:
    """What cut uploads left on the device goes with a later push, an hour after; a push under way is left alone."""
    sshd.allow_commands()
    folder = (sshd.home / build_bundle().path).parent
    folder.mkdir(parents=True)
    old, young = folder / "agent-0.pyz.aa.part", folder / "agent-0.pyz.bb.part"
    for path, age_s in ((old, 4000), (young, 60)):
        path.write_bytes(b"half an agent")
        written_s = path.stat().st_mtime - age_s
        os.utime(path, (written_s, written_s))
    rig.put_behind(sshd, agent="push")
    rig.begin()
    assert (old.exists(), young.exists()) == (False, True)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as stream:
        return stream.recv(4) == b"SSH-"
    return False
