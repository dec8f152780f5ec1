"""What a real runtime fuses of the examples holds for networks that no campaign has."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, save

from harness import cache
from harness.device.inventory import BUILT_IN
from harness.device.session import AgentSession, LoadRequest, Revealed, open_session
from harness.errors import BackendError
from harness.measure.fusion import cutting
from harness.measure.fusion.cutting import cut_as_reported
from harness.network.fusion.fusion_rules import FusionRule
from harness.network.fusion.rule_learning import learn_rules
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.network.network import Network

CHANNELS, EDGE = 48, 10
TAILS = {
    "gate": [helper.make_node("HardSigmoid", ["c"], ["y"], alpha=0.2)],
    "folded normalisation": [
        helper.make_node("Mul", ["c", "scale"], ["m"]),
        helper.make_node("Add", ["m", "shift"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ],
    "swish": [helper.make_node("Sigmoid", ["c"], ["s"]), helper.make_node("Mul", ["c", "s"], ["y"])],
    "hard swish as a product": [
        helper.make_node("HardSigmoid", ["c"], ["s"], alpha=1 / 6, beta=0.5),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ],
    "normalisation that others read, too": [
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("BatchNormalization", ["d", *["channels"] * 4], ["n"]),
        helper.make_node("Mul", ["n", "scale"], ["m"]),
        helper.make_node("Add", ["m", "shift"], ["a"]),
        helper.make_node("Relu", ["a"], ["e"]),
        helper.make_node("Conv", ["e", "square"], ["g"]),
        helper.make_node("Add", ["g", "d"], ["y"]),
    ],
    "gelu of newer exporters": [
        helper.make_node("Div", ["c", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["a"]),
        helper.make_node("Mul", ["a", "half"], ["h"]),
        helper.make_node("Mul", ["c", "h"], ["y"]),
    ],
    "gelu by tanh": [
        helper.make_node("Pow", ["c", "three"], ["p3"]),
        helper.make_node("Mul", ["p3", "cubic"], ["m"]),
        helper.make_node("Add", ["c", "m"], ["i"]),
        helper.make_node("Mul", ["i", "inner"], ["d"]),
        helper.make_node("Tanh", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["a"]),
        helper.make_node("Mul", ["a", "half"], ["h"]),
        helper.make_node("Mul", ["c", "h"], ["y"]),
    ],
    "gelu as one operator": [helper.make_node("Gelu", ["c"], ["y"])],
    "sine behind a product": [
        helper.make_node("MatMul", ["c", "product"], ["m"]),
        helper.make_node("Add", ["m", "bias"], ["b"]),
        helper.make_node("Sin", ["b"], ["y"]),
    ],
    "softmax": [helper.make_node("Softmax", ["c"], ["y"], axis=1)],
    "elements of what repeats": [
        helper.make_node("ArgMax", ["c"], ["i"], axis=1),
        helper.make_node("GlobalMaxPool", ["c"], ["m"]),
        helper.make_node("Expand", ["m", "whole"], ["e"]),
        helper.make_node("GatherElements", ["e", "i"], ["g"], axis=1),
        helper.make_node("Mul", ["g", "scale"], ["y"]),
    ],
}
SCALARS = {"root": 2**0.5, "one": 1, "half": 0.5, "three": 3, "cubic": 0.044715, "inner": (2 / np.pi) ** 0.5}


def network_of(folder: Path, nodes: list[NodeProto], name: str) -> Network:
    """Return a network that reads a map, between convolutions with nothing to fuse; `c` is a padded convolution."""
    arrays = {"w": np.ones((CHANNELS, CHANNELS, 3, 3)), "first": np.ones((CHANNELS, 4, 1, 1))}
    arrays |= {"last": np.ones((4, CHANNELS, 1, 1))}
    arrays |= {one: np.ones((CHANNELS, 1, 1)) for one in ("scale", "shift")}
    arrays |= {name: np.array(value) for name, value in SCALARS.items()}
    arrays |= {"channels": np.ones(CHANNELS), "square": np.ones((CHANNELS, CHANNELS, 1, 1))}
    arrays |= {"product": np.ones((EDGE, EDGE)), "bias": np.ones(EDGE)}
    weights = [numpy_helper.from_array(array.astype(np.float32), one) for one, array in arrays.items()]
    weights.append(numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "pads"))
    weights.append(numpy_helper.from_array(np.array([1, CHANNELS, EDGE, EDGE]), "whole"))
    front = [
        helper.make_node("Conv", ["x", "first"], ["f"], "first"),
        helper.make_node("Relu", ["f"], ["r"], "relu"),
        helper.make_node("Pad", ["r", "pads"], ["p"], "pad"),
        helper.make_node("Conv", ["p", "w"], ["c"], "conv"),
    ]
    graph = helper.make_graph(
        [*front, *nodes, helper.make_node("Conv", ["y", "last"], ["z"], "last")],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, EDGE, EDGE))],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, (1, 4, EDGE, EDGE))],
        weights,
    )
    path = folder / f"{name}.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return load_network(str(path))


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Network]:
    """Return all networks; they are read before a session has a thread, which takes a quarter of the time."""
    folder = tmp_path_factory.mktemp("networks")
    tails = {"known": [helper.make_node("Relu", ["c"], ["y"])], **TAILS}
    made = {name: network_of(folder, tail, f"tail{at}") for at, (name, tail) in enumerate(tails.items())}
    return {**made, "transformer": transformer(folder, 4, "transformer")}


@pytest.fixture(scope="module", params=["cpu01", "npu01"])
def any_session(request: pytest.FixtureRequest, networks: Mapping[str, Network]) -> Iterator[AgentSession]:  # noqa: ARG001
    """Lease the processor, or the emulated accelerator."""
    with open_session(BUILT_IN[request.param]) as opened:
        opened.acquire("the test")
        yield opened


@pytest.fixture(scope="module")
def rules(any_session: AgentSession, networks: Mapping[str, Network]) -> tuple[FusionRule, ...]:
    """Return the rules of a campaign of one network."""
    return cut_as_reported(any_session, [networks["known"]], lambda _: None, threading.Event())[1]


@pytest.fixture
def session() -> Iterator[AgentSession]:
    """Lease the processor."""
    with open_session(BUILT_IN["cpu01"]) as opened:
        opened.acquire("the test")
        yield opened


def transformer(folder: Path, heads: int, name: str) -> Network:
    """Return attention and a feed-forward part of 24 rows and 48 columns, as exporters write them."""
    rows, width = 24, 48
    arrays = {one: np.ones((width, width), np.float32) for one in ("wq", "wk", "wv", "wo", "wf")}
    arrays |= {one.replace("w", "b"): np.ones(width, np.float32) for one in arrays}
    arrays |= {
        "root": np.array(4, np.float32),
        "root2": np.array(2**0.5, np.float32),
        "half": np.array(0.5, np.float32),
        "one": np.array(1, np.float32),
    }
    weights = [numpy_helper.from_array(array, one) for one, array in arrays.items()]
    weights.append(numpy_helper.from_array(np.array([1, rows, heads, width // heads]), "split"))
    weights.append(numpy_helper.from_array(np.array([1, rows, width]), "merged"))
    nodes = [helper.make_node("Abs", ["x"], ["s"])]
    for one, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            helper.make_node("MatMul", ["s", f"w{one}"], [f"{one}0"], f"{one}.product"),
            helper.make_node("Add", [f"{one}0", f"b{one}"], [f"{one}1"], f"{one}.bias"),
            helper.make_node("Reshape", [f"{one}1", "split"], [f"{one}2"], f"{one}.reshape"),
            helper.make_node("Transpose", [f"{one}2"], [one], f"{one}.transpose", perm=perm),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["a0"], "scores"),
        helper.make_node("Div", ["a0", "root"], ["a1"], "scale"),
        helper.make_node("Softmax", ["a1"], ["a2"], "softmax", axis=-1),
        helper.make_node("MatMul", ["a2", "v"], ["a3"], "context"),
        helper.make_node("Transpose", ["a3"], ["a4"], "merge", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["a4", "merged"], ["a5"], "flat"),
        helper.make_node("MatMul", ["a5", "wo"], ["o0"], "output"),
        helper.make_node("Add", ["o0", "bo"], ["o1"], "output.bias"),
        helper.make_node("MatMul", ["o1", "wf"], ["f0"], "hidden"),
        helper.make_node("Add", ["f0", "bf"], ["f1"], "hidden.bias"),
        helper.make_node("Div", ["f1", "root2"], ["g0"], "gelu.div"),
        helper.make_node("Erf", ["g0"], ["g1"], "gelu.erf"),
        helper.make_node("Add", ["g1", "one"], ["g2"], "gelu.add"),
        helper.make_node("Mul", ["f1", "g2"], ["g3"], "gelu.mul"),
        helper.make_node("Mul", ["g3", "half"], ["y"], "gelu.half"),
    ]
    shape = (1, rows, width)
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    path = folder / f"{name}.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return load_network(str(path))


@pytest.mark.parametrize("tail", TAILS)
def test_unknown_networks_are_cut_as_the_device_cuts_them(
    any_session: AgentSession, rules: tuple[FusionRule, ...], networks: Mapping[str, Network], tail: str
) -> None:
    """With rules from the campaign of another network, a network is cut as the device reports of that network."""
    unknown = networks[tail]
    (reported,), _ = cut_as_reported(any_session, [unknown], lambda _: None, threading.Event())
    assert [layer.op for layer in cut(unknown, rules)] == [layer.op for layer in reported.layers]


def quantised(folder: Path, kind: str) -> Network:
    """Return a residual block of 10 channels and two pools in QDQ form; only the first pool keeps the scale.

    Two operators read the map before the block.
    """
    arrays = {"scale": np.array(0.1, np.float32), "other": np.array(0.2, np.float32), "zero": np.array(0, kind)}
    arrays |= {"dense": np.ones((10, 3, 3, 3), np.int8), "depthwise": np.ones((10, 1, 3, 3), np.int8)}
    weights = [numpy_helper.from_array(array, one) for one, array in arrays.items()]
    nodes: list[NodeProto] = []

    def converted(tensor: str, scale: str = "scale") -> str:
        nodes.append(helper.make_node("QuantizeLinear", [tensor, scale, "zero"], [f"{tensor}q"]))
        return integers(f"{tensor}q", scale)

    def integers(tensor: str, scale: str = "scale") -> str:
        read = f"{tensor}d{len(nodes)}"
        zero = [] if tensor in arrays else ["zero"]
        nodes.append(helper.make_node("DequantizeLinear", [tensor, scale, *zero], [read]))
        return read

    nodes.append(helper.make_node("Conv", [converted("x"), integers("dense")], ["c"], pads=[1] * 4))
    read = [converted("c"), integers("cq"), integers("depthwise")]
    nodes.append(helper.make_node("Conv", read[1:], ["d"], pads=[1] * 4, group=10))
    nodes.append(helper.make_node("Add", [read[0], converted("d")], ["a"]))
    nodes.append(helper.make_node("MaxPool", [converted("a")], ["p"], kernel_shape=[2, 2], strides=[2, 2]))
    nodes.append(helper.make_node("MaxPool", [converted("p")], ["m"], kernel_shape=[2, 2], strides=[2, 2]))
    shapes = {"x": (1, 3, 8, 8), converted("m", "other"): (1, 10, 2, 2)}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "quantised", values[:1], values[1:], weights)
    path = folder / "quantised.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return load_network(str(path))


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_unknown_networks_on_integers_are_cut_as_the_processor_cuts_them(
    session: AgentSession, tmp_path: Path, kind: str
) -> None:
    """By rules from a campaign of floats, layers on integers are those that the device reports, signed or not."""
    known = network_of(tmp_path, [helper.make_node("Relu", ["c"], ["y"])], "known")
    unknown = quantised(tmp_path, kind)
    _, rules = cut_as_reported(session, [known], lambda _: None, threading.Event())
    (reported,), _ = cut_as_reported(session, [unknown], lambda _: None, threading.Event())
    assert [layer.op for layer in cut(unknown, rules)] == [layer.op for layer in reported.layers]


def test_views_of_an_unknown_transformer_are_no_layers_of_the_accelerator(networks: Mapping[str, Network]) -> None:
    """By rules from a campaign without attention, each Transpose and Reshape is part of a product, as on the device."""
    known, unknown = networks["known"], networks["transformer"]
    with open_session(BUILT_IN["npu01"]) as opened:
        opened.acquire("the test")
        _, rules = cut_as_reported(opened, [known], lambda _: None, threading.Event())
        (reported,), _ = cut_as_reported(opened, [unknown], lambda _: None, threading.Event())
    for layers in (cut(unknown, rules), reported.layers):
        assert not {"Transpose", "Reshape"} & {layer.op for layer in layers}


def test_rules_of_examples_are_kept_for_devices_of_one_fingerprint(
    session: AgentSession, networks: Mapping[str, Network], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second session loads the network alone and has the same rules; another board or a damaged cache asks anew."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "own cache"))
    loaded: list[int] = []
    put = session.put

    def counted(request: LoadRequest) -> Revealed | None:
        loaded[-1] += 1
        return put(request)

    monkeypatch.setattr(session, "put", counted)

    def rules() -> tuple[FusionRule, ...]:
        loaded.append(0)
        cutting._rules_of_examples.cache_clear()  # as in another process
        return cut_as_reported(session, [networks["known"]], lambda _: None, threading.Event())[1]

    first, again = rules(), rules()
    monkeypatch.setattr(session, "board", "another")
    other = rules()
    for entry in (tmp_path / "own cache" / "results").iterdir():
        cache.put(entry.name, b"[[]]")
    assert first == again == other == rules()
    assert loaded == [2, 1, 2, 2]


def test_what_networks_show_counts_before_examples(networks: Mapping[str, Network]) -> None:
    """A rule of examples is dropped where a network shows something of the same operators, and added elsewhere."""
    network = networks["known"]
    conv, relu = (node.index for node in network.nodes if node.name == "conv" or node.outputs[0] == "y")
    examples = [FusionRule("Conv(x0);Relu(0)", 9, 9, "x"), FusionRule("Conv(x0);Tanh(0)", 9, 9, "x")]
    rules = learn_rules([(network, [frozenset({conv, relu})])], "runtime", examples)
    patterns = [rule.pattern for rule in rules if not rule.pattern.startswith("network")]
    assert patterns == ["Conv/dense/16(x0);Relu(0)", "Conv(x0);Tanh(0)"]


def test_a_runtime_that_reads_no_new_opset_still_shows_what_it_fuses(
    session: AgentSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that refuses the newest examples gets those of an older opset, without operators that it lacks."""
    monkeypatch.setenv(cache.VARIABLE, "")
    put, opsets = session.put, []

    def older(request: LoadRequest) -> Revealed | None:
        opsets.append(ModelProto.FromString(request.model).opset_import[0].version)
        if opsets[-1] >= 20:
            raise BackendError("Opset 20 is under development")
        return put(request)

    monkeypatch.setattr(session, "put", older)
    cutting._rules_of_examples.cache_clear()
    old = cutting._rules_of_examples(session)
    monkeypatch.setattr(session, "put", put)
    cutting._rules_of_examples.cache_clear()
    new = cutting._rules_of_examples(session)
    assert opsets == [20, 17]
    assert {rule.pattern for rule in new} - {rule.pattern for rule in old} <= {
        rule.pattern for rule in new if ";Gelu(" in rule.pattern
    }
    assert {rule.pattern for rule in old} <= {rule.pattern for rule in new}
