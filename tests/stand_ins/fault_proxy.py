"""A TCP proxy on loopback that injects faults: between a controller and a real sshd, or any other pair.

>>> with FaultProxy(("127.0.0.1", 22), link=Link(latency_s=0.1)) as proxy:  # doctest: +SKIP
...     proxy.inject(Reset(), after_bytes=5000, direction="up")
...     connect_to("127.0.0.1", proxy.port)

Bytes that go `up` go from the client to the target; bytes that go `down` go back.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

Direction = Literal["up", "down"]
_READ_BYTES = 16 * 1024
_QUEUE_PIECES = 256
_ANSWER_S = 30.0
_LINGER_ZERO = b"\x01\0\0\0\0\0\0\0"
_Queue = asyncio.Queue[tuple[float, bytes]]


@dataclass(frozen=True)
class Link:
    """Latency, slice size and rate limit of bytes, in each direction."""

    latency_s: float = 0.0
    slice_bytes: int | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True)
class Reset:
    """Sends a TCP reset to both ends of the connection."""


@dataclass(frozen=True)
class Close:
    """Closes the connection in an orderly way at both ends."""


@dataclass(frozen=True)
class BlackHole:
    """Drops all bytes silently, on this connection forever and on new ones until `heal`."""


@dataclass(frozen=True)
class Stall:
    """Holds back all bytes for `seconds`, in both directions and on all connections, then delivers them."""

    seconds: float


@dataclass(frozen=True)
class Corrupt:
    """Inverts these bits of the next byte."""

    mask: int = 0x01


@dataclass(frozen=True)
class Say:
    """Sends `content` to the client instead of bytes from the target, then closes the connection."""

    content: bytes


Fault = Reset | Close | BlackHole | Stall | Corrupt | Say


@dataclass
class _Due:
    """A fault that strikes when `left_bytes` more bytes have passed in its direction."""

    fault: Fault
    direction: Direction
    first_bytes: int
    left_bytes: int
    times: int


class _EndedError(Exception):
    """This connection was ended by a fault or by one of its ends."""


@dataclass(eq=False)
class _Connection:
    """One connection: the client's socket, and the faults that act on it."""

    near: socket.socket
    served: asyncio.Task[None] | None = None
    swallows: bool = False
    resets: bool = False
    flips: dict[Direction, int] = field(default_factory=lambda: {"up": 0, "down": 0})


class FaultProxy:
    """Forwards connections from its own port to `target` and injects faults into them.

    A context manager that serves in a thread of its own; methods may be called from any thread. `accepted` counts
    connections, `passed_bytes` counts bytes delivered or dropped.
    """

    def __init__(self, target: tuple[str, int], link: Link | None = None) -> None:
        """Listen at once; raises OSError. `link` applies to all connections in both directions."""
        self._target, self._link = target, link or Link()
        self._due: list[_Due] = []
        self._connections: set[_Connection] = set()
        self._swallows, self._flowing = False, asyncio.Event()
        self._flowing.set()
        self.accepted = 0
        self.passed_bytes: dict[Direction, int] = {"up": 0, "down": 0}
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.port: int = self._server.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        with self._server:
            self._call(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_ANSWER_S)
            self._loop.close()

    def inject(self, fault: Fault, *, after_bytes: int = 0, direction: Direction = "up", times: int = 1) -> None:
        """Let a fault strike when `after_bytes` more bytes have passed in `direction`, on any connection.

        With 0 it strikes the open connections or, if there are none, the next one before its first byte. It strikes
        `times` times, each time after the same number of bytes.
        """
        self._call(self._inject(_Due(fault, direction, after_bytes, after_bytes, times)))

    def heal(self) -> None:
        """Remove faults that have not struck; bytes held back go on, and new connections are forwarded again."""
        self._call(self._heal())

    # --- inside the thread --------------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWER_S)

    async def _start(self) -> None:
        self._loop.add_reader(self._server, self._accept)

    async def _stop(self) -> None:
        self._loop.remove_reader(self._server)
        await self._end(*self._connections)

    async def _end(self, *connections: _Connection) -> None:
        tasks = [one.served for one in connections if one.served is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:  # a task that never started has closed nothing
            self._close(connection, connection.near)

    async def _inject(self, due: _Due) -> None:
        standing = tuple(self._connections)
        if due.first_bytes or not standing:
            self._due.append(due)
            return
        for connection in standing:
            try:
                await self._strike(due, connection)
            except _EndedError:
                await self._end(connection)

    async def _heal(self) -> None:
        self._due.clear()
        self._swallows = False
        self._flowing.set()

    def _accept(self) -> None:
        try:
            near, _ = self._server.accept()
        except OSError:  # the client has gone
            return
        near.setblocking(False)
        self.accepted += 1
        connection = _Connection(near)
        self._connections.add(connection)
        connection.served = self._loop.create_task(self._serve(connection))

    async def _serve(self, connection: _Connection) -> None:
        sockets = [connection.near]
        tasks: list[asyncio.Task[None]] = []
        try:
            for due in [due for due in self._due if due.first_bytes == 0]:
                await self._strike(due, connection)
            connection.swallows = connection.swallows or self._swallows
            if connection.swallows:
                await asyncio.Event().wait()  # bytes are dropped
            far = socket.socket()
            sockets.append(far)
            far.setblocking(False)
            await self._loop.sock_connect(far, self._target)
            for stream in sockets:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tasks += self._carry("up", connection, connection.near, far)
            tasks += self._carry("down", connection, far, connection.near)
            await asyncio.gather(*tasks)
        except (_EndedError, OSError, asyncio.CancelledError):
            pass
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)  # no task waits for a socket when it is closed
            finally:  # the wait ends early where the proxy stops meanwhile
                self._close(connection, *sockets)

    def _close(self, connection: _Connection, *sockets: socket.socket) -> None:
        for stream in sockets:
            if connection.resets and stream.fileno() >= 0:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            stream.close()
        self._connections.discard(connection)

    def _carry(
        self, direction: Direction, connection: _Connection, source: socket.socket, sink: socket.socket
    ) -> tuple[asyncio.Task[None], asyncio.Task[None]]:
        queue: _Queue = asyncio.Queue(_QUEUE_PIECES)
        return (
            self._loop.create_task(self._read(connection, source, queue)),
            self._loop.create_task(self._deliver(direction, connection, sink, queue)),
        )

    async def _read(self, connection: _Connection, source: socket.socket, queue: _Queue) -> None:
        """Read ahead, so that latency does not limit the rate."""
        data = b"more"
        while data:
            try:
                data = await self._loop.sock_recv(source, _READ_BYTES)
            except OSError:
                if not connection.swallows:
                    connection.resets = True
                    raise _EndedError from None
                data = b""
            await queue.put((self._loop.time() + self._link.latency_s, data))

    async def _deliver(self, direction: Direction, connection: _Connection, sink: socket.socket, queue: _Queue) -> None:
        while True:
            when_s, data = await queue.get()
            await asyncio.sleep(max(0.0, when_s - self._loop.time()))
            await self._flowing.wait()
            if not data:
                if connection.swallows:
                    await asyncio.Event().wait()  # the other end does not learn of it
                sink.shutdown(socket.SHUT_WR)
                return
            size = self._link.slice_bytes or len(data)
            for start in range(0, len(data), size):
                await self._pass(direction, connection, sink, data[start : start + size])

    async def _pass(self, direction: Direction, connection: _Connection, sink: socket.socket, data: bytes) -> None:
        """Send data up to the byte where a fault is due, let it strike, and go on."""
        while data:
            waiting = [due for due in self._due if due.direction == direction and due.first_bytes]
            size = min([len(data), *(due.left_bytes for due in waiting)])
            piece, data = data[:size], data[size:]
            self.passed_bytes[direction] += size
            if self._link.bytes_per_s:
                await asyncio.sleep(size / self._link.bytes_per_s)
            if not connection.swallows:
                flips, connection.flips[direction] = connection.flips[direction], 0
                await self._loop.sock_sendall(sink, bytes([piece[0] ^ flips]) + piece[1:])
            for due in waiting:
                due.left_bytes -= size
                if due.left_bytes == 0:
                    await self._strike(due, connection)
            await self._flowing.wait()

    async def _strike(self, due: _Due, connection: _Connection) -> None:
        due.times -= 1
        due.left_bytes = due.first_bytes
        if due.times == 0 and due in self._due:
            self._due.remove(due)
        fault = due.fault
        if isinstance(fault, Corrupt):
            connection.flips[due.direction] = fault.mask
        elif isinstance(fault, BlackHole):
            self._swallows = connection.swallows = True
        elif isinstance(fault, Stall):
            self._flowing.clear()
            self._loop.call_later(fault.seconds, self._flowing.set)
        else:
            if isinstance(fault, Say):
                await self._loop.sock_sendall(connection.near, fault.content)
            connection.resets = isinstance(fault, Reset)
            raise _EndedError
