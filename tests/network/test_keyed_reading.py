"""Networks as keys of layers: from the cache exactly what reading the file gives."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from nullbench import build_network
from onnx import TensorProto, helper, numpy_helper

from harness import cache
from harness.errors import InvalidNetwork, NetworkError, NetworksRefused, UnresolvedDimension
from harness.network import keyed_reading, network_list
from harness.network.documents import decode_document, encode
from harness.network.fusion.fusion_rules import DEFAULT_RULES, UNSIGNED_PAIRS, FusionRule
from harness.network.keyed_network import KeyedAnswer, KeyedNetwork, encode_keyed, keyed, keyed_of
from harness.network.keyed_reading import KeyedReader, read_keyed_networks
from harness.network.model_references import BUILTIN_NAMES, ModelContent, load_network, model_path
from harness.network.network_list import read_networks
from harness.network.reading.limits import READING


def encode_document(header: bytes) -> bytes:
    """Return an entry of the cache whose document is these bytes."""
    return 2 * len(header).to_bytes(8, "big") + header


FAST = ("squeezenet", "bert_mini")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    folder = tmp_path / "own cache"
    monkeypatch.setenv(cache.VARIABLE, str(folder))
    return folder / "results"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read, as messages show them."""
    found: list[str] = []
    read = KeyedReader._read

    def counted(self: KeyedReader, *arguments: object) -> object:
        found.append(str(arguments[0]))
        return read(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(KeyedReader, "_read", counted)
    return found


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(one, marks=pytest.mark.long) for one in BUILTIN_NAMES if one not in FAST)]
)
def test_a_cached_network_is_the_one_that_was_read(name: str, reads: list[str], tmp_path: Path) -> None:
    """For every built-in network, and for its file, the cache returns what cutting the network gives."""
    wanted = keyed(load_network(f"builtin:{name}"), DEFAULT_RULES)
    with model_path(f"builtin:{name}") as path:
        file = str(path.rename(tmp_path / f"{name}.onnx"))
        path.touch()
    for reference in (f"builtin:{name}", file):
        first = KeyedReader(DEFAULT_RULES).load(reference)
        again = KeyedReader(DEFAULT_RULES).load(reference)
        assert first == again
        assert (first.layers, first.free, first.weight_bytes) == (wanted.layers, wanted.free, wanted.weight_bytes)
    assert len(reads) == 2


WRONG = (b"", b"\xff\xfe" * 40, b"null", b"{}", b"[]", b"[" * 100_000, b'{"layers":[]}', b"1" * 5000)


@pytest.mark.parametrize("content", [*WRONG, *(encode_document(one) for one in WRONG)])
def test_a_wrong_answer_in_the_cache_is_computed_anew(
    content: bytes, reads: list[str], folder: Path, tmp_path: Path
) -> None:
    """Whatever an entry of the cache holds, the network is read again, and then comes from the cache."""
    network = str(build_network(tmp_path / "net.onnx"))
    wanted = KeyedReader(DEFAULT_RULES).load(network)
    (entry,) = folder.iterdir()
    cache.put(entry.name, content)
    for _ in range(2):
        assert KeyedReader(DEFAULT_RULES).load(network) == wanted
    assert len(reads) == 2


def test_the_cache_depends_on_content_not_on_the_path(reads: list[str], tmp_path: Path) -> None:
    """A copy under another name is not read again and carries its own name; a changed file of equal size is read."""
    path = build_network(tmp_path / "one.onnx")
    reader = KeyedReader(DEFAULT_RULES)
    first = reader.load(str(path))
    copy = tmp_path / "two.onnx"
    copy.write_bytes(path.read_bytes())
    second = reader.load(str(copy))
    assert (second.name, second.file, second.layers) == ("two", str(copy), first.layers)
    assert len(reads) == 1
    before = path.stat()
    model = onnx.load(path)
    model.graph.node[0].name = "CONV0"
    onnx.save(model, path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert reader.load(str(path)).layers[0].name == "CONV0"
    assert len(reads) == 2


def test_a_process_of_older_code_has_no_cache(
    reads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose code was updated under it reads each file and stores nothing, before and while it reads."""
    path, versions = str(build_network(tmp_path / "net.onnx")), ["code", ""]
    monkeypatch.setattr(cache, "code_version", lambda *_: versions.pop(0) if len(versions) > 1 else versions[0])
    for _ in range(3):
        KeyedReader(DEFAULT_RULES).load(path)
    assert len(reads) == 3
    versions[:] = ["code"]
    for _ in range(2):
        KeyedReader(DEFAULT_RULES).load(path)
    assert len(reads) == 4


def test_rules_dimensions_and_batch_are_part_of_the_key(reads: list[str], tmp_path: Path) -> None:
    """Each way to read a file has an answer of its own."""
    path = str(build_network(tmp_path / "net.onnx"))
    ways = [(DEFAULT_RULES, None), ((), None), ((FusionRule(UNSIGNED_PAIRS),), None), (DEFAULT_RULES, 2)]
    for _ in range(2):
        found = [KeyedReader(rules).load(path, {}, batch) for rules, batch in ways]
        assert len(found[0].layers) < len(found[1].layers)
        assert sum(found[3].input_sizes) == 2 * sum(found[0].input_sizes)
    assert len(reads) >= len(ways)
    symbolic = _symbolic(tmp_path / "symbolic.onnx")
    sizes = [KeyedReader(()).load(symbolic, {"n": size}).input_sizes for size in (1, 3, 1, 3)]
    assert sizes == [(32,), (96,), (32,), (96,)]
    with pytest.raises(UnresolvedDimension):
        KeyedReader(()).load(symbolic)


def _symbolic(path: Path) -> str:
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", kinds[:1], kinds[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def _external(path: Path) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in "xy")
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    return path


def test_external_data_is_checked_each_time(tmp_path: Path) -> None:
    """A network whose weights lie in another file is refused as soon as that file is cut or replaced by a link."""
    path = _external(tmp_path / "net.onnx")
    reader = KeyedReader(DEFAULT_RULES)
    assert reader.load(str(path)) == reader.load(str(path))
    whole = (tmp_path / "weights").read_bytes()
    (tmp_path / "weights").write_bytes(whole[:-1])
    with pytest.raises(InvalidNetwork, match="External data"):
        reader.load(str(path))
    (tmp_path / "elsewhere").write_bytes(whole)
    (tmp_path / "weights").unlink()
    (tmp_path / "weights").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidNetwork, match="External data"):
        reader.load(str(path))


def test_shapes_in_another_file_decide_the_network(tmp_path: Path) -> None:
    """A file may keep all its tensors outside: what a Reshape reads there is known, and is read each time."""
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in (("x", [4, 8]), ("y", "ab"))
    )
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Softmax", ["r"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.array([2, 16]), "s")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="shapes", size_threshold=0)
    reader = KeyedReader(DEFAULT_RULES)
    found = reader.load(str(path)).layers
    (tmp_path / "shapes").write_bytes(np.array([16, 2]).tobytes())
    assert found and reader.load(str(path)).layers != found
    # With weights before the shape that would take all memory for reading, it is known as well.
    model = onnx.load(path)
    (tmp_path / "weights").write_bytes(bytes(256 * 256 * 4))
    weight = TensorProto(data_type=TensorProto.FLOAT, dims=(256, 256), data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="weights")
    for number in range(3000):
        weight.name = f"w{number}"
        model.graph.initializer.insert(0, weight)
    onnx.save(model, path)
    assert reader.load(str(path)).layers not in ((), found)


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut short": lambda content: content[:-40],
    "no protobuf": lambda _: b"\xff" * 1000,
    "pages of zeros": lambda _: bytes(5000),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_errors_are_those_without_a_cache(case: str, tmp_path: Path, folder: Path) -> None:
    """A hostile file gives the same error each time, with and without the cache, and leaves nothing in it."""
    path = build_network(tmp_path / "net.onnx")
    path.write_bytes(HOSTILE[case](path.read_bytes()))
    errors = set()
    for load in (KeyedReader(DEFAULT_RULES).load, KeyedReader(DEFAULT_RULES).load, load_network):
        with pytest.raises(NetworkError) as raised:
            load(str(path))
        errors.add((type(raised.value), raised.value.what, raised.value.why))
    assert len(errors) == 1
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("change", ["digest", "values", "places"])
def test_answers_that_no_network_has_are_ignored(change: str, reads: list[str], tmp_path: Path, folder: Path) -> None:
    """What the cache holds is checked like the answer of a process that a file may have taken over."""
    path = str(build_network(tmp_path / "net.onnx"))
    wanted = KeyedReader(DEFAULT_RULES).load(path)
    (stored,) = folder.iterdir()
    held = cache.get(stored.name)
    assert held is not None
    changed = {"digest": held[:-1], "values": held.replace(b'"layers":[', b'"layers":[1,'), "places": b""}[change]
    cache.put(stored.name, changed)
    assert KeyedReader(DEFAULT_RULES).load(path) == wanted
    assert len(reads) == 2


def test_a_flow_to_a_layer_that_does_not_exist_is_refused() -> None:
    """Places beyond the last layer would be looked up later, far from the file."""
    network = keyed(load_network("builtin:dscnn"), DEFAULT_RULES)
    content = encode_keyed(network, "a note")
    assert keyed_of(content) == KeyedAnswer(_bare(network), "a note", external=False)
    document, _ = decode_document(content)
    document["network"]["layers"][1]["flow"]["read"][0]["writer"] = len(network.layers)
    with pytest.raises(ValueError, match="no place of a layer"):
        keyed_of(encode(document))


def _bare(network: KeyedNetwork) -> KeyedNetwork:
    from dataclasses import replace

    return replace(network, file="")


@pytest.mark.parametrize(("room", "jobs"), [(4.0, 3), (2.9, 2), (0.1, 1)])
def test_files_that_are_read_at_once_fit_into_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: float, jobs: int
) -> None:
    """No more processes read than may take what they are allowed to at the same time; at least one reads."""
    used: list[int] = []
    read = keyed_reading.read_each

    def read_in_one(*given: Any, **named: Any) -> Any:
        used.append(named.pop("jobs"))
        return read(*given, **named, jobs=1)

    monkeypatch.setattr(network_list, "cores", lambda: 3)
    monkeypatch.setattr(keyed_reading, "read_each", read_in_one)
    monkeypatch.setattr(network_list, "may_fork", lambda: True)  # with threads of other tests, one process reads
    paths = [str(build_network(tmp_path / f"{at}.onnx")) for at in range(4)]
    each = max(READING.limits(Path(path).stat().st_size).memory_bytes for path in paths)
    monkeypatch.setattr(network_list, "_room_bytes", lambda: room * each)
    assert len(read_keyed_networks(paths, DEFAULT_RULES).networks) == 4
    assert used == [jobs]


def test_many_files_are_read_in_order_by_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several processes give the networks of one process in the order of the files, and name a refused file."""
    paths = [str(build_network(tmp_path / f"net{at}.onnx", (8, *[16 + at] * 3, 32))) for at in range(6)]
    monkeypatch.setattr(network_list, "cores", lambda: 1)
    monkeypatch.setattr(network_list, "may_fork", lambda: True)  # with threads of other tests, one process reads
    one, whole = read_keyed_networks(paths, DEFAULT_RULES), read_networks(paths)
    monkeypatch.setenv(cache.VARIABLE, "")
    monkeypatch.setattr(network_list, "cores", lambda: 3)
    seen: list[tuple[int, int]] = []
    many = read_keyed_networks(paths, DEFAULT_RULES, progress=lambda done, count: seen.append((done, count)))
    assert many == one
    assert list(map(repr, read_networks(paths).networks)) == list(map(repr, whole.networks))
    assert seen == [(at, 6) for at in range(1, 7)]
    (tmp_path / "net3.onnx").write_bytes(b"\xff" * 100)
    notes: list[str] = []
    rest = read_keyed_networks(paths, DEFAULT_RULES, note=notes.append)
    assert [network.file for network in rest.networks] == [*paths[:3], *paths[4:]]
    assert [one.file for one in rest.refused] == [paths[3]]
    assert paths[3] in notes[0]
    Path(paths[0]).write_bytes(b"")
    with pytest.raises(NetworksRefused, match="2 of 6 networks are refused"):
        read_keyed_networks(paths, DEFAULT_RULES, strict=True)


def test_networks_of_one_name_are_distinct_by_their_files(tmp_path: Path) -> None:
    """Suffixes count if files differ by nothing else, and all of a long path; in memory even no name is kept."""
    deep = tmp_path / ("a" * 120) / ("b" * 120)
    endings, folders = [tmp_path / "net.onnx", tmp_path / "net.model"], [deep / "1/net.onnx", deep / "2/net.onnx"]
    for (one, other), names in (
        (endings, [f"{tmp_path.name}/net.onnx", f"{tmp_path.name}/net.model"]),
        (folders, ["1/net", "2/net"]),
    ):
        for path, widths in ((one, (8,)), (other, (8, 16))):
            path.parent.mkdir(parents=True, exist_ok=True)
            build_network(path, widths)
        assert [network.name for network in read_networks([one, other]).networks] == names
    models = [ModelContent("", path.read_bytes()) for path in endings]
    assert [network.name for network in read_networks(models).networks] == ["", ""]
