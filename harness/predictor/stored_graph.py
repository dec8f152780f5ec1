"""Check that a file holds the graph of a predictor, exactly as `tree_model` writes it, before anything runs it.

A table may come from anybody. A parser of ONNX files makes gigabytes of a few megabytes of empty messages, ONNX Runtime
follows trees by recursion until the stack ends, and a constant of another shape makes results of any size. So the
messages are counted first; then the trees must be trees, of limited depth; then the whole model must be the one that
`tree_model` makes of these trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.array_types import Ints
from harness.predictor.stored_parameters import METADATA_KEY, require_own_version
from harness.predictor.tree_model import ENSEMBLE, EnsembleArrays, assemble
from harness.predictor.trees import VOTES

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

MAX_BYTES = 1 << 27
"""A predictor trained on the maximum number of entries of a table has half of it."""
MAX_DEPTH = 2000
"""Branches from a root to a leaf: one for each operator, and those of a tree. ONNX Runtime ends at about 10,000."""
_MAX_METADATA = 1 << 24
_MAX_FEATURES = 1000
_MAX_FIELDS = 64
_MAX_NODES = 1 << 20
_MAX_SMALL_BYTES = 1 << 16
_MODEL_METADATA, _ATTRIBUTE_INTS = 14, 8
_LARGE = {
    "model": {7: "graph", _MODEL_METADATA: "bytes"},
    "graph": {1: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor"},
    "tensor": {9: "bytes"},
}
"""The fields of each message that are large in a predictor, by their numbers in onnx.proto, and what they hold."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_INTS_TAG = _ATTRIBUTE_INTS << 3
_ZERO, _ZERO_FLOAT = np.zeros(1, np.int64), np.zeros(1, np.float32)
_NO_TREES = EnsembleArrays(_ZERO, _ZERO, _ZERO_FLOAT, *(_ZERO,) * 5, _ZERO_FLOAT)
"""The placeholder for all trees when the rest of two models is compared."""


def check_model(content: bytes) -> None:
    """Raise ValueError unless the content is the model of a predictor, OtherVersion for that of another version."""
    import onnx
    from google.protobuf.message import DecodeError

    _check_size(memoryview(content))
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        raise ValueError("it is not an ONNX model") from error
    features = _features_of(model)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    require_own_version(metadata.get(METADATA_KEY, ""))
    _check_trees(_take_trees(model), features)
    if _canonical(model) != _canonical(assemble(_NO_TREES, features, metadata)):
        raise ValueError("its graph is not that of a predictor")


def _check_size(model: memoryview) -> None:
    """Raise ValueError for more messages than a predictor has, or larger ones; reads no more than their lengths."""
    if len(model) > MAX_BYTES or _small_bytes(model, "model") > _MAX_SMALL_BYTES:
        raise ValueError("it is larger than a predictor")
    metadata = (part for number, part in _fields(model) if number == _MODEL_METADATA)
    if any(len(part) > _MAX_METADATA for part in metadata):
        raise ValueError("its metadata is too large")


def _small_bytes(message: memoryview, kind: str) -> int:
    """Return the bytes of all parts but those that are large in a predictor."""
    total = 0
    for number, part in _fields(message, passing_ints=kind == "attribute"):
        below = _LARGE[kind].get(number, "small")
        total += 0 if below == "bytes" else len(part) if below == "small" else _small_bytes(part, below)
    return total


def _fields(message: memoryview, *, passing_ints: bool = False) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of at most `_MAX_FIELDS` fields; `passing_ints` does not count an attribute's integers.

    Raises ValueError for more fields, and for bytes that are not a message.
    """
    at = count = 0
    while at < len(message):
        if passing_ints and message[at] == _INTS_TAG:
            at += _length_of_ints(message[at:])
            continue
        tag, at = _varint(message, at)
        kind, number = tag & 7, tag >> 3
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _LENGTH:
            size, at = _varint(message, at)
        elif kind == _VARINT:
            _, at = _varint(message, at)
        elif not size:
            raise ValueError("it is not an ONNX model")
        count += 1
        if count > _MAX_FIELDS or at + size > len(message):
            raise ValueError("it has more parts than a predictor" if count > _MAX_FIELDS else "it is cut")
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        if byte < 0x80:
            return value, at
    raise ValueError("it is not an ONNX model")


def _length_of_ints(message: memoryview) -> int:
    """Return the length of the integers at the beginning of an attribute's message: tag and value, again and again."""
    ends = np.flatnonzero(np.frombuffer(message, np.uint8) < 0x80)[: 2 * (len(message) // 2)]
    tags, values = ends[::2], ends[1::2]
    begins = np.concatenate([[0], values[:-1] + 1]) if values.size else np.zeros(0, np.int64)
    pairs = min(tags.size, values.size)
    same = (tags[:pairs] == begins[:pairs]) & (np.frombuffer(message, np.uint8)[tags[:pairs]] == _INTS_TAG)
    whole = pairs if bool(same.all()) else int(np.argmin(same))
    if not whole:
        raise ValueError("it is not an ONNX model")
    if whole > _MAX_NODES:
        raise ValueError(f"its trees have more than {_MAX_NODES:,} branches")
    return int(values[whole - 1]) + 1


def _take_trees(model: ModelProto) -> EnsembleArrays:
    """Return the trees of a model's first operator, and leave `_NO_TREES` there; raises ValueError if it has none."""
    node: NodeProto | None = next(iter(model.graph.node), None)
    given = {item.name: item for item in node.attribute} if node is not None else {}
    if node is None or node.op_type != ENSEMBLE or len(given) != len(node.attribute):
        raise ValueError("its first operator is not a TreeEnsemble")

    def whole_numbers(name: str) -> Ints:
        attribute = _named(given, name)
        values = np.array(attribute.ints, np.int64)
        attribute.ints[:] = [0]
        return values

    feature = whole_numbers("nodes_featureids")
    modes = _taken_tensor(_named(given, "nodes_modes").t, np.dtype(np.uint8))
    if len(modes) != len(feature) or modes.any():
        raise ValueError("its trees have branches of an unknown kind")
    return EnsembleArrays(
        roots=whole_numbers("tree_roots"),
        feature=feature,
        split=_taken_tensor(_named(given, "nodes_splits").t, np.dtype("<f4")),
        true=whole_numbers("nodes_truenodeids"),
        false=whole_numbers("nodes_falsenodeids"),
        true_is_leaf=whole_numbers("nodes_trueleafs"),
        false_is_leaf=whole_numbers("nodes_falseleafs"),
        target=whole_numbers("leaf_targetids"),
        weight=_taken_tensor(_named(given, "leaf_weights").t, np.dtype("<f4")),
    )


def _named(attributes: dict[str, AttributeProto], name: str) -> AttributeProto:
    if name not in attributes:
        raise ValueError(f"its trees have no {name}")
    return attributes[name]


def _taken_tensor(tensor: TensorProto, kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of a list of numbers, and leave one zero; raises ValueError if they are not in the tensor."""
    size = len(tensor.raw_data) // kind.itemsize
    if not _is_plain(tensor) or list(tensor.dims) != [size] or len(tensor.raw_data) % kind.itemsize:
        raise ValueError("a tensor of its trees is malformed or refers to a file")
    values = np.frombuffer(tensor.raw_data, kind)
    tensor.dims[:] = [1]
    tensor.raw_data = bytes(kind.itemsize)
    return values


def _is_plain(tensor: TensorProto) -> bool:
    return not tensor.external_data and tensor.data_location == 0


def _features_of(model: ModelProto) -> int:
    sizes = [one.dim_value for value in model.graph.input for one in value.type.tensor_type.shape.dim]
    if len(sizes) != 2 or not 1 < sizes[1] <= _MAX_FEATURES:
        raise ValueError("its input is not that of a predictor")
    return int(sizes[1])


def _check_trees(trees: EnsembleArrays, features: int) -> None:
    """Raise ValueError unless every branch and leaf is below one root, on one way, within `MAX_DEPTH`."""
    nodes, leaves = len(trees.feature), len(trees.target)
    by_node = (trees.split, trees.true, trees.false, trees.true_is_leaf, trees.false_is_leaf)
    if {len(values) for values in by_node} != {nodes} or len(trees.weight) != leaves:
        raise ValueError("its trees have lists of different lengths")
    for is_leaf in (trees.true_is_leaf, trees.false_is_leaf):
        if ((is_leaf != 0) & (is_leaf != 1)).any():
            raise ValueError("its trees are malformed")
    flags = np.concatenate([trees.true_is_leaf, trees.false_is_leaf]).astype(bool)
    below = np.concatenate([trees.true, trees.false])
    inner, ends = np.concatenate([trees.roots, below[~flags]]), below[flags]
    for places, count in ((inner, nodes), (ends, leaves)):
        # Exactly one way leads to each: then only a ring that no root leads to is not a tree.
        if len(places) != count or not np.array_equal(np.sort(places), np.arange(count)):
            raise ValueError("its trees share branches or refer to missing ones")
    if not 0 <= trees.target.min(initial=0) <= trees.target.max(initial=0) < VOTES:
        raise ValueError("its trees have unknown targets")
    if trees.feature.min(initial=0) < 0 or trees.feature.max(initial=0) >= features:
        raise ValueError("its trees use a feature that layers do not have")
    _check_depth(trees)


def _check_depth(trees: EnsembleArrays) -> None:
    reached, level = 0, trees.roots
    for _ in range(MAX_DEPTH):
        reached += len(level)
        following = np.concatenate([trees.true[level], trees.false[level]])
        leaf = np.concatenate([trees.true_is_leaf[level], trees.false_is_leaf[level]]).astype(bool)
        level = following[~leaf]
        if not len(level):
            break
    if len(level):
        raise ValueError(f"its trees are deeper than {MAX_DEPTH:,} branches")
    if reached != len(trees.feature):
        raise ValueError("its trees contain a ring")


def _canonical(model: ModelProto) -> bytes:
    """Return a model as bytes that are equal for equal models, and change it; raises ValueError for values in files.

    Versions of onnx store the values of a small tensor in different fields.
    """
    from onnx import TensorProto, numpy_helper

    for tensor in model.graph.initializer:
        if (
            len(tensor.dims) != 1
            or not _is_plain(tensor)
            or tensor.data_type not in (TensorProto.INT64, TensorProto.FLOAT)
        ):
            raise ValueError("a constant of its graph has an unknown type or refers to a file")
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    return bytes(model.SerializeToString(deterministic=True))
