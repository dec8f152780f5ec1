"""Attention of ONNX Runtime becomes products and a softmax, with the runtime's values."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from quantised_networks import by_runtime, integers, network, on_npu
from reference_graph import run_graph
from small_models import node, values

from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.emulator_errors import EmulatorError, InvalidModel, UnsupportedOperator
from device_agents.emulated_npu.numpy_types import Array

BATCH, ROWS, HEADS, SIZE, PAST = 2, 3, 4, 8, 5
WIDTH = HEADS * SIZE
FED = ("x", "none", "k", "v", "pk", "pv", "past", "ids", "segments")


def check(op: str, inputs: str, tensors: Mapping[str, Array], outputs: str = "y", **attributes: Any) -> None:
    """Assert that a network of one node has the runtime's outputs; tensors of `FED` are inputs, others constants.

    Products of integers are computed by the machine, all others by the graph.
    """
    made = node(op, inputs, outputs, domain="com.microsoft", **attributes)
    used = {name: array for name, array in tensors.items() if name in inputs.split()}
    fed = {name: array for name, array in used.items() if name in FED}
    constants = {name: array for name, array in used.items() if name not in FED}
    proto = network([made], fed, constants, outputs.split())
    found = on_npu(proto, fed)[1] if op == "QAttention" else run_graph(import_model(proto), fed, {})
    for name, wanted in by_runtime(proto, fed).items():
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=2e-5 * max(1.0, float(np.abs(wanted).max())))


def heads(rows: int, seed: int) -> Array:
    """Return a tensor of heads."""
    return values((BATCH, HEADS, rows, SIZE), seed)


ONE_INPUT = {
    "x": values((BATCH, ROWS, WIDTH)),
    "w": values((WIDTH, 3 * WIDTH), 1, -0.3, 0.3),
    "b": values((3 * WIDTH,), 2),
    "keys": np.array([[1, 1, 0], [1, 1, 1]], np.int32),
    "rows": np.tril(np.ones((BATCH, ROWS, ROWS), np.int32)),
    "ends": np.array([2, 3], np.int32),
    "spans": np.array([2, 3, 0, 1], np.int32),
    "past": values((2, BATCH, HEADS, PAST, SIZE), 3),
    "bias": values((1, HEADS, ROWS, ROWS), 4),
}


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("inputs", ["x w b", "x w b keys", "x w b rows", "x w b ends", "x w b spans", "x w b - - bias"])
def test_attention_of_one_input(inputs: str, unidirectional: int) -> None:
    """Every form of mask and a bias, also where no query reads keys behind it."""
    check("Attention", inputs, ONE_INPUT, num_heads=HEADS, unidirectional=unidirectional)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_with_a_past(unidirectional: int) -> None:
    """Keys and values of the past come first, and are a result together with the new ones."""
    check("Attention", "x w b - past", ONE_INPUT, "y present", num_heads=HEADS, unidirectional=unidirectional)


def test_attention_with_other_sizes_of_values() -> None:
    """Values may have other sizes than queries and keys; the scale and the number of masked keys are attributes."""
    tensors = {**ONE_INPUT, "w": values((WIDTH, 2 * WIDTH + 16), 1), "b": values((2 * WIDTH + 16,), 2)}
    sizes = [WIDTH, WIDTH, 16]
    attributes = {"num_heads": HEADS, "qkv_hidden_sizes": sizes, "scale": 0.2, "mask_filter_value": -3.4e38}
    check("Attention", "x w b keys", tensors, **attributes)


SEVERAL = {
    "x": values((BATCH, ROWS, WIDTH)),
    "k": values((BATCH, PAST, WIDTH), 1),
    "v": values((BATCH, PAST, WIDTH), 2),
    "b": values((3 * WIDTH,), 3),
    "mask": np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], np.int32),
    "bias": values((1, HEADS, ROWS, PAST), 4),
}


@pytest.mark.parametrize("inputs", ["x k v", "x k v b", "x k v b mask", "x k v - - bias"])
def test_attention_of_several_inputs(inputs: str) -> None:
    """Queries read other rows, with a bias in front, a mask or a bias of the products."""
    check("MultiHeadAttention", inputs, SEVERAL, num_heads=HEADS)


def test_heads_of_another_sequence() -> None:
    """Keys and values that are stored by heads are read as they are."""
    check("MultiHeadAttention", "x k v", {"x": SEVERAL["x"], "k": heads(PAST, 1), "v": heads(PAST, 2)}, num_heads=HEADS)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_several_inputs_with_a_past(unidirectional: int) -> None:
    """Keys and values of the past come first."""
    rows = {name: values((BATCH, ROWS, WIDTH), seed) for seed, name in enumerate("xkv")}
    tensors = {**rows, "pk": heads(PAST, 4), "pv": heads(PAST, 5)}
    attributes = {"num_heads": HEADS, "unidirectional": unidirectional}
    check("MultiHeadAttention", "x k v - - - pk pv", tensors, "y keys values", **attributes)


@pytest.mark.parametrize("inputs", ["x k v", "x k v - mask"])
@pytest.mark.parametrize(("queries", "keys"), [(3, 5), (5, 3), (1, 4)])
def test_queries_of_another_sequence_read_up_to_their_own_place(queries: int, keys: int, inputs: str) -> None:
    """Query n of a unidirectional node reads the first n keys of another sequence, and the last query all of them."""
    tensors = {"x": values((BATCH, queries, WIDTH)), "mask": (np.arange(BATCH * keys) % 3 > 0).astype(np.int32)}
    tensors["mask"] = tensors["mask"].reshape(BATCH, keys)
    tensors |= {name: values((BATCH, keys, WIDTH), seed) for seed, name in enumerate("kv", 1)}
    check("MultiHeadAttention", inputs, tensors, num_heads=HEADS, unidirectional=1)


def grouped(past: int, total: int, buffer: int = 0) -> dict[str, Array]:
    """Return the tensors of a GroupQueryAttention with two heads of keys: new rows behind `past` of a buffer."""
    rows, size = total - past, 16  # the runtime takes no others, and one sequence only
    return {
        "x": values((1, rows, HEADS * size)),
        "k": values((1, rows, 2 * size), 1),
        "v": values((1, rows, 2 * size), 2),
        "packed": values((1, rows, (HEADS + 4) * size), 3),
        "pk": values((1, 2, buffer or past, size), 4),
        "pv": values((1, 2, buffer or past, size), 5),
        "last": np.full(1, total - 1, np.int32),
        "total": np.array(total, np.int32),
        "cos": values((16, size // 2), 6, -1, 1),
        "sin": values((16, size // 2), 7, -1, 1),
        "bias": values((1, 1, rows, total), 8),
        "sink": values((HEADS,), 9),
    }


@pytest.mark.parametrize(
    ("past", "total", "buffer"), [(0, 3, 3), (5, 6, 0), (5, 8, 0), (5, 6, 9), (0, 6, 9)], ids=lambda number: str(number)
)
@pytest.mark.parametrize("attributes", [{}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}])
def test_grouped_queries(past: int, total: int, buffer: int, attributes: dict[str, int]) -> None:
    """Heads of queries share keys; new keys go behind the past or into a buffer, and may be turned by their places."""
    inputs = "x k v pk pv last total cos sin" if attributes else "x k v pk pv last total"
    numbers = {"num_heads": HEADS, "kv_num_heads": 2, **attributes}
    check("GroupQueryAttention", inputs, grouped(past, total, buffer), "y keys values", **numbers)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ("x k v pk pv last total", {"local_window_size": 2}),
        ("x k v pk pv last total", {"softcap": 1.5, "scale": 0.6}),
        ("x k v pk pv last total", {"smooth_softmax": 1}),
        ("x k v pk pv last total - - - bias", {}),
        ("x k v pk pv last total - - - - sink", {}),
    ],
)
def test_forms_of_the_softmax(inputs: str, attributes: dict[str, float]) -> None:
    """A window, bounded products, a bias, and a sink that takes a part of the softmax."""
    check("GroupQueryAttention", inputs, grouped(5, 8), "y keys values", num_heads=HEADS, kv_num_heads=2, **attributes)


def test_heads_of_one_packed_input() -> None:
    """Queries, keys and values may be columns of one tensor."""
    tensors = {**grouped(5, 6), "x": grouped(5, 6)["packed"]}
    check("GroupQueryAttention", "x - - pk pv last total", tensors, "y keys values", num_heads=HEADS, kv_num_heads=2)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("places", [np.array([3]), np.array([[0, 1, 2], [4, 2, 7]])])
@pytest.mark.parametrize("by_heads", [False, True])
def test_rotation(by_heads: bool, places: Array, interleaved: int) -> None:
    """Pairs of elements are turned by the angles of their places, from the first one on or for each row."""
    tables = {name: values((16, SIZE // 2), seed, -1, 1) for seed, name in enumerate("cs")}
    tensors = {"x": heads(ROWS, 0) if by_heads else ONE_INPUT["x"], "p": places, **tables}
    check("RotaryEmbedding", "x p c s", tensors, interleaved=interleaved)


def test_rotation_of_a_part() -> None:
    """Elements behind those that are turned stay as they are."""
    tables = {name: values((16, SIZE // 4), seed) for seed, name in enumerate("cs")}
    tensors = {"x": ONE_INPUT["x"], "p": np.array([0]), **tables}
    check("RotaryEmbedding", "x p c s", tensors, num_heads=HEADS, rotary_embedding_dim=SIZE // 2)


def test_attention_of_integers() -> None:
    """Products of bytes are scaled, and then are those of attention."""
    tensors = {
        "x": integers((BATCH, ROWS, WIDTH), np.uint8),
        "w": integers((WIDTH, 3 * WIDTH), np.int8, 1),
        "b": ONE_INPUT["b"],
        "xs": np.float32(0.01),
        "ws": np.float32(0.003),
        "keys": ONE_INPUT["keys"],
        "xz": np.uint8(117),
        "wz": np.int8(0),
    }
    check("QAttention", "x w b xs ws keys xz wz", tensors, num_heads=HEADS)


@pytest.mark.parametrize("inputs", ["ids segments words places kinds g h", "ids - words places - g h mask"])
def test_embeddings(inputs: str) -> None:
    """Rows of words, places and segments are added and normalised; ones of a mask are counted."""
    tensors = {
        "ids": np.array([[1, 5, 3], [0, 2, 4]], np.int32),
        "segments": np.array([[0, 1, 1], [0, 0, 1]], np.int32),
        "words": values((6, 8), 0),
        "places": values((5, 8), 1),
        "kinds": values((2, 8), 2),
        "g": values((8,), 3),
        "h": values((8,), 4),
        "mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32),
    }
    check("EmbedLayerNormalization", inputs, tensors, "y count total", epsilon=1e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "error", "why"),
    [
        ("Attention", "x w b", "y", {"num_heads": 3}, InvalidModel, "3 heads do not divide"),
        ("Attention", "x w b", "y", {"num_heads": 0}, InvalidModel, "0 heads do not divide"),
        ("Attention", "x w b", "y", {"num_heads": HEADS, "qkv_hidden_sizes": [8]}, InvalidModel, "96 columns for [8]"),
        ("MultiHeadAttention", "x k v", "y - - q", {"num_heads": HEADS}, EmulatorError, "output of products"),
        ("MultiHeadAttention", "x", "y", {"num_heads": HEADS}, UnsupportedOperator, "packed heads"),
        ("MultiHeadAttention", "- k v", "y", {"num_heads": HEADS}, InvalidModel, "no input 0"),
        ("MultiHeadAttention", "- k", "y", {"num_heads": HEADS}, InvalidModel, "no input 0"),
        ("Attention", "none w b", "y", {"num_heads": HEADS}, UnsupportedOperator, "input 0 has no elements"),
        ("RotaryEmbedding", "x ids none none", "y", {}, InvalidModel, "input 2 has"),
        ("RotaryEmbedding", "x ids b b", "y", {}, InvalidModel, "input 2 has 1 axes"),
        (
            "GroupQueryAttention",
            "x k v - - ends ids",
            "y",
            {"num_heads": 4, "kv_num_heads": 3},
            InvalidModel,
            "3 of keys",
        ),
        (
            "GroupQueryAttention",
            "x k v - - ends ids",
            "y",
            {"num_heads": 4, "kv_num_heads": 4},
            EmulatorError,
            "total_sequence_length is not constant",
        ),
    ],
)
def test_reasons_of_refusals(
    op: str, inputs: str, outputs: str, attributes: dict[str, Any], error: type[EmulatorError], why: str
) -> None:
    """What does not fit or is not supported is refused with its reason."""
    tensors = {**ONE_INPUT, **{name: SEVERAL[name] for name in "kv"}, "ids": np.array(3, np.int32)}
    tensors["none"] = np.zeros((0, ROWS, WIDTH), np.float32)
    used = {name: array for name, array in tensors.items() if name in inputs.split()}
    fed = {name: array for name, array in used.items() if name in FED}
    made = node(op, inputs, "y", domain="com.microsoft", **attributes)
    made.output[:] = ["" if name == "-" else name for name in outputs.split()]
    proto = network([made], fed, {name: array for name, array in used.items() if name not in FED})
    with pytest.raises(error) as caught:
        import_model(proto)
    assert why in caught.value.why


def test_sequences_of_different_lengths_are_refused() -> None:
    """Constant lengths of sequences that contradict the total length are refused, not computed as the total length."""
    tensors = {**grouped(5, 6), "last": np.full(1, 3, np.int32)}
    with pytest.raises(UnsupportedOperator) as refusal:
        check("GroupQueryAttention", "x k v pk pv last total", tensors, num_heads=HEADS, kv_num_heads=2)
    assert "seqlens_k are not all 5" in refusal.value.why
