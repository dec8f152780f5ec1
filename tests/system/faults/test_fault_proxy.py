"""The proxy itself: what passes unharmed, and what each fault does to both ends."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from fault_proxy import BlackHole, Close, Corrupt, Direction, Fault, FaultProxy, Link, Reset, Say, Stall
from hypothesis import given, settings
from hypothesis import strategies as st

Connect = Callable[..., tuple[FaultProxy, socket.socket]]


@pytest.fixture(scope="module")
def echo() -> Iterator[int]:
    """An echo server that ends at the end of its input."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(stream: socket.socket) -> None:
            with stream, contextlib.suppress(OSError):
                while data := stream.recv(65536):
                    stream.sendall(data)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def connect(echo: int) -> Iterator[Connect]:
    """A proxy in front of the echo, and a connection through it."""
    with contextlib.ExitStack() as stack:

        def make(link: Link | None = None, *faults: Fault) -> tuple[FaultProxy, socket.socket]:
            proxy = stack.enter_context(FaultProxy(("127.0.0.1", echo), link))
            for fault in faults:
                proxy.inject(fault)
            return proxy, stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 10))

        yield make


def _echoed(stream: socket.socket, size: int) -> bytes:
    """As many bytes as come, at most `size`."""
    data = b""
    while len(data) < size and (more := stream.recv(65536)):
        data += more
    return data


@settings(max_examples=10)
@given(
    data=st.binary(min_size=1, max_size=40_000),
    slice_bytes=st.one_of(st.none(), st.integers(7, 5000)),
    latency_s=st.sampled_from([0.0, 0.02]),
)
def test_everything_arrives_in_order(echo: int, data: bytes, slice_bytes: int | None, latency_s: float) -> None:
    """Whatever the link, no byte is lost, added or moved, and the end of the stream arrives, too."""
    with FaultProxy(("127.0.0.1", echo), Link(latency_s, slice_bytes)) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as stream:
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
            assert _echoed(stream, len(data) + 1) == data
        assert proxy.passed_bytes == {"up": len(data), "down": len(data)}
        assert proxy.accepted == 1


def test_every_socket_is_closed(echo: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that stops while connections through it end leaves no socket to the garbage collector."""
    unclosed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unclosed.append)  # where the warning of an unclosed socket arrives
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")  # a slow event loop is stopped in the middle more often
    for _ in range(40):
        with FaultProxy(("127.0.0.1", echo)) as proxy, contextlib.ExitStack() as stack:
            streams = [stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 10)) for _ in range(4)]
            for stream in streams:
                stream.shutdown(socket.SHUT_WR)
            assert [_echoed(stream, 1) for stream in streams] == [b""] * 4
    assert unclosed == []


def test_a_rate_is_not_exceeded(connect: Connect) -> None:
    """20 kB at 100 kB/s take a fifth of a second or longer, one way."""
    _, stream = connect(Link(bytes_per_s=100_000))
    started_s = time.monotonic()
    stream.sendall(bytes(20_000))
    assert len(_echoed(stream, 20_000)) == 20_000
    assert time.monotonic() - started_s > 0.19


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize(("fault", "reset"), [(Reset(), True), (Close(), False)])
def test_a_connection_ends_after_so_many_bytes(
    connect: Connect, fault: Fault, reset: bool, direction: Direction
) -> None:
    """Not one byte beyond the place arrives; a reset is reported as a reset."""
    proxy, stream = connect()
    proxy.inject(fault, after_bytes=1000, direction=direction)
    got = b""
    with pytest.raises(ConnectionResetError) if reset else contextlib.nullcontext():
        stream.sendall(bytes(5000))
        while more := stream.recv(65536):
            got += more
    assert len(got) <= 1000
    assert proxy.passed_bytes[direction] == 1000


@pytest.mark.parametrize("after_bytes", [1, 1234])
def test_corruption_inverts_the_bits_of_one_byte(connect: Connect, after_bytes: int) -> None:
    """The byte behind the place differs by the mask, all others are as they were."""
    proxy, stream = connect()
    proxy.inject(Corrupt(0x81), after_bytes=after_bytes)
    stream.sendall(bytes(3000))
    assert _echoed(stream, 3000) == bytes(after_bytes) + b"\x81" + bytes(2999 - after_bytes)


def test_a_black_hole_is_silent(connect: Connect) -> None:
    """Nothing arrives, nothing ends; after healing new connections live, and the old one stays dead."""
    proxy, stream = connect()
    stream.sendall(b"before")
    assert _echoed(stream, 6) == b"before"
    proxy.inject(BlackHole())
    stream.sendall(b"lost")
    stream.settimeout(0.2)
    with pytest.raises(TimeoutError):
        stream.recv(10)
    with socket.create_connection(("127.0.0.1", proxy.port), 0.2) as other:
        other.sendall(b"lost")
        with pytest.raises(TimeoutError):
            other.recv(10)
    proxy.heal()
    stream.sendall(b"lost")
    with pytest.raises(TimeoutError):
        stream.recv(10)
    with socket.create_connection(("127.0.0.1", proxy.port), 10) as other:
        other.sendall(b"after")
        assert _echoed(other, 5) == b"after"


def test_a_stall_delays_and_loses_nothing(connect: Connect) -> None:
    """What was sent meanwhile arrives when the time is up."""
    proxy, stream = connect()
    stream.sendall(b"x")
    assert _echoed(stream, 1) == b"x"
    started_s = time.monotonic()
    proxy.inject(Stall(0.3))
    stream.sendall(b"later")
    assert _echoed(stream, 5) == b"later"
    assert time.monotonic() - started_s >= 0.3


def test_a_stall_ends_with_healing(connect: Connect) -> None:
    """`heal` lets go on what would wait for an hour."""
    proxy, stream = connect(None, Stall(3600.0))
    stream.sendall(b"later")
    proxy.heal()
    assert _echoed(stream, 5) == b"later"


@pytest.mark.parametrize(("fault", "said"), [(Say(b"\x00hello"), b"\x00hello"), (Close(), b"")])
def test_a_fault_before_the_first_byte_strikes_the_next_connection(connect: Connect, fault: Fault, said: bytes) -> None:
    """Without a connection that stands, the next one meets the fault before it reaches the target; then all is well."""
    proxy, stream = connect(None, fault)
    assert _echoed(stream, 100) == said
    with socket.create_connection(("127.0.0.1", proxy.port), 10) as other:
        other.sendall(b"well")
        assert _echoed(other, 4) == b"well"


def test_a_fault_strikes_as_often_as_asked(connect: Connect) -> None:
    """Three resets on accept, and the fourth connection stands."""
    proxy, _ = connect()
    proxy.inject(Close(), after_bytes=3, times=2)
    for passes in (False, False, True):
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as other:
            other.sendall(b"abcd")
            assert (len(_echoed(other, 4)) == 4) == passes


@pytest.mark.parametrize("wrong", [{"after_bytes": -1}, {"times": 0}])
def test_what_makes_no_sense_is_refused(connect: Connect, wrong: dict[str, int]) -> None:
    """A fault strikes after 0 or more bytes, once or more."""
    proxy, _ = connect()
    with pytest.raises(ValueError):
        proxy.inject(Reset(), **wrong)  # type: ignore[arg-type]
