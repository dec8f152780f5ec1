"""The reader of lookup tables: changes in all four files, mostly with hashes that match again."""

import contextlib
import csv
import functools
import hashlib
import io
import json
import random
import struct
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuzz.mutation import TEXTS, json_text, mutate_bytes, mutate_json, mutate_text
from fuzz.outcome import Outcome
from fuzz.table_edits import edited
from fuzz.target import memory_folder
from harness.errors import LutError
from harness.estimation.network_estimate import estimate_network
from harness.latency.overhead import COLUMNS, Coefficient, Overhead
from harness.lut.error_correlations import pack
from harness.lut.table import Entry, Lut
from harness.lut.table_files import CHAINS, CORRELATION, ENTRIES, MANIFEST, PREDICTOR, publish, read_lut
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.predictor.features.key_features import describe

_PARTS = (MANIFEST, ENTRIES, CORRELATION, PREDICTOR, CHAINS)
_LENGTH = struct.Struct(">I")
_SIGNED = 0.9
_EDITED = 0.7
_ESTIMATED = 4
"""A network is estimated from one table in so many."""
_CREATED = "2026-01-02T03:04:05+00:00"
_ODD = (0.0, 1e-38, -1e38, 1e38, float("inf"), float("-inf"), float("nan"))


def read(data: bytes, folder: Path) -> Outcome:
    """Write the parts as a table in a folder with the matching name, read it and use all of it."""
    parts = _unpacked(data)
    choice = zlib.crc32(data)
    digest = hashlib.sha256(parts[MANIFEST]).hexdigest()[:8]
    table_folder = folder / f"2026-01-02-{digest}"
    table_folder.mkdir(exist_ok=True)
    for name, content in parts.items():
        if content or name in (MANIFEST, ENTRIES):
            (table_folder / name).write_bytes(content)
    try:
        table = read_lut(table_folder)
        _use(table, choice)
    except LutError:
        return Outcome.REFUSED
    finally:
        for name in _PARTS:
            (table_folder / name).unlink(missing_ok=True)
        table_folder.rmdir()
    return Outcome.ACCEPTED


def _use(table: Lut, choice: int) -> None:
    if choice % _ESTIMATED == 0:
        estimate_network(_network(), table)
    if table.entries:
        table.variance({0: 1, len(table.entries) - 1: 2})
    repr((table.name, table.visits, table.displacement, table.overhead.a, table.by_place))
    predictor = table.loaded_predictor
    if predictor is not None:
        described = [describe(entry.signature) for entry in table.entries[:3]]
        layers = [layer for layer in described if layer is not None]
        known = zip(layers, predictor.knows(layers), strict=True)
        predictor.predict_all([layer for layer, is_known in known if is_known])


@functools.cache
def _network() -> Network:
    return load_network("builtin:dscnn")


@functools.cache
def seeds() -> list[bytes]:
    """Return published tables: empty, with entries, and with a predictor."""
    with tempfile.TemporaryDirectory() as root:
        tables = [table_of(count, learn) for count, learn in ((0, False), (5, False), (8, True))]
        return [_packed(_files(publish(table, Path(root) / str(at)))) for at, table in enumerate(tables)]


def _files(table: Lut) -> dict[str, bytes]:
    return {name: path.read_bytes() for name in _PARTS if (path := table.path / name).exists()}


def table_of(count: int, learn: bool) -> Lut:
    """Return a table of so many layers of real networks, with a predictor if it shall `learn`."""
    import numpy as np

    entries = tuple(_entry(number) for number in range(count))
    coefficients = {name: Coefficient(1e-9, 1e-11, 0.98e-9, 1.02e-9) for name in COLUMNS}
    covariance = tuple(tuple(1e-22 * (i == j) for j in range(len(COLUMNS))) for i in range(len(COLUMNS)))
    return Lut(
        path=Path(),
        device="board",
        created=_CREATED,
        clock="device",
        method="joint",
        fingerprint={"cpu": "x", "runtime": "y 1"},
        overhead=Overhead(coefficients, covariance, {"runs": 1e-4}, 0.99, 0.98, 12.0, 0.01, 25),
        rules=DEFAULT_RULES[:3],
        entries=entries,
        correlations=pack(np.eye(count) + 0.25) if count else b"",
        predictor=_predictor(entries) if learn else b"",
    )


def _predictor(entries: tuple[Entry, ...]) -> bytes:
    """Return a predictor whose trees have one branch; others would take seconds to train."""
    import numpy as np

    from harness.predictor.bounds import bounds_of
    from harness.predictor.features.layer_arrays import layer_arrays
    from harness.predictor.roofline.device_tiling import DeviceTiling
    from harness.predictor.roofline.roofline_fit import fit_roofline
    from harness.predictor.stored_parameters import Parameters
    from harness.predictor.stored_trees import write_predictor
    from harness.predictor.trees import NODE, VOTES, NoTrees
    from harness.predictor.uncertainty.coverage import Coverage, hull_of
    from harness.predictor.uncertainty.intervals import ANY, Calibration, Scale

    found = [(describe(entry.signature), entry.latency_s) for entry in entries]
    known = {layer: latency_s for layer, latency_s in found if layer is not None}
    work = layer_arrays(list(known))
    latency_s = np.array(list(known.values()))
    roofline = fit_roofline(work, latency_s, DeviceTiling(1, 1, 1), iterations=3)
    operators = tuple(sorted(set(work.operators)))
    calibration = Calibration({ANY: Scale(0.1, 1e-4, 0.2, 1e-6)}, {(ANY, coverage): 1.0 for coverage in Coverage}, 1.0)
    bounds = bounds_of(work, latency_s, np.zeros(len(work)))
    parameters = Parameters(roofline, hull_of(work, operators), bounds, calibration)
    tree = np.array([(0, 1.0, 2), (0, 0.01, 0), (0, -0.01, 0)], NODE)
    return write_predictor(parameters, [NoTrees((tree,) * VOTES)] * len(operators))


def _entry(number: int) -> Entry:
    signature = layer_signatures()[number]
    return Entry(
        key=hashlib.sha256(signature.encode()).hexdigest()[:16],
        context=("outside", "chip,outside", "chip@0123abcd")[number % 3],
        op="Conv+Relu",
        latency_s=1e-5 * (number + 1),
        stderr_s=1e-7,
        samples=10,
        resolved=number % 4 != 0,
        visit="cold",
        flags="",
        networks="0123abcd",
        campaign=1,
        probe=f"p{number}",
        baseline="",
        signature=signature,
        remainder_s=1e-5 * (number + 1) if number % 4 else -1e-7,
        remainder_stderr_s=1e-7,
    )


@functools.cache
def layer_signatures() -> list[str]:
    """Return signatures of real layers."""
    from harness.network.layers import cut

    networks = [load_network(f"builtin:{name}") for name in ("dscnn", "squeezenet")]
    return sorted({layer.key.text for network in networks for layer in cut(network, DEFAULT_RULES)})


def mutate(data: bytes, draw: random.Random) -> bytes:
    """Change one file along its structure, then mostly update hashes, keys and the number of entries."""
    if draw.random() < 0.03:
        return mutate_bytes(data, draw)
    parts = _unpacked(data)
    if draw.random() < _EDITED and (changed := _edited(parts, draw)) is not None:
        return _packed(changed)
    name = draw.choice((MANIFEST, ENTRIES, ENTRIES, CORRELATION, PREDICTOR, CHAINS))
    if name == MANIFEST:
        with contextlib.suppress(ValueError, RecursionError):
            parts[name] = json_text(mutate_json(json.loads(parts[name]), draw), draw)
    elif name in (ENTRIES, CHAINS):
        parts[name] = _mutated_rows(parts[name], draw)
    elif name == CORRELATION:
        parts[name] = _mutated_correlation(parts[name], draw)
    else:
        parts[name] = _mutated_predictor(parts[name], draw)
    return _packed(_signed(parts) if draw.random() < _SIGNED else parts)


def _edited(parts: dict[str, bytes], draw: random.Random) -> dict[str, bytes] | None:
    """Return the parts of a table after a change that keeps it consistent; None for parts that are no table."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as root:
        folder = Path(root) / f"x-{hashlib.sha256(parts[MANIFEST]).hexdigest()[:8]}"
        folder.mkdir()
        for name, content in parts.items():
            if content or name in (MANIFEST, ENTRIES):
                (folder / name).write_bytes(content)
        try:
            table = edited(read_lut(folder), layer_signatures(), draw)
            return _files(publish(replace(table, device="board", created=_CREATED), Path(root)))
        except (LutError, ValueError):
            return None


def _mutated_rows(content: bytes, draw: random.Random) -> bytes:
    rows = list(csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline="")))
    if len(rows) < 2 or draw.random() < 0.2:
        return mutate_bytes(content, draw)
    at = draw.randrange(0 if draw.random() < 0.1 else 1, len(rows))
    kind = draw.randrange(6)
    if kind == 0:
        del rows[at]
    elif kind == 1:
        rows.insert(at, list(rows[at]))
    elif rows[at]:
        cell = draw.randrange(len(rows[at]))
        others = ("nan", "inf", "-1", "0", "1e400", "1e-320", "9" * 5000, "0x1", " 1 ", "1_0", "١", "TRUE", *TEXTS)
        rows[at][cell] = mutate_text(rows[at][cell], draw) if kind == 2 else draw.choice(others)
        signature = rows[at][-1]
        if draw.random() < 0.8:
            rows[at][0] = hashlib.sha256(signature.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    text = io.StringIO()
    csv.writer(text, lineterminator=draw.choice(("\n", "\n", "\r\n"))).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def _mutated_correlation(content: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.3:
        return mutate_bytes(content, draw)
    try:
        plain = bytearray(zlib.decompress(content))
    except zlib.error:
        plain = bytearray(40)
    numbers = (float("nan"), float("inf"), 1.5, -1.0, 1.0, 1e-45)
    if draw.random() < 0.7 and len(plain) >= 4:
        struct.pack_into("<f", plain, 4 * draw.randrange(len(plain) // 4), draw.choice(numbers))
    else:
        plain += bytes(draw.choice((1, 4, 1 << 20)))
    return zlib.compress(bytes(plain)) + draw.choice((b"", b"", b"x"))


def _mutated_predictor(content: bytes, draw: random.Random) -> bytes:
    parameters, end, nodes = content.partition(b"\n")
    if draw.random() < 0.5:
        with contextlib.suppress(ValueError, RecursionError):
            parameters = json_text(mutate_json(json.loads(parameters), draw), draw).replace(b"\n", b" ")
    elif nodes and draw.random() < 0.9:
        nodes = mutated_nodes(nodes, draw)
    else:
        return mutate_bytes(content, draw)
    return parameters + end + nodes


def mutated_nodes(content: bytes, draw: random.Random) -> bytes:
    """Change a field of a few nodes."""
    import numpy as np

    from harness.predictor.trees import NODE

    nodes = np.frombuffer(content[: len(content) // NODE.itemsize * NODE.itemsize], NODE).copy()
    for _ in range(draw.choice((1, 1, 2, 4)) if len(nodes) else 0):
        at, name = draw.randrange(len(nodes)), draw.choice(NODE.names or ())
        own = nodes[name][at].item()
        value = draw.choice((0, 1, -1, at, at + 1, at + 2, len(nodes) - 1, len(nodes), 2**31 - 1, own))
        if name == "number":
            value = draw.choice((value, *_ODD))
        nodes[name][at] = value % 2**16 if name == "feature" else value
    return nodes.tobytes()


def _signed(parts: dict[str, bytes]) -> dict[str, bytes]:
    """Return the parts with a manifest whose hashes and number of entries match them."""
    try:
        manifest: Any = json.loads(parts[MANIFEST])
    except (ValueError, RecursionError):
        return parts
    if not isinstance(manifest, dict):
        return parts
    held = {name: content for name, content in parts.items() if name != MANIFEST and (content or name == ENTRIES)}
    manifest["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in held.items()}
    rows = csv.reader(io.StringIO(parts[ENTRIES].decode("utf-8", "replace"), newline=""))
    with contextlib.suppress(csv.Error):
        manifest["entries"] = max(0, sum(1 for _ in rows) - 1)
    return {**parts, MANIFEST: json.dumps(manifest).encode()}


def _packed(parts: dict[str, bytes]) -> bytes:
    contents = [parts.get(name, b"") for name in _PARTS]
    return b"".join(_LENGTH.pack(len(content)) + content for content in contents)


def _unpacked(data: bytes) -> dict[str, bytes]:
    parts = {}
    for name in _PARTS:
        length = _LENGTH.unpack_from(data)[0] if len(data) >= 4 else 0
        parts[name], data = data[4 : 4 + length], data[4 + length :]
    return parts
