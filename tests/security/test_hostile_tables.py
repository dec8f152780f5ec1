"""Tables that are consistent, small and hostile: they end in an error, within bounds of memory."""

import csv
import hashlib
import io
import json
import os
import resource
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fuzz import tables
from harness.errors import LutCorrupt, LutError
from harness.lut.error_correlations import MAX_CORRELATED
from harness.lut.table_files import CORRELATION, ENTRIES, MANIFEST, MAX_RULES, PREDICTOR, read_lut
from harness.network.fusion.fusion_rules import FusionRule, structure_of
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.predictor.features.key_features import describe
from harness.predictor.stored_trees import MAX_BYTES, MAX_DEPTH
from harness.predictor.trees import NODE

PREDICTOR_BYTES = 512 << 20
TABLE_BYTES = 600 << 20


@pytest.fixture(autouse=True)
def bounded_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """Limit the memory of the process beyond what it has: what needs more raises MemoryError."""
    limit = TABLE_BYTES if "entries" in request.node.name else PREDICTOR_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (taken + limit, hard))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _published(parts: dict[str, bytes], root: Path) -> Path:
    """Write the parts as a table whose hashes match, as a forger would."""
    parts = tables._signed(parts)
    folder = root / f"2026-01-02-{hashlib.sha256(parts[MANIFEST]).hexdigest()[:8]}"
    folder.mkdir()
    for name, content in parts.items():
        if content:
            (folder / name).write_bytes(content)
    return folder


def _predictor() -> tuple[bytes, NDArray[Any]]:
    """Return the line of parameters of a sound predictor and its nodes."""
    line, _, nodes = tables._unpacked(tables.seeds()[2])[PREDICTOR].partition(b"\n")
    return line, np.frombuffer(nodes, NODE).copy()


def _with_predictor(content: bytes, root: Path) -> Path:
    return _published({**tables._unpacked(tables.seeds()[2]), PREDICTOR: content}, root)


def _chain(nodes: NDArray[Any], depth: int) -> NDArray[Any]:
    """Return the nodes with a first tree whose branches form a chain."""
    chain = np.zeros(2 * depth + 1, NODE)
    chain["right"][:-1:2] = np.arange(2, 2 * depth + 1, 2)
    others = nodes[3:].copy()
    others["right"] += np.where(others["right"] > 0, len(chain) - 3, 0).astype(np.int32)
    return np.concatenate([chain, others])


def _with(nodes: NDArray[Any], at: int, **fields: float) -> NDArray[Any]:
    for name, value in fields.items():
        nodes[name][at] = value
    return nodes


FORGED: dict[str, tuple[Callable[[NDArray[Any]], NDArray[Any]], str]] = {
    "chain of 300,000 branches": (lambda nodes: _chain(nodes, 300_000), "deeper than 2,000 branches"),
    "chain one branch too deep": (lambda nodes: _chain(nodes, MAX_DEPTH + 1), "deeper than 2,000 branches"),
    "branch to itself": (lambda nodes: _with(nodes, 3, right=3), "leads back, or to no node"),
    "branch to the tree before": (lambda nodes: _with(nodes, 3, right=1), "leads back, or to no node"),
    "branch below zero": (lambda nodes: _with(nodes, 3, right=-1), "leads back, or to no node"),
    "branch to nowhere": (lambda nodes: _with(nodes, 3, right=len(nodes)), "leads back, or to no node"),
    "branch to very far": (lambda nodes: _with(nodes, 3, right=2**31 - 1), "leads back, or to no node"),
    "last node is a branch": (lambda nodes: _with(nodes, -1, right=len(nodes)), "leads back, or to no node"),
    "both ways to one node": (lambda nodes: _with(nodes, 3, right=4), "are not 64 trees for each operator"),
    "branch to another tree": (lambda nodes: _with(nodes, 3, right=8), "are not 64 trees for each operator"),
    "one tree less": (lambda nodes: nodes[:-3], "are not 64 trees for each operator"),
    "one leaf more": (lambda nodes: np.concatenate([nodes, np.zeros(1, NODE)]), "are not 64 trees for each operator"),
    "no trees": (lambda nodes: nodes[:0], "are not 64 trees for each operator"),
    "very many nodes": (lambda _: np.zeros(MAX_BYTES // NODE.itemsize + 1, NODE), "larger than a predictor"),
}


@pytest.mark.parametrize("case", FORGED)
def test_nodes_that_are_no_trees_are_refused(case: str, tmp_path: Path) -> None:
    """Nodes that a layer could walk through for ever, or that belong to no tree, are refused before any is used."""
    change, why = FORGED[case]
    line, nodes = _predictor()
    table = read_lut(_with_predictor(line + b"\n" + change(nodes).tobytes(), tmp_path))
    with pytest.raises(LutCorrupt, match="not a predictor") as raised:
        _ = table.loaded_predictor
    assert why in raised.value.why and "harness lut build" in raised.value.next_step


USED: dict[str, Callable[[NDArray[Any]], object]] = {
    "unknown feature": lambda nodes: nodes["feature"].fill(2**16 - 1),
    "vote without a number": lambda nodes: nodes["number"].fill(np.nan),
    "infinite vote": lambda nodes: nodes["number"].fill(np.inf),
}


@pytest.mark.parametrize("case", USED)
def test_trees_that_give_no_latency_are_refused_when_they_are_used(case: str, tmp_path: Path) -> None:
    """Whether features exist and votes are numbers shows as soon as a layer is predicted, and ends in an error."""
    line, nodes = _predictor()
    USED[case](nodes)
    table = read_lut(_with_predictor(line + b"\n" + nodes.tobytes(), tmp_path))
    layers = [describe(entry.signature) for entry in table.entries]
    assert table.loaded_predictor is not None
    with pytest.raises(LutCorrupt, match="not a predictor"):
        table.loaded_predictor.predict_all([layer for layer in layers if layer is not None])


OTHERS = {
    "cut": lambda content: content[:-1],
    "without nodes": lambda content: content.partition(b"\n")[0],
    "an ONNX model": lambda _: b"\x08\x0a\x12\x07harness" + b"\x3a\x00" * 1_000_000,
    "a compressed file": lambda content: zlib.compress(content),
    "parameters of 20 MB": lambda content: content.replace(b"{", b"{" + b" " * (20 << 20), 1),
    "deep parameters": lambda content: b"[" * 1_000_000 + content,
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_files_are_no_predictor(case: str, tmp_path: Path) -> None:
    """A file that is cut, compressed, or of the form of earlier tables is refused."""
    content = tables._unpacked(tables.seeds()[2])[PREDICTOR]
    with pytest.raises(LutCorrupt, match="not a predictor"):
        _ = read_lut(_with_predictor(OTHERS[case](content), tmp_path)).loaded_predictor


RULES = {
    "a node in two groups": (["network 0123456789abcdef: 0 1; 1 2"], "lists a node twice"),
    "a node twice in a group": (["network 0123456789abcdef: 3 3"], "lists a node twice"),
    "a number of thousands of digits": ([f"network 0123456789abcdef: 0 {'9' * 5000}"], "not an operator"),
    "digits of another script": (["network 0123456789abcdef: 0 \u0661"], "not an operator"),
    "one rule again and again": (["Conv(x0);Relu(0)"] * 100_000, "a fusion rule twice"),
    "very many rules": ([f"Conv(x{at});Relu(0)" for at in range(MAX_RULES + 1)], "more than 2,000 fusion rules"),
}


@pytest.mark.parametrize("case", RULES)
def test_rules_that_no_device_has_are_refused(case: str, tmp_path: Path) -> None:
    """Groups that share nodes would count them twice, and every pattern takes time in every network."""
    patterns, why = RULES[case]
    parts = tables._unpacked(tables.seeds()[1])
    manifest = json.loads(parts[MANIFEST])
    manifest["rules"] = [{**manifest["rules"][0], "pattern": pattern} for pattern in patterns]
    with pytest.raises(LutCorrupt, match=why):
        read_lut(_published({**parts, MANIFEST: json.dumps(manifest).encode()}, tmp_path))


def _replace_by_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _replace_by_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", [ENTRIES, MANIFEST])
@pytest.mark.parametrize(
    "replace",
    [_replace_by_zeros, _replace_by_a_pipe, _replace_by_a_folder, lambda path: os.truncate(path, 64 << 30)],
    ids=["zeros", "pipe", "folder", "64 GiB"],
)
def test_what_is_no_file_of_a_table_is_refused(name: str, replace: Callable[[Path], None], tmp_path: Path) -> None:
    """An endless file, a pipe, a folder or a file of many gigabytes in place of a file of a table is an error."""
    folder = _published(tables._unpacked(tables.seeds()[1]), tmp_path)
    replace(folder / name)
    with pytest.raises(LutError):
        read_lut(folder)


def test_a_rule_that_lists_nodes_which_a_network_lacks_is_not_its_rule() -> None:
    """A forger can compute the hash of a network, and list nodes that it lacks: it is cut without the rule."""
    network = load_network("builtin:squeezenet", {})
    count, first = len(network.nodes), f"network {structure_of(network)}: "
    assert max(len(layer.graph.nodes) for layer in cut(network, [FusionRule(f"{first}0 {count - 1}", 1, 1)])) == 2
    assert cut(network, [FusionRule(f"{first}0 {count}", 1, 1)]) == cut(network, [])


def test_the_deepest_allowed_trees_are_loaded(tmp_path: Path) -> None:
    """A chain of as many branches as are allowed is loaded, and a layer walks through all of it."""
    line, nodes = _predictor()
    table = read_lut(_with_predictor(line + b"\n" + _chain(nodes, MAX_DEPTH).tobytes(), tmp_path))
    layers = [describe(entry.signature) for entry in table.entries]
    assert table.loaded_predictor is not None
    assert table.loaded_predictor.predict_all([layer for layer in layers if layer is not None])


def test_a_table_of_the_most_entries_takes_bounded_memory(tmp_path: Path) -> None:
    """A consistent table of 10,000 entries is read, and a sum of all of them gets its error, within 600 MB."""
    parts = tables._unpacked(tables.seeds()[1])
    header, row = list(csv.reader(io.StringIO(parts[ENTRIES].decode(), newline="")))[:2]
    signature = header.index("signature")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for number in range(MAX_CORRELATED):
        row[signature] = f"layer {number}"
        row[0] = hashlib.sha256(row[signature].encode()).hexdigest()[:16]
        writer.writerow(row)
    pairs = MAX_CORRELATED * (MAX_CORRELATED - 1) // 2
    pieces = zlib.compressobj(1)
    quarter = np.full(pairs // 9, 0.25, "<f4").tobytes()
    parts[CORRELATION] = b"".join([*(pieces.compress(quarter) for _ in range(9)), pieces.flush()])
    table = read_lut(_published({**parts, ENTRIES: text.getvalue().encode()}, tmp_path))
    spread = table.entries[0].remainder_stderr_s
    wanted = spread**2 * (MAX_CORRELATED + 2 * pairs * 0.25)
    assert table.variance(dict.fromkeys(range(MAX_CORRELATED), 1)) == pytest.approx(wanted)
