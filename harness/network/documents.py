"""JSON documents that another process sends, followed by parts of bytes.

The sender may be compromised by the file that it parsed, so every size and type is validated.
"""

import json
from collections.abc import Sequence
from typing import Any

_LENGTH_BYTES = 8


def encode(document: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """Return a document and the parts that follow it; `decode_document` reads it."""
    header = json.dumps(document, separators=(",", ":")).encode()
    body = b"".join((header, *parts))
    return b"".join(number.to_bytes(_LENGTH_BYTES, "big") for number in (len(body), len(header))) + body


def is_whole(content: bytes | bytearray) -> bool:
    """Return whether an answer has arrived in full."""
    start = 2 * _LENGTH_BYTES
    return len(content) >= start and len(content) - start == int.from_bytes(content[:_LENGTH_BYTES], "big")


def split_document(content: bytes, most: int | None = None) -> tuple[bytes, memoryview]:
    """Return the JSON of a document, of at most so many values, and what follows it; raises ValueError.

    The values are counted before they are parsed: a value of two bytes takes sixty in memory.
    """
    start = 2 * _LENGTH_BYTES
    end = start + int.from_bytes(content[_LENGTH_BYTES:start], "big")
    if not is_whole(content) or end > len(content):
        raise ValueError("cut short")
    header = content[start:end]
    if most is not None and values_in(header) > most:
        raise ValueError("more values than a network has")
    return header, memoryview(content)[end:]


def values_in(content: bytes) -> int:
    """Return how many values a JSON document has at most, without parsing it."""
    return sum(map(content.count, (b",", b"[", b"{")))


def decode_document(content: bytes, most: int | None = None) -> tuple[dict[str, Any], memoryview]:
    """Return a document, as `split_document` does, and what follows it; raises ValueError."""
    header, rest = split_document(content, most)
    document = json.loads(header)
    if not isinstance(document, dict):
        raise ValueError("no document")
    return document, rest
