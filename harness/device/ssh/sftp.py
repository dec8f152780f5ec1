"""paramiko's SFTP client with bounds on what a server answers.

paramiko believes the counts in an answer: one of 2^32 extended attributes would keep it busy for hours.
"""

import paramiko
from paramiko.sftp import CMD_ATTRS, CMD_NAME

from harness.text import first_line

_ANSWER_BYTES = 256 << 10
_LENGTH_BYTES = 4
_ANSWERS = 5_000
_NAMES = 10_000
_SIZES = {0x1: 8, 0x2: 8, 0x4: 4, 0x8: 8}
"""The bytes of each part of the attributes of a file, by its flag."""


class PrintedText(paramiko.SFTPError):  # type: ignore[misc]
    """The shell of the account printed a text where the first answer of the SFTP server belongs."""

    def __init__(self, content: bytes) -> None:
        super().__init__(f"its shell prints {first_line(content)!r} there")


class BoundedSftp(paramiko.SFTPClient):  # type: ignore[misc]
    """Raises SFTPError if the server sends too many answers, too long ones, or attributes that were not requested."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._answers = self._names = 0
        super().__init__(channel)

    def _read_all(self, n: int) -> bytes:
        if not self._answers and n == _LENGTH_BYTES:
            return self._first_length()
        if n > _ANSWER_BYTES:
            raise paramiko.SFTPError(f"the SFTP server announced an answer of {n} bytes")
        return bytes(super()._read_all(n))

    def _first_length(self) -> bytes:
        found = bytes(super()._read_all(_LENGTH_BYTES))
        if found[0]:  # no server announces 16 MiB
            raise PrintedText(found + self.sock.recv(_ANSWER_BYTES))
        return found

    def _read_packet(self) -> tuple[int, bytes]:
        kind, data = super()._read_packet()
        self._answers += 1
        if self._answers > _ANSWERS:
            raise paramiko.SFTPError("the SFTP server sends more data than was requested")
        if kind == CMD_ATTRS:
            _attributes_end(data, 4)
        elif kind == CMD_NAME:
            self._names += _check_names(data)
            if self._names > _NAMES:
                raise paramiko.SFTPError("the SFTP server lists too many files")
        return kind, data


def _check_names(data: bytes) -> int:
    """Return how many files a list has; raises SFTPError if it ends early. It begins after the id of the request."""
    count, at = _number(data, 4), 8
    for _ in range(count):
        for _ in ("name", "line of ls"):
            at += 4 + _number(data, at)
        at = _attributes_end(data, at)
    return count


def _attributes_end(data: bytes, at: int) -> int:
    """Return where the attributes of a file end."""
    flags = _number(data, at)
    if flags & ~sum(_SIZES):
        raise paramiko.SFTPError(f"the SFTP server sends attributes of the unknown kind {flags:#x}")
    return at + 4 + sum(size for flag, size in _SIZES.items() if flags & flag)


def _number(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise paramiko.SFTPError("an answer of the SFTP server ends early")
    return int.from_bytes(data[at : at + 4], "big")
