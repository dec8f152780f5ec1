"""The answer of the isolated process, which a file may have taken over: the parent must check every part of it."""

import contextlib
import functools
import random
from pathlib import Path
from typing import Any

from fuzz import network_seeds
from fuzz.edits.draft import BOUND_DIMS
from fuzz.mutation import json_text, mutate_bytes, mutate_json
from fuzz.outcome import Outcome
from harness.errors import NetworkError, UsageError
from harness.network.documents import decode_document, encode
from harness.network.network import ITEM_BYTES
from harness.network.reading.limited_reading import network_of, prepared
from harness.network.reading.network_codec import encode_network
from harness.network.reading.read import parse_model

_REPORTS: tuple[dict[str, Any], ...] = (
    {"error": "InvalidNetwork", "texts": ["what", "why", "next"]},
    {"memory": True},
    {"bug": "Traceback"},
)
_FILE_BYTES = 10_000
"""The size of the file that was read, as far as the parent knows."""


def read(data: bytes, folder: Path) -> Outcome:  # noqa: ARG001 - nothing is written
    """Read an answer as `read_network` does; what is accepted must be the same when it is handed back again."""
    try:
        network, note = network_of(data, ("n", bytes(_FILE_BYTES)))
    except (NetworkError, UsageError):
        return Outcome.REFUSED
    except RuntimeError as error:
        if "was not read" in str(error):  # the bug of harness that the answer reports
            return Outcome.REFUSED
        raise
    content = encode_network(network, note)
    if encode_network(*network_of(content, ("n", bytes(_FILE_BYTES)))) != content:
        raise AssertionError("a network changes when it is handed back")
    return Outcome.ACCEPTED


@functools.cache
def seeds() -> list[bytes]:
    """Return the answers for small networks."""
    return [
        encode_network(prepared(parse_model("n", "n", content), BOUND_DIMS, None))
        for content in network_seeds.plain()
        if b"weights.bin" not in content
    ]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Change the document, mostly so that it stays plausible, or its parts; most lengths stay correct."""
    if draw.random() < 0.1:
        return mutate_bytes(data, draw)
    try:
        document, rest = decode_document(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, draw)
    parts = bytes(rest)
    kind = draw.random()
    if kind < 0.05:
        return encode(mutate_json(draw.choice(_REPORTS), draw))
    if kind < 0.15:
        return encode(document, [mutate_bytes(parts, draw)])
    if kind < 0.7 and _rewrite(document, draw):
        return encode(document, [parts])
    text = json_text(mutate_json(document, draw), draw)
    sizes = (len(text) + len(parts), len(text))
    return b"".join(size.to_bytes(8, "big") for size in sizes) + text + parts


def _rewrite(document: dict[str, Any], draw: random.Random) -> bool:
    """Change a value for another of the same kind; returns whether the document has it."""
    with contextlib.suppress(KeyError, TypeError, IndexError, ValueError, AttributeError):
        names = [row[0] for row in document["types"]]
        node, kind, constant = draw.choice(document["nodes"]), draw.choice(document["types"]), None
        way = draw.randrange(8)
        if way == 0:
            node[0] = draw.choice(("", "n", node[0]))
        elif way == 1:
            node[draw.choice((2, 3))][0] = draw.choice(names)
        elif way == 2:
            kind[1] = draw.choice(tuple(ITEM_BYTES))
        elif way == 3:
            kind[2] = [draw.choice((0, 1, 2, 1 << 20)) for _ in range(draw.randrange(4))]
        elif way == 4:
            document[draw.choice(("inputs", "outputs"))] = draw.sample(names, draw.randrange(1, 3))
        elif way == 5:
            constant = draw.choice(document["constants"])
            constant[2] = constant[2][::-1]
        elif way == 6:
            document["nodes"].remove(node)
            document["free"].append([node[0], node[1], "unused"])
        else:
            document["opset"] = draw.choice((7, 13, 17, 21, 99))
        return True
    return False
