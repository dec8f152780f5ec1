"""Another batch for networks with fixed shapes: every row is what the file gives for it alone, or a refusal by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx_models import model_of, run_plain

from harness.errors import UnsupportedNetwork, UsageError
from harness.host_runtime import open_session, session_options
from harness.network.assemble import assemble_network
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.layers import cut
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.network.reading import batch_check
from harness.network.reading.batch import rebatch

BATCH = 6
_random = np.random.default_rng(0)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """Return a node whose names are given as words; `-` is an absent input."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=outputs.split()[0], **attributes)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    """Return normal weights, few enough to be sent as they are."""
    return _random.standard_normal(shape).astype(np.float32)


def shape(*sizes: int) -> np.ndarray[Any, Any]:
    """Return sizes as an operand."""
    return np.array(sizes, np.int64)


def attention(before: int = 1) -> ModelProto:
    """An attention of two heads whose Reshapes, class token and expanded bias hold the batch."""
    nodes = [
        node("Expand", "token token_shape", "tokens"),
        node("Concat", "tokens x", "t", axis=1),
        node("MatMul", "t w", "q"),
        node("Reshape", "q heads", "q4"),
        node("Transpose", "q4", "qt", perm=[0, 2, 1, 3]),
        node("Reshape", "qt merged", "q3"),
        node("Transpose", "q3", "k3", perm=[0, 2, 1]),
        node("MatMul", "q3 k3", "s"),
        node("Softmax", "s", "p", axis=-1),
        node("MatMul", "p q3", "v3"),
        node("Reshape", "v3 apart", "v4"),
        node("Transpose", "v4", "vt", perm=[0, 2, 1, 3]),
        node("Reshape", "vt flat", "v"),
        node("Add", "v position", "z"),
        node("ReduceMean", "z", "y", axes=[1], keepdims=0),
    ]
    constants = {
        "token": normal(1, 1, 8),
        "token_shape": shape(before, 1, 8),
        "w": normal(8, 8),
        "heads": shape(before, 6, 2, 4),
        "merged": shape(-1, 6, 4),
        "apart": shape(before, 2, 6, 4),
        "flat": shape(before, -1, 8),
        "position": normal(1, 6, 8),
    }
    return model_of(nodes, {"x": (before, 5, 8)}, ["y"], constants)


def recurrent() -> ModelProto:
    """An LSTM over the second axis with constant states that hold the batch, and a linear layer."""
    nodes = [
        node("Transpose", "x", "t", perm=[1, 0, 2]),
        node("LSTM", "t w r b - h c", "o last", hidden_size=4),
        node("Squeeze", "o one", "s"),
        node("Transpose", "s", "u", perm=[1, 0, 2]),
        node("MatMul", "u v", "y"),
    ]
    constants = {
        "w": normal(1, 16, 3),
        "r": normal(1, 16, 4),
        "b": normal(1, 32),
        "h": normal(1, 1, 4),
        "c": normal(1, 1, 4),
        "one": shape(1),
        "v": normal(4, 5),
    }
    return model_of(nodes, {"x": (1, 7, 3)}, ["y", "last"], constants)


def image(before: int = 1) -> ModelProto:
    """Convolution, group normalisation by Reshapes, a Resize to fixed sizes, and a flattening to the old batch."""
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Reshape", "a groups", "g"),
        node("InstanceNormalization", "g scale bias", "n"),
        node("Reshape", "n back", "b"),
        node("Resize", "b - - sizes", "r", mode="nearest"),
        node("Reshape", "r rows", "f"),
        node("Gemm", "f m", "y"),
    ]
    constants = {
        "w": normal(4, 2, 3, 3),
        "groups": shape(before, 2, -1),
        "scale": np.ones(2, np.float32),
        "bias": np.zeros(2, np.float32),
        "back": shape(before, 4, 3, 3),
        "sizes": shape(before, 4, 5, 5),
        "rows": shape(before, 100),
        "m": normal(100, 3),
    }
    return model_of(nodes, {"x": (before, 2, 3, 3)}, ["y"], constants)


def embedding() -> ModelProto:
    """Tokens and positions, as exporters write them for one sequence."""
    nodes = [
        node("Gather", "table ids", "e"),
        node("Gather", "places position", "p"),
        node("Add", "e p", "s"),
        node("LayerNormalization", "s scale bias", "n", axis=-1),
        node("Gather", "n first", "y", axis=1),
    ]
    constants = {
        "table": normal(20, 6),
        "places": normal(9, 6),
        "position": np.arange(5, dtype=np.int64)[None],
        "scale": np.ones(6, np.float32),
        "bias": np.zeros(6, np.float32),
        "first": np.array(0, np.int64),
    }
    return model_of(nodes, {"ids": (1, 5)}, ["y"], constants, types={"ids": TensorProto.INT64})


def saved(model: ModelProto, folder: Path) -> str:
    """Write a model and return its path."""
    path = folder / "fixed.onnx"
    onnx.save(model, path)
    return str(path)


def run_network(network: Network, feeds: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    """Return the outputs of a network as a device would run it."""
    model = assemble_network(network)
    assert not model.weights, "weights are sent as they are"
    session = open_session(model.content, session_options(threads=1))
    return session.run(None, dict(zip((spec.name for spec in model.inputs), feeds, strict=True)))


@pytest.mark.parametrize(
    ("build", "before"),
    [(attention, 1), (attention, 2), (attention, 4), (recurrent, 1), (image, 1), (image, 3), (embedding, 1)],
)
def test_every_row_is_what_the_file_gives_for_it_alone(build: Any, before: int, tmp_path: Path) -> None:
    """The network with another batch has all its inputs' leading dimension, and computes each row as the file does."""
    model = build() if before == 1 else build(before)
    network = load_network(saved(model, tmp_path), None, BATCH)
    assert all(network.types[name].shape[0] == BATCH for name in network.inputs)
    rows = -(-BATCH // before) * before
    kind = network.types[network.inputs[0]]
    values = _random.integers(0, 9, (rows, *kind.shape[1:])) if kind.dtype == "int64" else normal(rows, *kind.shape[1:])
    wanted = [value.name for value in model.graph.output]
    parts = [
        run_plain(model, {network.inputs[0]: values[at : at + before].astype(kind.dtype)}, wanted)
        for at in range(0, rows, before)
    ]
    got = run_network(network, [values[:BATCH].astype(kind.dtype)])
    for name, result in zip(wanted, got, strict=True):
        axis = 1 if name == "last" else 0
        expected = np.concatenate([part[name] for part in parts], axis).take(range(BATCH), axis)
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


def test_another_batch_is_another_network(tmp_path: Path) -> None:
    """Its layers have keys of their own, and so has its content; the batch of the file changes nothing."""
    path = saved(attention(), tmp_path)
    plain, same, other = load_network(path), load_network(path, None, 1), load_network(path, None, BATCH)
    keys = [{layer.key.digest for layer in cut(one, DEFAULT_RULES)} for one in (plain, same, other)]
    assert keys[0] == keys[1] and not keys[0] & keys[2]
    assert plain.sha256 == same.sha256 != other.sha256


def test_symbolic_leading_dimensions_are_bound(tmp_path: Path) -> None:
    """The batch binds them, named or not; another value for the same one is a contradiction."""
    nodes = [node("Add", "a b", "y")]
    path = saved(model_of(nodes, {"a": ("n", 4), "b": (1, 4)}), tmp_path)
    with pytest.raises(UnsupportedNetwork, match="'b' has 1"):
        load_network(path, None, BATCH)
    path = saved(model_of(nodes, {"a": ("n", "m"), "b": ("n", "m")}), tmp_path)
    network = load_network(path, {"m": 3}, BATCH)
    assert [network.types[name].shape for name in network.inputs] == [(BATCH, 3)] * 2
    with pytest.raises(UsageError, match="--batch 6 and --dim n=2"):
        load_network(path, {"m": 3, "n": 2}, BATCH)


def _states() -> ModelProto:
    model = recurrent()
    kept = [one for one in model.graph.initializer if one.name != "h"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, (1, 1, 4)))
    return model


REFUSED = {
    "reads a state, 'h'": _states(),
    "reads time": model_of(
        [node("GRU", "x w r", "o y", hidden_size=2)],
        {"x": (1, 4, 3)},
        constants={"w": normal(1, 6, 3), "r": normal(1, 6, 2)},
    ),
    "Row 0 of output 'y' differs": model_of([node("Softmax", "x", "y", axis=0)], {"x": (2, 4)}),
    "Row 1 of output 'y' differs": model_of(
        [node("CumSum", "x axis", "y")], {"x": (1, 4)}, constants={"axis": np.array(0, np.int64)}
    ),
    "'y' (ReduceSum) gives": model_of([node("ReduceSum", "x", "y", keepdims=1)], {"x": (1, 4)}),
    "'s' (Squeeze)": model_of(
        [node("Squeeze", "x first", "s"), node("Softmax", "s", "y")], {"x": (1, 4, 4)}, constants={"first": shape(0)}
    ),
    "different leading dimensions": model_of([node("Add", "a b", "y")], {"a": (2, 4), "b": (1, 4)}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_network_that_has_no_such_batch_is_refused_by_name(reason: str, tmp_path: Path) -> None:
    """The error names the file, the node or the output, and the next step."""
    path = saved(REFUSED[reason], tmp_path)
    with pytest.raises(UnsupportedNetwork) as caught:
        load_network(path, None, BATCH)
    assert caught.value.what == f"{path}: A batch of {BATCH} cannot be set"
    assert reason in caught.value.why and "--dim" in caught.value.next_step


def test_a_check_that_would_take_too_much_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limits nothing is compared, and a line gives the file and the reason."""
    path = saved(attention(), tmp_path)
    network = load_network(path, None)
    for limit, reason in (("MAX_CHECK_BYTES", "take"), ("MAX_CHECK_S", "one run takes")):
        with monkeypatch.context() as patch:
            patch.setattr(batch_check, limit, 0)
            assert reason in batch_check.check_rows(network, rebatch(network, BATCH))
    notes: list[str] = []
    load_network(path, None, BATCH, notes.append)
    assert not notes
    alike = model_of([node("Mul", "x zero", "y")], {"x": (1, 4)}, constants={"zero": np.zeros(1, np.float32)})
    load_network(saved(alike, tmp_path), None, BATCH, notes.append)
    assert path in notes[-1] and "all rows have the same result" in notes[-1]


def test_quantised_class_tokens_and_masks_of_windows_grow_with_the_batch(tmp_path: Path) -> None:
    """A constant behind DequantizeLinear, and one that repeats with each row's windows, are widened."""
    nodes = [
        node("DequantizeLinear", "token scale zero", "t"),
        node("Concat", "t x", "joined", axis=1),
        node("Reshape", "joined windows", "w"),
        node("Add", "w mask", "m"),
        node("Reshape", "m back", "y"),
    ]
    constants = {
        "token": np.arange(8, dtype=np.uint8).reshape(1, 1, 8),
        "scale": np.array(0.1, np.float32),
        "zero": np.array(3, np.uint8),
        "windows": shape(3, 2, 8),
        "mask": normal(3, 2, 8),
        "back": shape(1, 6, 8),
    }
    model = model_of(nodes, {"x": (1, 5, 8)}, ["y"], constants)
    network = load_network(saved(model, tmp_path), None, BATCH)
    values = normal(BATCH, 5, 8)
    expected = np.concatenate([run_plain(model, {"x": values[at : at + 1]}, ["y"])["y"] for at in range(BATCH)])
    np.testing.assert_allclose(run_network(network, [values])[0], expected, rtol=1e-5, atol=1e-5)
