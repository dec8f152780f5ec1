"""Unreadable and hostile ONNX files: one clear error, the right exit code, journal and tables as they were."""

from __future__ import annotations

import csv
import html.parser
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import Harness, Outcome
from onnx import ModelProto, TensorProto, helper, numpy_helper
from system_networks import convolutions, model, save, single, value, weights

Builder = Callable[[Path], Path]
BELL = "\x1b[31m\x07red\x9b2J"


MEMORY_BYTES = 8 << 30
"""More than a command takes for networks as small as these."""


def _estimate(harness: Harness, network: Path) -> Outcome:
    return harness("estimate", network, "--device", "null01", memory_bytes=MEMORY_BYTES)


def _profile(harness: Harness, network: Path) -> Outcome:
    return harness("profile", network, "--device", "null01", memory_bytes=MEMORY_BYTES)


def _write(build: Callable[[], ModelProto | bytes]) -> Builder:
    return lambda folder: save(build(), folder / "bad.onnx")


def _nodes(*nodes: tuple[object, ...]) -> list[object]:
    return [helper.make_node(*node, name=f"n{index}") for index, node in enumerate(nodes)]


def _chain(
    *nodes: tuple[object, ...], initializers: tuple[TensorProto, ...] = (), y: tuple[object, ...] = (1, 8)
) -> ModelProto:
    return model(_nodes(*nodes), inputs=[value("x", [1, 8])], outputs=[value("y", list(y))], initializers=initializers)


def _subgraph() -> ModelProto:
    def branch(operator: str) -> object:
        return helper.make_graph([helper.make_node(operator, ["x"], ["o"])], operator, [], [value("o", [1, 8])])

    node = helper.make_node("If", ["flag"], ["y"], name="n", then_branch=branch("Relu"), else_branch=branch("Tanh"))
    inputs = [value("x", [1, 8]), value("flag", [], TensorProto.BOOL)]
    return model([node], inputs=inputs, outputs=[value("y", [1, 8])])


def _functions(calls: int, depth: int) -> ModelProto:
    """Functions that call each other `calls` times each: calls ** depth nodes once inlined."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = []
    for level in range(depth):
        names = ["i", *(f"t{index}" for index in range(calls - 1)), "o"]
        operator, domain = ("Relu", "") if level == 0 else (f"F{level - 1}", "f")
        nodes = [helper.make_node(operator, [a], [b], domain=domain) for a, b in itertools.pairwise(names)]
        functions.append(helper.make_function("f", f"F{level}", ["i"], ["o"], nodes, imports))
    top = helper.make_node(f"F{depth - 1}", ["x"], ["y"], domain="f", name="n")
    graph = helper.make_graph([top], "g", [value("x", [1, 8])], [value("y", [1, 8])])
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=9)


def _recursive() -> ModelProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    function = helper.make_function("f", "F", ["i"], ["o"], [helper.make_node("F", ["i"], ["o"], domain="f")], imports)
    top = helper.make_node("F", ["x"], ["y"], domain="f", name="n")
    graph = helper.make_graph([top], "g", [value("x", [1, 8])], [value("y", [1, 8])])
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=9)


def _huge_constant(operator: str) -> ModelProto:
    """A constant of 2^40 elements that a few bytes describe, added to the input."""
    size = numpy_helper.from_array(np.array([1 << 40], np.int64), "size")
    start = numpy_helper.from_array(np.zeros(1, np.float32), "start")
    nodes = {
        "ConstantOfShape": _nodes(("ConstantOfShape", ["size"], ["big"])),
        "Expand": _nodes(("Expand", ["start", "size"], ["big"])),
        "Tile": _nodes(("Tile", ["start", "size"], ["big"])),
    }[operator]
    nodes += _nodes(("ReduceSum", ["big"], ["sum"]), ("Add", ["x", "sum"], ["y"]))
    return model(nodes, inputs=[value("x", [1, 8])], outputs=[value("y", [1, 8])], initializers=[size, start], opset=17)


def _doubling() -> ModelProto:
    """A constant that doubles forty times."""
    names = ["w", *(f"t{index}" for index in range(40))]
    nodes = [helper.make_node("Concat", [a, a], [b], axis=0, name=b) for a, b in itertools.pairwise(names)]
    nodes += _nodes(("ReduceSum", [names[-1]], ["sum"]), ("Add", ["x", "sum"], ["y"]))
    return model(nodes, inputs=[value("x", [1, 8])], outputs=[value("y", [1, 8])], initializers=[weights("w", (8,))])


def _ir(version: int) -> ModelProto:
    changed = convolutions()
    changed.ir_version = version
    return changed


def _no_opset() -> ModelProto:
    changed = convolutions()
    del changed.opset_import[:]
    return changed


def _dtype_99() -> ModelProto:
    changed = convolutions()
    changed.graph.input[0].type.tensor_type.elem_type = 99
    return changed


def _short_weights() -> ModelProto:
    changed = convolutions()
    changed.graph.initializer[0].raw_data = changed.graph.initializer[0].raw_data[:-4]
    return changed


def _negative_weights() -> ModelProto:
    changed = convolutions()
    changed.graph.initializer[0].dims[0] = -48
    return changed


def _not_text(name: str) -> bytes:
    """A network in which a name is not valid UTF-8."""
    return single(name, [1, 8]).SerializeToString().replace(name.encode(), b"\xff" * len(name))


def _tensor_not_text() -> bytes:
    changed = _chain(("Relu", ["x"], ["middle"]), ("Relu", ["middle"], ["y"]))
    return changed.SerializeToString().replace(b"middle", b"mi\xff\xffle")


def _conv(**attributes: object) -> ModelProto:
    w = weights("w", (4, 3, 3, 3))
    return single("Conv", [1, 3, 8, 8], [1, 4, 8, 8], initializers=[w], **{"pads": [1] * 4, **attributes})


def _ints(*values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), "k")


REFUSED: dict[str, tuple[Builder, tuple[str, ...]]] = {
    "missing": (lambda folder: folder / "bad.onnx", ("bad.onnx",)),
    "folder": (lambda folder: folder, ()),
    "empty": (_write(bytes), ("bad",)),
    "truncated": (_write(lambda: convolutions().SerializeToString()[:-700]), ("bad",)),
    "truncated early": (_write(lambda: convolutions().SerializeToString()[:40]), ("bad",)),
    "text": (_write(lambda: b"this is no network\n" * 50), ("bad",)),
    "zeros": (_write(lambda: bytes(4096)), ("bad",)),
    "png": (_write(lambda: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4), ("bad",)),
    "no nodes": (_write(lambda: model([], inputs=[value("x", [1])], outputs=[value("x", [1])])), ("node",)),
    "opset 3": (_write(lambda: single("Relu", [1, 8], opset=3)), ("opset", "3")),
    "opset 999": (_write(lambda: single("Relu", [1, 8], opset=999)), ("opset", "999")),
    "opset 2^62": (_write(lambda: single("Relu", [1, 8], opset=1 << 62)), ("opset",)),
    "opset -1": (_write(lambda: single("Relu", [1, 8], opset=-1)), ("opset",)),
    "no opset": (_write(_no_opset), ("opset",)),
    "IR 0": (_write(lambda: _ir(0)), ()),
    "IR 9999": (_write(lambda: _ir(9999)), ("IR",)),
    "unknown domain": (
        _write(
            lambda: model(
                [helper.make_node("Relu", ["x"], ["y"], domain="com.evil", name="n")],
                inputs=[value("x", [1, 8])],
                outputs=[value("y", [1, 8])],
                domains=["com.evil"],
            )
        ),
        ("com.evil",),
    ),
    "unknown operator": (_write(lambda: single("Frobnicate", [1, 8])), ("Frobnicate",)),
    "operator of a later opset": (_write(lambda: single("Gelu", [1, 8])), ("Gelu",)),
    "subgraph": (_write(_subgraph), ("subgraph", "If")),
    "recursive function": (_write(_recursive), ()),
    "function bomb": (_write(lambda: _functions(10, 12)), ()),
    "dynamic dimension": (_write(lambda: convolutions(batch="batch_size")), ("batch_size", "--dim")),
    "anonymous dimension": (_write(lambda: convolutions(batch=None)), ("'x'", "--dim")),
    "input without shape": (
        _write(lambda: model(_nodes(("Relu", ["x"], ["y"])), inputs=[value("x", None)], outputs=[value("y", [1])])),
        ("shape",),
    ),
    "data-dependent shape": (
        _write(
            lambda: model(
                _nodes(("NonZero", ["x"], ["i"]), ("Cast", ["i"], ["f"]), ("Relu", ["f"], ["y"])),
                inputs=[value("x", [1, 8])],
                outputs=[value("y", [2, None])],
            )
        ),
        (),
    ),
    "zero dimension": (_write(lambda: convolutions(batch=0)), ("x",)),
    "negative dimension": (_write(lambda: single("Relu", [-5, 8])), ("x",)),
    "2^40 dimension": (_write(lambda: single("Relu", [1 << 40, 8])), ()),
    "2^62 dimensions": (_write(lambda: single("Relu", [1 << 62, 1 << 62])), ()),
    "-2^63 dimension": (_write(lambda: single("Relu", [-(1 << 63), 8])), ()),
    "2^64 elements": (_write(lambda: single("Relu", [1 << 32, 1 << 32])), ()),
    "2^40 output": (_write(lambda: single("Expand", [1, 1], [1 << 40, 1], initializers=[_ints(1 << 40, 1)])), ()),
    "2^40 padding": (
        _write(lambda: single("Pad", [1, 8], [1, (1 << 40) + 8], initializers=[_ints(0, 0, 0, 1 << 40)])),
        (),
    ),
    "2^40 constant": (_write(lambda: _huge_constant("ConstantOfShape")), ()),
    "2^40 expanded constant": (_write(lambda: _huge_constant("Expand")), ()),
    "2^40 tiled constant": (_write(lambda: _huge_constant("Tile")), ()),
    "doubling constant": (_write(_doubling), ()),
    "zero-sized result": (_write(lambda: single("Reshape", [0, 8], [0, 8], initializers=[_ints(0, 8)])), ()),
    "cycle": (_write(lambda: _chain(("Add", ["x", "b"], ["a"]), ("Relu", ["a"], ["b"]), ("Relu", ["b"], ["y"]))), ()),
    "self-loop": (_write(lambda: _chain(("Add", ["x", "y"], ["y"]))), ()),
    "unsorted": (_write(lambda: _chain(("Relu", ["a"], ["y"]), ("Relu", ["x"], ["a"]))), ()),
    "undefined input": (_write(lambda: _chain(("Add", ["x", "nowhere"], ["y"]))), ("nowhere",)),
    "undefined output": (_write(lambda: _chain(("Relu", ["x"], ["z"]))), ("y",)),
    "duplicate tensor": (_write(lambda: _chain(("Relu", ["x"], ["y"]), ("Tanh", ["x"], ["y"]))), ("y",)),
    "duplicate initializer": (
        _write(lambda: _chain(("Add", ["x", "w"], ["y"]), initializers=(weights("w", (8,)),) * 2)),
        ("w",),
    ),
    "output shadows initializer": (
        _write(lambda: _chain(("Relu", ["x"], ["w"]), ("Add", ["x", "w"], ["y"]), initializers=(weights("w", (8,)),))),
        ("w",),
    ),
    "output shadows input": (_write(lambda: _chain(("Relu", ["x"], ["x"]), ("Relu", ["x"], ["y"]))), ("x",)),
    "constants alone": (
        _write(
            lambda: model(
                _nodes(("Relu", ["w"], ["y"])), inputs=[], outputs=[value("y", [8])], initializers=[weights("w", (8,))]
            )
        ),
        (),
    ),
    "nothing but free nodes": (_write(lambda: _chain(("Identity", ["x"], ["y"]))), ()),
    "unknown data type": (_write(_dtype_99), ()),
    "weights cut short": (_write(_short_weights), ()),
    "weights of negative size": (_write(_negative_weights), ()),
    "operator that is not text": (_write(lambda: _not_text("Relu")), ()),
    "tensor name that is not text": (_write(_tensor_not_text), ()),
    "data type that the operator lacks": (
        _write(lambda: single("Sigmoid", [1, 8], dtype=TensorProto.INT16)),
        ("Sigmoid",),
    ),
    "stride 0": (_write(lambda: _conv(strides=[0, 0])), ()),
    "stride -1": (_write(lambda: _conv(strides=[-1, -1])), ()),
    "dilation 0": (_write(lambda: _conv(dilations=[0, 0])), ()),
    "kernel 0": (_write(lambda: _conv(kernel_shape=[0, 0])), ()),
    "kernel of the wrong rank": (_write(lambda: _conv(kernel_shape=[3])), ()),
    "padding -100": (_write(lambda: _conv(pads=[-100] * 4)), ()),
    "pool stride 0": (
        _write(lambda: single("MaxPool", [1, 3, 8, 8], kernel_shape=[2, 2], strides=[0, 0])),
        (),
    ),
    "axis 99": (_write(lambda: single("Softmax", [1, 8], axis=99)), ()),
    "wrong attribute type": (_write(lambda: single("Softmax", [1, 8], axis="one")), ("axis",)),
    "unknown attribute": (_write(lambda: single("Relu", [1, 8], frobnicate=3)), ("frobnicate",)),
    "impossible reshape": (_write(lambda: single("Reshape", [1, 8], [3, 5], initializers=[_ints(3, 5)])), ()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_network_is_refused(case: str, unchanged: Harness, tmp_path: Path) -> None:
    """A network that cannot be measured ends with one clear error and exit 3, and changes nothing."""
    build, mentions = REFUSED[case]
    _estimate(unchanged, build(tmp_path)).assert_refused(3, mentions=mentions)


@pytest.mark.parametrize("case", ["missing", "zeros", "dynamic dimension", "2^40 tiled constant", "unknown attribute"])
def test_refusal_is_that_of_a_process(case: str, unchanged: Harness, tmp_path: Path) -> None:
    """A command in a process of its own refuses a network with the same words and exit code as in this process."""
    network = REFUSED[case][0](tmp_path)
    unchanged.assert_processes_agree("estimate", network, "--device", "null01").assert_refused(3)


@pytest.mark.parametrize(
    "case", ["truncated", "unknown domain", "subgraph", "dynamic dimension", "zero dimension", "cycle"]
)
def test_unusable_network_is_not_profiled(case: str, unchanged: Harness, tmp_path: Path) -> None:
    """A campaign on a network that cannot be measured never begins."""
    build, mentions = REFUSED[case]
    _profile(unchanged, build(tmp_path)).assert_refused(3, mentions=mentions)


@pytest.mark.parametrize("group", [0, 2])
def test_layer_that_no_device_can_run_has_no_latency(group: int, unchanged: Harness, tmp_path: Path) -> None:
    """A convolution whose weights do not fit its groups is refused or unknown, never estimated."""
    network = save(_conv(group=group), tmp_path / "net.onnx")
    outcome = unchanged("estimate", network, "--device", "null01")
    outcome.assert_plain()
    assert outcome.code in (3, 6), str(outcome)


@pytest.mark.parametrize(
    ("dims", "codes", "mentions"),
    [
        (["btch=1"], (2, 3), ("btch",)),
        (["batch=0"], (2, 3), ("batch",)),
        (["batch=-1"], (2,), ("batch",)),
        (["batch=one"], (2,), ("batch",)),
        (["batch"], (2,), ("batch",)),
        (["=1"], (2,), ()),
        (["batch=1", "batch=2"], (2,), ("batch",)),
        (["batch=1099511627776"], (2, 3), ("batch",)),
        (["batch=1\x1b[31m"], (2,), ("batch",)),
        (["batch=²"], (2,), ("batch",)),
        (["batch=" + "9" * 5000], (2,), ("batch",)),
        (["batch=1", "x.1=5"], (2, 3), ()),
        (["batch=1", "x.9=5"], (2, 3), ("x.9",)),
    ],
)
def test_wrong_dim_is_refused(
    dims: list[str], codes: tuple[int, ...], mentions: tuple[str, ...], unchanged: Harness, tmp_path: Path
) -> None:
    """A `--dim` that names nothing or has no sensible value is refused by name."""
    network = save(convolutions(batch="batch"), tmp_path / "net.onnx")
    words = [word for dim in dims for word in ("--dim", dim)]
    outcome = unchanged("estimate", network, "--device", "null01", *words)
    outcome.assert_refused(*codes, mentions=mentions)


def test_dims_bind_symbolic_and_anonymous_dimensions(unchanged: Harness, tmp_path: Path) -> None:
    """A dimension can be bound by its name or by INPUT.AXIS, and the network is then that of fixed shape."""
    for batch, word in (("batch", "batch=1"), (None, "x.0=1")):
        network = save(convolutions(batch=batch), tmp_path / "net.onnx")
        (found,) = (
            unchanged("estimate", network, "--device", "null01", "--dim", word, "--json").assert_ok().json["networks"]
        )
        assert found["coverage"]["measured"] == 3


# External data -------------------------------------------------------------------------------------------------


def _external(entries: dict[str, str], count: int = 48 * 27) -> ModelProto:
    changed = convolutions()
    tensor = changed.graph.initializer[0]
    assert count == int(np.prod(tensor.dims))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in entries.items():
        tensor.external_data.add(key=key, value=text)
    return changed


def _external_case(name: str, folder: Path) -> ModelProto:
    """Writes what the case needs under `folder` (the model's own is folder/model) and returns the model."""
    own = folder / "model"
    own.mkdir()
    size = 48 * 27 * 4
    (folder / "outside.bin").write_bytes(bytes(size))
    (own / "inside.bin").write_bytes(bytes(size))
    if name == "symbolic link":
        (own / "link.bin").symlink_to(folder / "outside.bin")
    if name == "symbolic link inside":
        (own / "link.bin").symlink_to("inside.bin")
    if name == "hard link":
        os.link(folder / "outside.bin", own / "link.bin")
    if name == "linked folder":
        (own / "sub").symlink_to(folder)
    if name == "pipe":
        os.mkfifo(own / "pipe.bin")
    if name == "folder":
        (own / "sub").mkdir()
    entries = {
        "parent": {"location": "../outside.bin"},
        "parent inside": {"location": "x/../../outside.bin"},
        "absolute": {"location": str(folder / "outside.bin")},
        "backslash": {"location": "..\\outside.bin"},
        "no location": {"offset": "0"},
        "empty location": {"location": ""},
        "missing": {"location": "nowhere.bin"},
        "device": {"location": "/dev/zero"},
        "NUL": {"location": "inside.bin\0.txt"},
        "newline": {"location": "in\nside\x1b[31m.bin"},
        "long location": {"location": "a" * 10_000},
        "symbolic link": {"location": "link.bin"},
        "symbolic link inside": {"location": "link.bin"},
        "hard link": {"location": "link.bin"},
        "linked folder": {"location": "sub/outside.bin"},
        "pipe": {"location": "pipe.bin"},
        "folder": {"location": "sub"},
        "negative offset": {"location": "inside.bin", "offset": "-4096"},
        "offset past the end": {"location": "inside.bin", "offset": str(size + 4)},
        "length past the end": {"location": "inside.bin", "offset": "8", "length": str(size)},
        "length 2^50": {"location": "inside.bin", "length": str(1 << 50)},
        "length negative": {"location": "inside.bin", "length": "-1"},
        "length too short": {"location": "inside.bin", "length": "16"},
        "offset leaves too little": {"location": "inside.bin", "offset": "4096"},
        "offset not a number": {"location": "inside.bin", "offset": "four"},
        "offset of 5000 digits": {"location": "inside.bin", "offset": "9" * 5000},
    }[name]
    return _external(entries)


@pytest.mark.parametrize(
    "case",
    [
        "parent",
        "parent inside",
        "absolute",
        "backslash",
        "no location",
        "empty location",
        "missing",
        "device",
        "NUL",
        "newline",
        "long location",
        "symbolic link",
        "symbolic link inside",
        "hard link",
        "linked folder",
        "pipe",
        "folder",
        "negative offset",
        "offset past the end",
        "length past the end",
        "length 2^50",
        "length negative",
        "length too short",
        "offset leaves too little",
        "offset not a number",
        "offset of 5000 digits",
    ],
)
def test_external_data_is_contained(case: str, unchanged: Harness, tmp_path: Path) -> None:
    """External data outside the model's folder, through a link, or beyond its file is refused by tensor name."""
    network = save(_external_case(case, tmp_path), tmp_path / "model" / "net.onnx")
    _estimate(unchanged, network).assert_refused(3, mentions=("w1",))


def _hidden_external(place: str, location: str) -> ModelProto:
    """External data where a reader that looks at initializers only does not look."""
    tensor = TensorProto(name="hidden", data_type=TensorProto.FLOAT, dims=[8], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    constant = helper.make_node("Constant", [], ["k"], name="k", value=tensor)
    add = helper.make_node("Add", ["x", "k"], ["y"], name="n")
    if place == "constant":
        return model([constant, add], inputs=[value("x", [1, 8])], outputs=[value("y", [1, 8])])
    if place == "function":
        function = helper.make_function("f", "F", ["x"], ["y"], [constant, add], imports)
        top = helper.make_node("F", ["x"], ["y"], domain="f", name="top")
        graph = helper.make_graph([top], "g", [value("x", [1, 8])], [value("y", [1, 8])])
        return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=9)
    indices = numpy_helper.from_array(np.arange(8, dtype=np.int64), "indices")
    tensor.name = "k"
    graph = helper.make_graph([add], "g", [value("x", [1, 8])], [value("y", [1, 8])])
    graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, indices, [8]))
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize("place", ["constant", "function", "sparse"])
def test_external_data_hides_nowhere(place: str, unchanged: Harness, tmp_path: Path) -> None:
    """External data of constant nodes, function bodies and sparse initializers is contained as well."""
    outside = tmp_path / "outside.bin"
    outside.write_bytes(bytes(32))
    network = save(_hidden_external(place, str(outside)), tmp_path / "net.onnx")
    _estimate(unchanged, network).assert_refused(3)


def test_external_data_beside_the_model_works(unchanged: Harness, tmp_path: Path) -> None:
    """External data in a plain file beside the model gives the estimate of the same network with weights inside."""
    (tmp_path / "inside.bin").write_bytes(bytes(16 + 48 * 27 * 4))
    entries = {"location": "inside.bin", "offset": "16", "length": str(48 * 27 * 4)}
    network = save(_external(entries), tmp_path / "net.onnx")
    (found,) = unchanged("estimate", network, "--device", "null01", "--json").assert_ok().json["networks"]
    assert found["coverage"]["measured"] == 3


# Names ---------------------------------------------------------------------------------------------------------

NAMES = {
    "slash": "a/b/c",
    "parent": "../../../../tmp/evil",
    "newline": "line\nerror: forged\r\n",
    "escape": BELL,
    "bidi": "\u202egnp.exe",
    "html": "<script>alert('x')</script><img src=x onerror=alert(1)>\"&amp;",
    "formula": '=HYPERLINK("http://evil","x")',
    "plus": "+1+cmd|' /C calc'!A0",
    "tabbed formula": "\t=1+1",
    "quote": '"a","b"\n"c"',
    "percent": "%s%n{0}{name}",
    "markup": "[red]x[/red][/]",
    "long": "n" * 10_000,
    "semicolon": "x;y:z|k1",
    "dot axis": "x.0",
    "nul": "a\0b",
    "emoji": "🦆 ü",
}


class _Tags(html.parser.HTMLParser):
    """Collects what a browser would run."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[str] = []
        self.inline: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script = tag == "script"
        if tag == "img" or any(name.startswith("on") for name, _ in attrs):
            self.images.append(tag)

    def handle_data(self, data: str) -> None:
        if self._script:
            self.inline.append(data)
        self._script = False


def _assert_report_harmless(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(text)
    assert not tags.images, f"{tags.images} in the report"
    assert not [script for script in tags.inline if script.strip() == "alert('x')"], "a name became a script"
    assert not any(ord(character) < 32 and character not in "\n\t\r" for character in text.split("<script")[0])


def _assert_sheet_harmless(sheet: Path, rows: int) -> None:
    with sheet.open(newline="", encoding="utf-8") as file:
        found = list(csv.reader(file))
    assert len(found) == 1 + rows
    for cell in (cell for row in found for cell in row):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), f"{cell[:60]!r} is a formula"
        assert "\x1b" not in cell and "\0" not in cell and "\x07" not in cell, f"{cell[:60]!r} holds control characters"


@pytest.mark.parametrize("case", NAMES)
def test_names_reach_nothing_raw(case: str, unchanged: Harness, tmp_path: Path) -> None:
    """A network whose names are hostile works or is refused, and its names reach no terminal, sheet or page raw."""
    name = NAMES[case]
    names = [name, f"r{name}", name, name, f"p{name}"]
    built = convolutions(x=f"{name}x", a=f"{name}a", y=f"{name}y", w1=f"{name}w", names=names)
    built.graph.name = built.doc_string = built.producer_name = name
    network = save(built, tmp_path / "net.onnx")
    page, sheet = tmp_path / "page.html", tmp_path / "sheet.csv"
    outcome = unchanged("estimate", network, "--device", "null01", "--layers", "--html", page, "--csv", sheet)
    if outcome.code == 0:
        outcome.assert_ok()
        _assert_report_harmless(page)
        _assert_sheet_harmless(sheet, rows=3)
    else:
        outcome.assert_refused(3)
        assert not page.exists() and not sheet.exists()
    assert "\nerror: forged" not in outcome.stdout + outcome.stderr


@pytest.mark.parametrize("case", ["newline", "escape", "bidi", "html", "formula", "tabbed formula", "quote", "markup"])
def test_file_names_reach_nothing_raw(case: str, unchanged: Harness, tmp_path: Path) -> None:
    """A network whose file has a hostile name works, and the name reaches no terminal, sheet or page raw."""
    network = save(convolutions(), tmp_path / f"{NAMES[case].replace('/', '_')}.onnx")
    page, sheet = tmp_path / "page.html", tmp_path / "sheet.csv"
    unchanged("estimate", network, "--device", "null01", "--layers", "--html", page, "--csv", sheet).assert_ok()
    _assert_report_harmless(page)
    _assert_sheet_harmless(sheet, rows=3)


def test_file_name_that_is_not_text_works(unchanged: Harness, tmp_path: Path) -> None:
    """A file name that is not valid UTF-8 is estimated, in text, JSON, CSV and HTML."""
    network = save(convolutions(), Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.onnx")))
    page, sheet = tmp_path / "page.html", tmp_path / "sheet.csv"
    unchanged("estimate", network, "--device", "null01", "--html", page, "--csv", sheet, "--layers").assert_ok()
    assert unchanged("estimate", network, "--device", "null01", "--json").assert_ok().json["networks"]


@pytest.mark.parametrize("case", ["escape", "formula", "long"])
def test_names_survive_a_campaign(case: str, harness: Harness, tmp_path: Path) -> None:
    """A network whose names are hostile is profiled, built into a table, shown and exported, and nothing leaks."""
    name = NAMES[case]
    built = convolutions(x=f"{name}x", a=f"{name}a", y=f"{name}y", w1=f"{name}w", names=[name] * 5)
    network = save(built, tmp_path / "net.onnx")
    before = sorted(path.name for path in tmp_path.iterdir())
    outcome = harness("profile", network, "--device", "null01", "--runs", "3")
    if outcome.code != 0:
        outcome.assert_refused(3)
        return
    outcome.assert_ok()
    harness("lut", "build", "--device", "null01").assert_ok()
    harness("lut", "show", "--device", "null01").assert_ok()
    harness("lut", "export", tmp_path / "export.csv", "--device", "null01").assert_ok()
    _assert_sheet_harmless(harness.table / "entries.csv", rows=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*before, "export.csv"])


def test_long_names_are_cut_in_messages(unchanged: Harness, tmp_path: Path) -> None:
    """An error about a node of a very long name stays readable."""
    long = "n" * 10_000
    network = save(_chain(("Frobnicate", ["x"], ["y"])), tmp_path / "net.onnx")
    changed = single("Frobnicate", [1, 8])
    changed.graph.node[0].name = changed.graph.node[0].op_type = long
    save(changed, network)
    outcome = unchanged("estimate", network, "--device", "null01").assert_refused(3)
    assert len(outcome.stderr) < 2000


@pytest.mark.parametrize("case", ["escape", "newline", "bidi"])
def test_names_in_errors_are_cleaned(case: str, unchanged: Harness, tmp_path: Path) -> None:
    """Names that reach an error message arrive on its line and without control characters."""
    name = NAMES[case]
    for built in (single(f"Op{name}", [1, 8]), convolutions(batch=f"b{name}"), _chain(("Add", ["x", name], ["y"]))):
        network = save(built, tmp_path / "net.onnx")
        unchanged("estimate", network, "--device", "null01").assert_refused(3)
    missing = tmp_path / f"no{name}.onnx"
    unchanged("estimate", missing, "--device", "null01").assert_refused(3)


# What must work ------------------------------------------------------------------------------------------------


def _dead_input() -> ModelProto:
    changed = convolutions()
    changed.graph.input.append(value("unused", [1, 7]))
    return changed


def _initializers_as_inputs() -> ModelProto:
    changed = convolutions()
    changed.ir_version = 3
    changed.graph.input.extend(value(one.name, list(one.dims)) for one in changed.graph.initializer)
    return changed


def _dead_node() -> ModelProto:
    changed = convolutions()
    changed.graph.node.append(helper.make_node("Tanh", ["d"], ["nobody"], name="dead"))
    return changed


ODD: dict[str, Callable[[], ModelProto]] = {
    "duplicate node names": lambda: convolutions(names=["same"] * 5),
    "unnamed nodes": lambda: convolutions(names=[""] * 5),
    "input that feeds nothing": _dead_input,
    "initializers listed as inputs": _initializers_as_inputs,
    "node that feeds nothing": _dead_node,
}


def test_odd_but_valid_networks_work(harness: Harness, tmp_path: Path) -> None:
    """Unusual valid networks go through profile, table, estimate and validate with full coverage."""
    networks = [save(build(), tmp_path / f"{name}.onnx") for name, build in ODD.items()]
    harness("profile", *networks, "--device", "null01", "--runs", "4").assert_ok()
    harness("lut", "build", "--device", "null01").assert_ok()
    estimated = harness("estimate", *networks, "--device", "null01", "--json").assert_ok().json["networks"]
    assert [found["name"] for found in estimated] == list(ODD)
    for found in estimated:
        assert found["latency_s"] > 0 and found["coverage"]["unknown"] == 0
        assert all(layer["name"] for layer in found["layers"]), f"a layer of {found['name']} has no name"
    measured = harness("validate", *networks, "--device", "null01", "--json").assert_ok().json["networks"]
    assert all(found["measured_s"] > 0 for found in measured)


def _of_dtype(dtype: int, name: str) -> ModelProto:
    if name == "bool":
        nodes = [helper.make_node("Not", ["x"], ["a"]), helper.make_node("And", ["a", "x"], ["y"])]
        return model(nodes, inputs=[value("x", [1, 64], dtype)], outputs=[value("y", [1, 64], dtype)])
    if name.startswith("int"):
        nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "x"], ["y"])]
        return model(
            nodes,
            inputs=[value("x", [1, 64], dtype)],
            outputs=[value("y", [1, 64], dtype)],
            initializers=[weights("w", (64,), name)],
        )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    return model(
        nodes,
        inputs=[value("x", [1, 64], dtype)],
        outputs=[value("y", [1, 64], dtype)],
        initializers=[weights("w", (64, 64), name)],
    )


@pytest.mark.parametrize(
    ("dtype", "device"),
    [("float16", "cpu01"), ("double", "cpu01"), ("int32", "null01"), ("int64", "cpu01"), ("bool", "cpu01")],
)
def test_other_data_types(dtype: str, device: str, harness: Harness, tmp_path: Path) -> None:
    """Networks of other data types than float32 go through the main job, or are refused with one error."""
    kind = getattr(TensorProto, dtype.upper())
    network = save(_of_dtype(kind, "float64" if dtype == "double" else dtype), tmp_path / "net.onnx")
    outcome = harness("profile", network, "--device", device, "--runs", "3")
    if outcome.code != 0:
        outcome.assert_refused(3)
        return
    outcome.assert_ok()
    built = harness("lut", "build", "--device", device)
    if built.code != 0:
        built.assert_refused(5)
        return
    built.assert_ok()
    estimated = harness("estimate", network, "--device", device, "--json")
    estimated.assert_plain()
    assert estimated.code in (0, 6), str(estimated)
    if estimated.code == 0:
        assert estimated.json["networks"][0]["latency_s"] > 0


def test_strings_are_refused_or_work(unchanged: Harness, tmp_path: Path) -> None:
    """A network on strings is not measured as if it held numbers."""
    built = single("StringNormalizer", [8], dtype=TensorProto.STRING, case_change_action="LOWER")
    network = save(built, tmp_path / "net.onnx")
    for outcome in (_estimate(unchanged, network), _profile(unchanged, network)):
        outcome.assert_refused(3)


def test_sequences_are_refused(unchanged: Harness, tmp_path: Path) -> None:
    """A network on sequences is refused."""
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [8]))
    nodes = [helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0, name="n")]
    inputs = [helper.make_value_info("x", sequence)]
    network = save(model(nodes, inputs=inputs, outputs=[value("y", [8])]), tmp_path / "net.onnx")
    _estimate(unchanged, network).assert_refused(3)


def test_one_bad_network_among_good_ones_is_named(unchanged: Harness, small_network: Path, tmp_path: Path) -> None:
    """With --strict one unreadable file in a list is refused by name, before anything is measured."""
    bad = save(b"no", tmp_path / "culprit.onnx")
    for command in ("estimate", "profile", "validate"):
        found = unchanged(command, small_network, bad, "--device", "null01", "--strict")
        found.assert_refused(3, mentions=("culprit",))


@pytest.mark.parametrize(
    ("content", "mentions"),
    [
        (None, ("No such file", "next: Give the path")),
        (b"", ("The file is empty", "next: Copy or export")),
        (b"no", ("not an ONNX file", "next: Copy or export")),
    ],
    ids=["missing", "empty", "text"],
)
def test_unreadable_file_has_a_next_step(
    content: bytes | None, mentions: tuple[str, ...], unchanged: Harness, tmp_path: Path
) -> None:
    """The error for a file that is missing, empty or not ONNX says what to do."""
    if content is not None:
        (tmp_path / "net.onnx").write_bytes(content)
    _estimate(unchanged, tmp_path / "net.onnx").assert_refused(3, mentions=("net.onnx", *mentions))


def test_dim_of_a_network_of_fixed_sizes_is_omitted(unchanged: Harness, small_network: Path) -> None:
    """If no network has a symbolic dimension, the error proposes to omit --dim."""
    words = ("estimate", small_network, "--device", "null01", "--dim", "batch=1")
    unchanged(*words).assert_refused(2, mentions=("sizes are fixed", "next: Omit --dim"))


def test_unknown_builtin_lists_the_known(unchanged: Harness) -> None:
    """A built-in network that does not exist is refused, and those that exist are listed."""
    unchanged("estimate", "builtin:resnet51", "--device", "null01").assert_refused(2, 3, mentions=("resnet50",))
