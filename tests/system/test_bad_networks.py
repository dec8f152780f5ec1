"""Unreadable and hostile ONNX files: one clear error, the right exit code, journal and tables as they were."""

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import Harness, Outcome
from onnx import ModelProto, TensorProto, helper, numpy_helper
from system_networks import MEMORY_BYTES, chain, convolutions, model, nodes_of, save, single, value, weights

Builder = Callable[[Path], Path]


def _estimate(harness: Harness, network: Path) -> Outcome:
    return harness("estimate", network, "--device", "null01", memory_bytes=MEMORY_BYTES)


def _profile(harness: Harness, network: Path) -> Outcome:
    return harness("profile", network, "--device", "null01", memory_bytes=MEMORY_BYTES)


def _write(build: Callable[[], ModelProto | bytes]) -> Builder:
    return lambda folder: save(build(), folder / "bad.onnx")


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
        "ConstantOfShape": nodes_of(("ConstantOfShape", ["size"], ["big"])),
        "Expand": nodes_of(("Expand", ["start", "size"], ["big"])),
        "Tile": nodes_of(("Tile", ["start", "size"], ["big"])),
    }[operator]
    nodes += nodes_of(("ReduceSum", ["big"], ["sum"]), ("Add", ["x", "sum"], ["y"]))
    return model(nodes, inputs=[value("x", [1, 8])], outputs=[value("y", [1, 8])], initializers=[size, start], opset=17)


def _doubling() -> ModelProto:
    """A constant that doubles forty times."""
    names = ["w", *(f"t{index}" for index in range(40))]
    nodes = [helper.make_node("Concat", [a, a], [b], axis=0, name=b) for a, b in itertools.pairwise(names)]
    nodes += nodes_of(("ReduceSum", [names[-1]], ["sum"]), ("Add", ["x", "sum"], ["y"]))
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
    changed = chain(("Relu", ["x"], ["middle"]), ("Relu", ["middle"], ["y"]))
    return changed.SerializeToString().replace(b"middle", b"mi\xff\xffle")


def _conv(**attributes: object) -> ModelProto:
    w = weights("w", (4, 3, 3, 3))
    return single("Conv", [1, 3, 8, 8], [1, 4, 8, 8], initializers=[w], **{"pads": [1] * 4, **attributes})


def _ints(*values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), "k")


def _pad_of_int32() -> ModelProto:
    axes = numpy_helper.from_array(np.array([1], np.int32), "axes")
    given = [_ints(1, 1), weights("fill", ()), axes]
    return single("Pad", [1, 8], [1, 10], opset=18, initializers=given)


REFUSED: dict[str, tuple[Builder, tuple[str, ...]]] = {
    "missing": (lambda folder: folder / "bad.onnx", ("bad.onnx",)),
    "folder": (lambda folder: folder, ()),
    "empty": (_write(bytes), ("bad",)),
    "truncated": (_write(lambda: convolutions().SerializeToString()[:-700]), ("bad",)),
    "truncated early": (_write(lambda: convolutions().SerializeToString()[:40]), ("bad",)),
    "text": (_write(lambda: b"this is no network\n" * 50), ("bad",)),
    "ONNX Runtime's format": (_write(lambda: b"    ORTM" + bytes(range(256))), ("own format",)),
    "pointer of Git LFS": (_write(lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), ("git lfs",)),
    "gzip": (_write(lambda: gzip.compress(convolutions().SerializeToString())), ("gzip",)),
    "zip": (_write(lambda: b"PK\x03\x04" + bytes(100)), ("zip", "ONNX")),
    "zeros": (_write(lambda: bytes(4096)), ("bad",)),
    "png": (_write(lambda: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4), ("bad",)),
    "no nodes": (_write(lambda: model([], inputs=[value("x", [1])], outputs=[value("x", [1])])), ("node", "operator")),
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
        _write(lambda: model(nodes_of(("Relu", ["x"], ["y"])), inputs=[value("x", None)], outputs=[value("y", [1])])),
        ("shape",),
    ),
    "data-dependent shape": (
        _write(
            lambda: model(
                nodes_of(("NonZero", ["x"], ["i"]), ("Cast", ["i"], ["f"]), ("Relu", ["f"], ["y"])),
                inputs=[value("x", [1, 8])],
                outputs=[value("y", [2, None])],
            )
        ),
        (),
    ),
    "zero dimension": (_write(lambda: convolutions(batch=0)), ("x",)),
    "negative dimension": (_write(lambda: single("Relu", [-5, 8])), ("x",)),
    "65 axes": (_write(lambda: single("Relu", [1] * 65)), ("65 axes", "64")),
    "2^40 dimension": (_write(lambda: single("Relu", [1 << 40, 8])), ()),
    "2^62 dimensions": (_write(lambda: single("Relu", [1 << 62, 1 << 62])), ()),
    "-2^63 dimension": (_write(lambda: single("Relu", [-(1 << 63), 8])), ()),
    "2^64 elements": (_write(lambda: single("Relu", [1 << 32, 1 << 32])), ()),
    "2^40 output": (_write(lambda: single("Expand", [1, 1], [1 << 40, 1], initializers=[_ints(1 << 40, 1)])), ()),
    "2^40 padding": (
        _write(lambda: single("Pad", [1, 8], [1, (1 << 40) + 8], initializers=[_ints(0, 0, 0, 1 << 40)])),
        (),
    ),
    "axes of int32": (_write(_pad_of_int32), ("Pad", "int64")),
    "Einsum that ONNX infers otherwise": (
        _write(lambda: single("Einsum", [1, 3], [5, 3], initializers=[weights("w", (5, 3))], equation="bi,bi->bi")),
        ("Einsum", "ellipsis"),
    ),
    "2^40 constant": (_write(lambda: _huge_constant("ConstantOfShape")), ()),
    "2^40 expanded constant": (_write(lambda: _huge_constant("Expand")), ()),
    "2^40 tiled constant": (_write(lambda: _huge_constant("Tile")), ()),
    "doubling constant": (_write(_doubling), ()),
    "zero-sized result": (_write(lambda: single("Reshape", [0, 8], [0, 8], initializers=[_ints(0, 8)])), ()),
    "cycle": (_write(lambda: chain(("Add", ["x", "b"], ["a"]), ("Relu", ["a"], ["b"]), ("Relu", ["b"], ["y"]))), ()),
    "self-loop": (_write(lambda: chain(("Add", ["x", "y"], ["y"]))), ()),
    "undefined input": (_write(lambda: chain(("Add", ["x", "nowhere"], ["y"]))), ("nowhere",)),
    "undefined output": (_write(lambda: chain(("Relu", ["x"], ["z"]))), ("y",)),
    "duplicate tensor": (_write(lambda: chain(("Relu", ["x"], ["y"]), ("Tanh", ["x"], ["y"]))), ("y",)),
    "duplicate initializer": (
        _write(lambda: chain(("Add", ["x", "w"], ["y"]), initializers=(weights("w", (8,)),) * 2)),
        ("w",),
    ),
    "output shadows initializer": (
        _write(lambda: chain(("Relu", ["x"], ["w"]), ("Add", ["x", "w"], ["y"]), initializers=(weights("w", (8,)),))),
        ("w",),
    ),
    "output shadows input": (_write(lambda: chain(("Relu", ["x"], ["x"]), ("Relu", ["x"], ["y"]))), ("x",)),
    "constants alone": (
        _write(
            lambda: model(
                nodes_of(("Relu", ["w"], ["y"])),
                inputs=[],
                outputs=[value("y", [8])],
                initializers=[weights("w", (8,))],
            )
        ),
        (),
    ),
    "nothing but free nodes": (_write(lambda: chain(("Identity", ["x"], ["y"]))), ()),
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


@pytest.mark.parametrize("case", ["missing", "dynamic dimension", "2^40 tiled constant"])
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
    """If no network has a symbolic dimension, the error proposes to omit it."""
    words = ("estimate", small_network, "--device", "null01", "--dim", "batch=1")
    unchanged(*words).assert_refused(2, mentions=("all dimensions are fixed", "next: Omit it"))


def test_unknown_builtin_lists_the_known(unchanged: Harness) -> None:
    """A built-in network that does not exist is refused, and those that exist are listed."""
    unchanged("estimate", "builtin:resnet51", "--device", "null01").assert_refused(2, 3, mentions=("resnet50",))
