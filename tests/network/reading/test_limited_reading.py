"""Files are read in a process with limits, which hands back the prepared network as plain data."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from harness.errors import ConfigurationError, NetworkError, UnresolvedDimension, UnsupportedNetwork
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.network.reading.network_codec import decode_network, encode_network
from harness.text import dim_options

_X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])


def _model(nodes: list[object], initializers: list[TensorProto]) -> ModelProto:
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
    graph = helper.make_graph(nodes, "g", [_X], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _einsum() -> ModelProto:
    """A constant of one element whose computation takes 4 GB."""
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["a"]),
        helper.make_node("Einsum", ["a", "a", "a", "a"], ["e"], equation="ab,cd,ac,bd->"),
        helper.make_node("Add", ["x", "e"], ["y"]),
    ]
    return _model(nodes, [numpy_helper.from_array(np.array([180, 180]), "size")])


def _endless_loop() -> ModelProto:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["v"], ["w"])],
        "b",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, [1])],
        [value("d", TensorProto.BOOL, []), value("w", TensorProto.FLOAT, [1])],
    )
    nodes = [
        helper.make_node("Loop", ["times", "true", "one"], ["l"], body=body),
        helper.make_node("Add", ["x", "l"], ["y"]),
    ]
    constants = {"times": np.array(1 << 60), "true": np.array(True), "one": np.ones(1, np.float32)}
    return _model(nodes, [numpy_helper.from_array(array, name) for name, array in constants.items()])


def _ordinary() -> ModelProto:
    nodes = [
        helper.make_node("Neg", ["w"], ["v"]),
        helper.make_node("Add", ["x", "v"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    ]
    return _model(nodes, [numpy_helper.from_array(np.arange(8, dtype=np.float32), "w")])


@pytest.fixture
def second_thread() -> Iterator[None]:
    """Another thread of this process, which may hold locks."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


def _same(found: Network, wanted: Network) -> bool:
    def plain(network: Network) -> object:
        values = {
            name: (constant.type, None if constant.value is None else constant.value.tobytes())
            for name, constant in network.constants.items()
        }
        return replace(network, constants={}), values

    return plain(found) == plain(wanted)


def test_constant_that_takes_gigabytes_to_compute_is_refused() -> None:
    """A file of 200 bytes may not take the memory of the host; the error names the file and how to allow more."""
    with pytest.raises(UnsupportedNetwork, match=r"g takes more than 512.* of memory to read.*HARNESS_READ_MEMORY="):
        load_network(_einsum(), {"n": 1})


def test_loop_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over constants has the processor time that the environment allows."""
    monkeypatch.setenv("HARNESS_READ_SECONDS", "1")
    with pytest.raises(UnsupportedNetwork, match=r"more than 1 s of processor time to read.*HARNESS_READ_SECONDS=10"):
        load_network(_endless_loop(), {"n": 1})


@pytest.mark.usefixtures("second_thread")  # a fork may use memory that its parent has freed; a new interpreter has none
@pytest.mark.parametrize("field", [5, 11, 13])
def test_messages_without_content_are_refused(field: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes of a file become a hundred in memory: initializers, inputs or types that say nothing."""
    monkeypatch.setenv("HARNESS_READ_MEMORY", "100M")
    monkeypatch.setenv("HARNESS_READ_SECONDS", "60")
    path = tmp_path / "net.onnx"
    graph = _ordinary().graph.SerializeToString() + bytes([field << 3 | 2, 0]) * 2_000_000
    size = b"".join(bytes([len(graph) >> shift & 127 | (128 if shift < 21 else 0)]) for shift in (0, 7, 14, 21))
    path.write_bytes(b"\x08\x09" + b"\x3a" + size + graph)
    with pytest.raises(NetworkError, match=r"net\.onnx .*takes more than 100"):  # protobuf may crash instead
        load_network(path)


@pytest.mark.parametrize("name", ["n;echo x", "$(echo x)", "`echo x`", "a b", "it's", "a>b", "*", "n"])
def test_advice_is_one_word_to_a_shell(name: str, tmp_path: Path) -> None:
    """The value of --dim in an advice is one word of a shell, whatever the name of the dimension."""
    model = _ordinary()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = name
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnresolvedDimension) as error:
        load_network(path)
    words = subprocess.run(
        ["sh", "-c", f"printf '%s|' {dim_options(dict.fromkeys(error.value.unset, 1))}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (words.stdout, words.stderr, list(tmp_path.iterdir())) == (f"--dim|{name}=1|", "", [path])


@pytest.mark.usefixtures("second_thread")
def test_network_is_the_same_beside_other_threads(tmp_path: Path) -> None:
    """With threads, a new interpreter reads the file; network and errors are those of a process without."""
    path = tmp_path / "net.onnx"
    path.write_bytes(_ordinary().SerializeToString())
    beside = load_network(path, {"n": 2})
    assert [node.op for node in beside.nodes] == ["Add", "Relu"]
    assert beside.types["y"].shape == (2, 8)
    with pytest.raises(UnresolvedDimension, match=r"net\.onnx: Dimension 'n' of input 'x'"):
        load_network(path)


@pytest.mark.parametrize("name", ["squeezenet", "mobilenetv2"])
def test_a_network_survives_being_handed_back(name: str) -> None:
    """What is handed back is the network: operators, types, constants with their values, free nodes."""
    network = replace(load_network(f"builtin:{name}"), file="")
    found, note = decode_network(encode_network(network, "a note"))
    assert _same(found, network)
    assert note == "a note"


def test_damaged_answers_are_refused() -> None:
    """An answer that is cut short or altered is a ValueError, or a network of valid types."""
    content = encode_network(load_network(_ordinary(), {"n": 1}))
    for end in range(0, len(content), 7):
        with pytest.raises(ValueError, match=r"."):
            decode_network(content[:end])
    altered = content.replace(b'"float32",[1,8]', b'"float32",[9,9]').replace(b'"float32",[8]', b'"float32",[7]')
    with pytest.raises(ValueError, match="another size"):
        decode_network(altered)


def test_process_that_crashes_is_named_by_its_signal() -> None:
    """A library that crashes ends the child alone."""
    program = (
        "import os, signal\n"
        "from harness.network.reading.limited_process import Limits, answer_of\n"
        "crash = lambda: os.kill(os.getpid(), signal.SIGKILL) or b''\n"
        "answer = answer_of(crash, '', bytes, Limits(1 << 28, 5, 20.0), bool)\n"
        "print(answer.content, int(answer.signal))\n"
    )  # in a process with one thread, which forks
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == f"b'' {int(signal.SIGKILL)}\n"


def test_a_line_that_is_drawn_pauses_for_a_fork() -> None:
    """The thread that draws a line of progress stops for the start of a child, and draws again afterwards."""
    program = (
        "import threading\n"
        "from harness.cli.terminal.progress import Repeated\n"
        "from harness.network.reading.limited_process import Limits, answer_of\n"
        "from harness.parallel import may_fork\n"
        "drawn = threading.Event()\n"
        "with Repeated(drawn.set):\n"
        "    print(drawn.wait(300.0), may_fork())\n"
        "    print(answer_of(lambda: b'forked', 'no module', bytes, Limits(1 << 28, 5, 20.0), bool).content)\n"
        "    drawn.clear()\n"
        "    print(drawn.wait(300.0), may_fork())\n"
        "print(may_fork())\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["True True", "b'forked'", "True True", "True"]


@pytest.mark.parametrize(("name", "value"), [("HARNESS_READ_MEMORY", "lots"), ("HARNESS_READ_SECONDS", "-1")])
def test_limits_that_are_none_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that holds no size or time ends the command, instead of the limit."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=name):
        load_network(_ordinary(), {"n": 1})


def _long_export(blocks: int) -> ModelProto:
    """Eight nodes a block, six of them arithmetic on shapes, as exporters write it, with a size of its own."""
    nodes: list[object] = []
    last = "x"
    for block in range(blocks):
        names = {name: f"{name}{block}" for name in "sgaukcry"}
        size = numpy_helper.from_array(np.array([block % 7 + 1]))
        nodes += [
            helper.make_node("Shape", [last], [names["s"]]),
            helper.make_node("Gather", [names["s"], "zero"], [names["g"]]),
            helper.make_node("Constant", [], [names["k"]], value=size),
            helper.make_node("Mul", [names["g"], names["k"]], [names["a"]]),
            helper.make_node("Div", [names["a"], names["k"]], [names["u"]]),
            helper.make_node("Concat", [names["u"], "eight"], [names["c"]], axis=0),
            helper.make_node("Reshape", [last, names["c"]], [names["r"]]),
            helper.make_node("Relu", [names["r"]], [names["y"] if block < blocks - 1 else "y"]),
        ]
        last = names["y"]
    constants = {"zero": np.array([0]), "eight": np.array([8])}
    return _model(nodes, [numpy_helper.from_array(array, name) for name, array in constants.items()])


def test_honest_network_of_many_nodes_is_read_within_the_default_limits() -> None:
    """Twelve thousand nodes, most of which fold, need no more time than a file may take."""
    network = load_network(_long_export(1500), {"n": 3})
    assert len(network.nodes) == 3000
    assert len(network.free) == 9000
    assert network.types["y"].shape == (3, 8)


def _tall(elements: int) -> ModelProto:
    """A product with a matrix whose values the file does not hold, and a batch of one."""
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ReduceSum", ["h"], ["s"], keepdims=1),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    model = _model(nodes, [numpy_helper.from_array(np.array([8, elements]), "size")])
    model.graph.node[2].input.append("last")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "last"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    return model


def test_rows_whose_comparison_takes_too_much_memory_are_not_compared() -> None:
    """Another batch is compared within limits; beyond them the network has the batch, and a note says why."""
    notes: list[str] = []
    network = load_network(_tall(1 << 24), batch=2, note=notes.append)
    assert network.types["h"].shape == (2, 1 << 24)
    assert len(notes) == 1
    assert "not compared: this takes more than 512" in notes[0]
    assert "HARNESS_READ_MEMORY=" in notes[0]


def test_rows_of_a_file_with_another_batch_are_compared() -> None:
    """A small file is compared within the limits, without a note."""
    notes: list[str] = []
    network = load_network(_tall(4), batch=2, note=notes.append)
    assert network.types["y"].shape == (2, 8)
    assert not notes
