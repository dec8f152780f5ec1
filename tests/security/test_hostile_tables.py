"""Tables that are consistent, small and hostile: they end in an error, within bounds of memory."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import resource
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from fuzz import tables
from harness.errors import LutCorrupt
from harness.lut.error_correlations import MAX_CORRELATED
from harness.lut.table_files import CORRELATION, ENTRIES, MANIFEST, MAX_RULES, PREDICTOR, read_lut
from harness.network.fusion.fusion_rules import FusionRule, structure_of
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.predictor.stored_graph import MAX_DEPTH

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


def _model() -> onnx.ModelProto:
    return onnx.ModelProto.FromString(tables._unpacked(tables.seeds()[2])[PREDICTOR])


def _with_predictor(model: bytes, root: Path) -> Path:
    return _published({**tables._unpacked(tables.seeds()[2]), PREDICTOR: model}, root)


def _set(node: NodeProto, **values: Any) -> None:
    others = [item for item in node.attribute if item.name not in values]
    items = [*others, *(helper.make_attribute(name, value) for name, value in values.items())]
    del node.attribute[:]
    node.attribute.extend(sorted(items, key=lambda item: item.name))


def _chain(model: onnx.ModelProto, depth: int, **changed: Any) -> None:
    """Replace the trees by one whose branches form a chain."""
    values: dict[str, Any] = {
        "tree_roots": [0],
        "nodes_featureids": [0] * depth,
        "nodes_splits": numpy_helper.from_array(np.zeros(depth, np.float32), "splits"),
        "nodes_modes": numpy_helper.from_array(np.zeros(depth, np.uint8), "modes"),
        "nodes_truenodeids": [*range(depth)],
        "nodes_falsenodeids": [*range(1, depth), depth],
        "nodes_trueleafs": [1] * depth,
        "nodes_falseleafs": [*([0] * (depth - 1)), 1],
        "leaf_targetids": [0] * (depth + 1),
        "leaf_weights": numpy_helper.from_array(np.zeros(depth + 1, np.float32), "weights"),
    }
    _set(model.graph.node[0], **{**values, **changed})


def _replace(model: onnx.ModelProto, name: str, values: Any) -> None:
    (tensor,) = (one for one in model.graph.initializer if one.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(values), name))


def _broadcast(model: onnx.ModelProto) -> None:
    _replace(model, "upper", np.zeros(50_000, np.int64))
    _replace(model, "half", np.zeros((25_000, 1, 1), np.float32))


def _outside(model: onnx.ModelProto, name: str) -> None:
    attribute: AttributeProto = next(item for item in model.graph.node[0].attribute if item.name == name)
    attribute.t.ClearField("raw_data")
    attribute.t.data_location = TensorProto.EXTERNAL
    attribute.t.external_data.add(key="location", value="entries.csv")


FORGED = {
    "chain of 300,000 branches": lambda model: _chain(model, 300_000),
    "chain one branch too deep": lambda model: _chain(model, MAX_DEPTH + 1),
    "ring": lambda model: _chain(
        model, 3, nodes_falsenodeids=[3, 2, 1], nodes_falseleafs=[1, 0, 0], leaf_targetids=[0] * 4
    ),
    "shared branch": lambda model: _chain(model, 3, nodes_falsenodeids=[1, 1, 3]),
    "branch to nowhere": lambda model: _chain(model, 3, nodes_falsenodeids=[1, 7, 3]),
    "leaf below zero": lambda model: _chain(model, 3, nodes_truenodeids=[0, -1, 2]),
    "flag of two": lambda model: _chain(model, 3, nodes_trueleafs=[1, 2, 1]),
    "lists of different lengths": lambda model: _chain(model, 3, nodes_truenodeids=[0, 1]),
    "unknown target": lambda model: _chain(model, 3, leaf_targetids=[0, 1, 2, 10**9]),
    "unknown feature": lambda model: _chain(model, 3, nodes_featureids=[0, 10**9, 0]),
    "branches of another kind": lambda model: _chain(
        model, 1, nodes_modes=numpy_helper.from_array(np.full(1, 7, np.uint8), "modes")
    ),
    "another aggregate": lambda model: _set(model.graph.node[0], aggregate_function=0),
    "many targets": lambda model: _set(model.graph.node[0], n_targets=10**9),
    "broadcast": _broadcast,
    "constant of other values": lambda model: _replace(model, "middle", np.array([0, 31])),
    "another operator": lambda model: setattr(model.graph.node[5], "op_type", "Mul"),
    "one operator more": lambda model: model.graph.node.append(helper.make_node("Add", ["high", "low"], ["more"])),
    "splits in a file": lambda model: _outside(model, "nodes_splits"),
    "weights in a file": lambda model: _outside(model, "leaf_weights"),
    "empty operators": lambda model: model.graph.node.extend([NodeProto()] * 100_000),
    "empty graphs in an attribute": lambda model: (
        model.graph.node[0].attribute[0].graphs.extend([onnx.GraphProto()] * 100_000)
    ),
    "function": lambda model: model.functions.append(helper.make_function("d", "F", [], [], [], [])),
    "description": lambda model: setattr(model, "doc_string", "x"),
    "wide input": lambda model: setattr(model.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 1 << 40),
}


@pytest.mark.parametrize("case", FORGED)
def test_another_graph_than_that_of_a_predictor_is_refused(case: str, tmp_path: Path) -> None:
    """A predictor whose graph is not exactly what the program writes is refused before anything runs it."""
    model = _model()
    FORGED[case](model)
    table = read_lut(_with_predictor(model.SerializeToString(), tmp_path))
    with pytest.raises(LutCorrupt, match="not a predictor") as raised:
        _ = table.loaded_predictor
    assert raised.value.why and raised.value.next_step


@pytest.mark.parametrize("part", [b"\x3a\x00", b"\x0a\x00", b"\x72\x00", b"\xff" * 9, b"\x0b"])
def test_millions_of_empty_messages_are_not_parsed(part: bytes, tmp_path: Path) -> None:
    """Messages of two bytes, of which a parser makes hundreds, are refused unparsed, as are bytes that are none."""
    body = part * 1_000_000
    for content in (body, b"\x3a" + _varint(2 * len(body)) + b"\x0a\x00" * len(body)):
        table = read_lut(_with_predictor(content, tmp_path))
        with pytest.raises(LutCorrupt, match="not a predictor"):
            _ = table.loaded_predictor


def _varint(value: int) -> bytes:
    return bytes([*((value >> shift & 0x7F) | 0x80 for shift in range(0, 28, 7)), value >> 28])


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


def test_a_rule_that_lists_nodes_which_a_network_lacks_is_not_its_rule() -> None:
    """A forger can compute the hash of a network, and list nodes that it lacks: it is cut without the rule."""
    network = load_network("builtin:squeezenet", {})
    count, first = len(network.nodes), f"network {structure_of(network)}: "
    assert max(len(layer.graph.nodes) for layer in cut(network, [FusionRule(f"{first}0 {count - 1}", 1, 1)])) == 2
    assert cut(network, [FusionRule(f"{first}0 {count}", 1, 1)]) == cut(network, [])


def test_the_deepest_allowed_trees_are_loaded(tmp_path: Path) -> None:
    """A chain of as many branches as are allowed is loaded: the limit is far from where ONNX Runtime ends."""
    model = _model()
    _chain(model, MAX_DEPTH)
    assert read_lut(_with_predictor(model.SerializeToString(), tmp_path)).loaded_predictor is not None


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
