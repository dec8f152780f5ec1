"""The ONNX reader as the isolated process runs it, and what harness does with the networks that it returns.

Most networks are edited so that they stay valid; the others are changed blindly, in any field of the format.
"""

import functools
import random
import tempfile
import time
import zlib
from pathlib import Path

from fuzz import network_seeds
from fuzz.edits import EDITS
from fuzz.edits.draft import BOUND_DIMS, edited
from fuzz.edits.tensors import WEIGHTS, WEIGHTS_BYTES
from fuzz.limits import TooLong, limited
from fuzz.mutation import mutate_bytes, mutate_message
from fuzz.network_use import BATCH, round_trip, set_batch, use
from fuzz.outcome import Outcome
from harness.errors import NetworkError
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.network.reading.limited_reading import prepared
from harness.network.reading.limits import READING
from harness.network.reading.network_codec import encode_network
from harness.network.reading.read import read_model

_COMPARED = 32
"""One network in so many is also read by the isolated process, which must find the same."""
_BATCHED = 8
"""One network in so many is given another batch."""


def read(data: bytes, folder: Path) -> Outcome:
    """Read a file in a folder that also has a file of weights, and a link to a file outside; use what was read.

    The limits of the isolated process hold here, too: an input that reaches them is passed to that process, which must
    refuse it.
    """
    path = _written(data, folder)
    choice = zlib.crc32(data)
    batch = BATCH if choice % _BATCHED == 0 else None
    try:
        with limited(len(data)):
            outcome, network = _read_here(path)
            if network is not None:
                content = round_trip(network)
                if batch:
                    set_batch(network)
    except (MemoryError, TooLong):
        return isolated(path, batch)
    if network is None:
        return outcome
    if choice // _BATCHED % _COMPARED == 0 and encode_network(_isolated(path)) != content:
        raise AssertionError("the isolated process reads another network")
    use(network, choice // _BATCHED // _COMPARED)
    return outcome


def _written(data: bytes, folder: Path) -> Path:
    weights = folder / WEIGHTS
    if not weights.exists():
        weights.write_bytes(bytes(WEIGHTS_BYTES))
        (folder / "link.bin").symlink_to("/etc/hostname")
    path = folder / "network.onnx"
    path.write_bytes(data)
    return path


def _read_here(path: Path) -> tuple[Outcome, Network | None]:
    """Do what the isolated process does."""
    try:
        file = read_model(path)
    except NetworkError:
        return Outcome.REFUSED, None
    try:
        network = prepared(file, BOUND_DIMS, None)
    except NetworkError:
        return Outcome.CHECKED, None
    return Outcome.ACCEPTED, network


def isolated(path: Path, batch: int | None = None) -> Outcome:
    """Read a file in the isolated process, which must answer or be ended within its limits."""
    started_s = time.monotonic()
    try:
        _isolated(path, batch)
    except NetworkError as error:
        if time.monotonic() - started_s > READING.limits(path.stat().st_size).wall_s:
            raise AssertionError("the isolated process was not ended in time") from error
        return Outcome.STOPPED if "takes more than" in str(error) else Outcome.REFUSED
    return Outcome.ACCEPTED


def _isolated(path: Path, batch: int | None = None) -> Network:
    return load_network(str(path), BOUND_DIMS, batch)


@functools.cache
def seeds() -> list[bytes]:
    """Return small networks for each part of the reader, and edited copies of them."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        edited_ones = [one for one in network_seeds.richer() if _read_here(_written(one, folder))[1] is not None]
    return [*network_seeds.plain(), *edited_ones]


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Mostly edit the network so that it stays valid; sometimes change any field, or bytes."""
    import onnx
    from google.protobuf.message import DecodeError

    blind = draw.random()
    if blind < 0.05:
        return mutate_bytes(data, draw)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return mutate_bytes(data, draw)
    if blind < 0.8:
        changed = edited(model, draw, EDITS)
        if changed is not None:
            return bytes(changed.SerializeToString())
    for _ in range(draw.choice((1, 1, 2, 3))):
        if draw.random() < 0.25 and model.graph.node:
            draw.choice(model.graph.node).op_type = draw.choice(_operators())
        else:
            mutate_message(model, draw)
    return bytes(model.SerializeToString())


@functools.cache
def _operators() -> list[str]:
    from onnx import defs

    return sorted({schema.name for schema in defs.get_all_schemas() if schema.domain == ""})
