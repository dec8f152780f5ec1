"""Faults that fuzzing found: inputs that once ended in a traceback, or were read as something else."""

import hashlib
import json
from pathlib import Path

import pytest
from fuzz_inputs import is_accepted, read_in_bounds

from fuzz import journal, networks, revealed, tables
from fuzz.outcome import Outcome
from harness.errors import LutCorrupt
from harness.lut.error_correlations import MAX_CORRELATED
from harness.lut.table_files import read_lut

SSH = '[devices.a]\ntransport = "ssh"\nhost = "h"\nuser = "u"\nidentity = '
FOUND_DEVICES = {
    "integer of thousands of digits": f'{SSH}"key"\nport = {"1" * 5000}',
    "transport of thousands of digits": f"[devices.a]\ntransport = 0x{'f' * 5000}",
    "backend of thousands of digits": f"[devices.a]\nbackend = 0x{'f' * 5000}",
    "no element of two": "[devices.a]\ngolden_ms = []",
    "option of thousands of digits": f"[devices.a]\noptions = {{threads = 0x{'f' * 5000}}}",
    "home of nobody": f'{SSH}"~nobody-here/key"',
    "known hosts of nobody": f'{SSH}"key"\nknown_hosts = "~nobody-here/key"',
    "zero byte in a path": f'{SSH}"a\\u0000b"',
}


@pytest.mark.parametrize("case", FOUND_DEVICES)
def test_found_devices_files_are_refused(case: str) -> None:
    """Inventories that once caused a traceback are refused."""
    assert not is_accepted("devices", FOUND_DEVICES[case].encode())


def _changed_network(change: str) -> bytes:
    import onnx

    model = onnx.ModelProto.FromString(networks.seeds()[3])
    if change == "two opsets":
        model.opset_import.append(onnx.helper.make_opsetid("ai.onnx", 0))
        return model.SerializeToString()
    text = {"location": b"weights.bin", "dimension": b"batch", "key": b"offset"}[change]
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    content = model.SerializeToString()
    assert text in content
    return content.replace(text, b"\xff" * len(text))


@pytest.mark.parametrize("change", ["two opsets", "location", "dimension", "key"])
def test_found_networks_are_refused(change: str) -> None:
    """Networks with two opsets, and text that is not UTF-8 outside the names of nodes, are refused."""
    assert not is_accepted("networks", _changed_network(change))


def test_constant_of_no_element_type_is_refused() -> None:
    """A constant whose element type does not exist is a damaged network."""
    import onnx

    model = onnx.ModelProto.FromString(networks.seeds()[0])
    (constant, *_) = (node for node in model.graph.node if node.op_type == "Constant")
    for number in (-1, (1 << 31) - 1):
        constant.attribute[0].t.data_type = number
        assert not is_accepted("networks", model.SerializeToString())


def test_axis_that_a_tensor_does_not_have_is_refused() -> None:
    """An axis that ONNX's shape inference does not check is refused; it once ended the choice of probes."""
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, kind, [2, 3]) for name, kind in (("x", 1), ("i", 7), ("y", 1))]
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("GatherElements", ["r", "i"], ["y"], axis=5)]
    graph = helper.make_graph(nodes, "g", ends[:2], ends[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert read_in_bounds("networks", model.SerializeToString()) is Outcome.CHECKED
    model.graph.node[1].attribute[0].i = -2
    assert ends[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert is_accepted("networks", model.SerializeToString())


def test_operator_that_reads_nothing_is_part_of_a_layer() -> None:
    """A layer can read random numbers, which an operator without inputs writes."""
    from onnx import helper

    ends = [helper.make_tensor_value_info(name, 1, [2, 3]) for name in ("x", "y")]
    nodes = [helper.make_node("RandomNormal", [], ["r"], shape=[2, 3]), helper.make_node("Add", ["x", "r"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert is_accepted("networks", model.SerializeToString())


def test_revealed_layers_that_read_each_other_are_measured_in_windows() -> None:
    """A device may report layers of which each reads a result of the other; their window has each node once."""
    import json

    form = revealed.seeds()[1]
    names = [layer["nodes"][0] for layer in json.loads(form[2:])["layers"]]
    layers = [{"name": "a", "nodes": [names[0], names[2]]}, {"name": "b", "nodes": names[1:2]}]
    layers += [{"name": name, "nodes": [name]} for name in names[3:]]
    report = {"layers": layers, "free_nodes": [], "chains": [[0, 1]]}
    assert is_accepted("revealed", form[:2] + json.dumps(report).encode())


def test_revealed_names_that_are_no_text_are_refused() -> None:
    """A graph of ONNX Runtime whose constant has a name that is not UTF-8 is refused."""
    import onnx

    seed = next(one for one in revealed.seeds() if one[1] == 0)
    model = onnx.ModelProto.FromString(seed[2:])
    model.graph.initializer.add(name="zzzz", data_type=1)
    content = seed[:2] + model.SerializeToString().replace(b"zzzz", b"\xff\xfe\xff\xfe")
    assert not is_accepted("revealed", content)


FOUND_JOURNALS = {
    "schema that is not text": [
        ("UPDATE sqlite_master SET name=CAST(x'ff' AS TEXT), sql='CREATE' WHERE name='series'", "schema")
    ],
    "lost digests and another sample": [("DELETE FROM digests", ""), ("UPDATE samples SET device_ns=device_ns+1", "")],
    "no purpose": [("UPDATE campaigns SET settings='{}'", "")],
}


@pytest.mark.parametrize("case", FOUND_JOURNALS)
def test_found_journals_are_refused(case: str) -> None:
    """Journals that once ended in a traceback, or opened with other contents unnoticed, are refused."""
    with journal._in_memory(journal.seeds()[0][1:]) as db:
        for statement, needs in FOUND_JOURNALS[case]:
            db.execute(f"PRAGMA writable_schema={'ON' if needs else 'OFF'}")
            db.execute(statement)
        content = journal._serialised(db, journal.seeds()[0][1:])
    assert not is_accepted("journal", b"J" + content)


def test_journal_whose_index_hides_samples_gives_no_table() -> None:
    """Samples are found through an index: one that lacks a campaign's series makes the campaign altered."""
    content = bytearray(journal.seeds()[0][1:])
    with journal._in_memory(bytes(content)) as db:
        query = "SELECT rootpage FROM sqlite_master WHERE name='sqlite_autoindex_series_1'"
        (page,) = db.execute(query).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    at = (page - 1) * size
    content[at : at + 8] = b"\x0a\0\0\0\0" + content[at + 5 : at + 8]  # a leaf without cells
    assert not is_accepted("journal", b"J" + bytes(content))


def test_journal_that_lists_a_campaign_and_cannot_find_it_is_refused() -> None:
    """Rows out of order are listed and not found by their numbers; one of them is also unreadable."""
    with journal._in_memory(journal.seeds()[0][1:]) as db:
        db.execute("UPDATE campaigns SET settings='['")
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name='campaigns'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
        (count,) = db.execute("SELECT count(*) FROM campaigns").fetchone()
        content = bytearray(db.serialize())
    at = (page - 1) * size
    assert content[at] == 13 and count > 1  # a leaf with several rows
    pointers = slice(at + 8, at + 8 + 2 * count)
    rows = [bytes(content[place : place + 2]) for place in range(pointers.start, pointers.stop, 2)]
    content[pointers] = b"".join(reversed(rows))
    assert not is_accepted("journal", b"J" + bytes(content))


def test_network_whose_values_tell_a_huge_size_is_refused() -> None:
    """A constant that an operator would expand to many gigabytes is refused without running the operator."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    values = {
        "one": np.ones((1, 1, 1, 1), np.float32),
        "index": np.zeros((1, 1, 1, 1), np.int64),
        "shape": np.array([1, 1, 1 << 16, 1 << 16]),
    }
    nodes = [
        helper.make_node("MaxUnpool", ["one", "index", "shape"], ["huge"], kernel_shape=[1, 1]),
        helper.make_node("Add", ["x", "huge"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "bomb", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert not is_accepted("networks", model.SerializeToString())


def test_table_of_too_many_entries_is_refused(tmp_path: Path) -> None:
    """A table whose correlations would not fit into memory is refused before they are unpacked."""
    parts = tables._unpacked(tables.seeds()[1])
    header = parts[tables.ENTRIES].decode().splitlines()[0]
    signatures = [f"layer {number}" for number in range(MAX_CORRELATED + 1)]
    keys = [hashlib.sha256(signature.encode()).hexdigest()[:16] for signature in signatures]
    middle = "chip,Conv,1e-05,1e-07,10,1,cold,,0123abcd,1,p,"
    rows = [f"{key},{middle},{signature},1e-05,1e-07" for key, signature in zip(keys, signatures, strict=True)]
    manifest = json.loads(parts[tables.MANIFEST])
    parts[tables.MANIFEST] = json.dumps({**manifest, "entries": len(rows)}).encode()
    parts[tables.ENTRIES] = "\n".join([header, *rows]).encode()
    parts = tables._signed(parts)
    folder = tmp_path / f"2026-01-02-{hashlib.sha256(parts[tables.MANIFEST]).hexdigest()[:8]}"
    folder.mkdir()
    for name in (tables.MANIFEST, tables.ENTRIES, tables.CORRELATION):
        (folder / name).write_bytes(parts[name])
    with pytest.raises(LutCorrupt, match="more than 10,000 entries"):
        read_lut(folder)


def _changed_predictor(change: str) -> bytes:
    import json

    parts = tables._unpacked(tables.seeds()[2])
    line, end, nodes = parts[tables.PREDICTOR].partition(b"\n")
    content = json.loads(line)
    if change == "usual":
        content["calibration"]["usual"] = []
    elif change == "expected":
        content["calibration"]["expected"] = 0.5
    elif change == "overflow":
        content["roofline"]["overlap"] = 1e300
    elif change == "unit":
        content["steps"]["units"] = 0
    line = json.dumps(content).encode()
    if change == "text":
        line = line.replace(b'"roofline"', b'"rooflin\xb9"')
    parts[tables.PREDICTOR] = line + end + nodes
    return tables._packed(tables._signed(parts))


@pytest.mark.parametrize("change", ["usual", "expected", "overflow", "unit", "text"])
def test_found_predictors_are_refused(change: str) -> None:
    """Predictors whose parameters have the wrong type or give no latency are refused when they are used."""
    assert not is_accepted("tables", _changed_predictor(change))


@pytest.mark.parametrize("place", ["entry", "coefficient", "share"])
def test_numbers_whose_squares_are_infinite_are_refused(place: str) -> None:
    """Tables of astronomic numbers, whose variance no estimate could add, are refused when they are read."""
    import json

    parts = tables._unpacked(tables.seeds()[1])
    manifest = json.loads(parts[tables.MANIFEST])
    if place == "entry":
        parts[tables.ENTRIES] = parts[tables.ENTRIES].replace(b"1.000000e-05", b"1.000000e200")
    elif place == "coefficient":
        manifest["overhead"]["coefficients"]["input_bytes"]["stderr"] = 1e200
    else:
        manifest["repeatability"] = 1e200
    parts[tables.MANIFEST] = json.dumps(manifest).encode()
    assert not is_accepted("tables", tables._packed(tables._signed(parts)))
