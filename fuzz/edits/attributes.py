"""Change attributes within their legal ranges, and constants that stand for attributes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, defs, helper, numpy_helper

from fuzz.edits.draft import Draft, Edit, Unsuited, copied

_WINDOWED = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "ConvInteger")
_FLAGS = ("keepdims", "transA", "transB", "count_include_pad", "ceil_mode", "exclusive", "reverse", "largest", "sorted")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "direction": ("forward", "reverse", "bidirectional"),
    "coordinate_transformation_mode": ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"),
    "nearest_mode": ("round_prefer_floor", "floor", "ceil"),
    "alpha": (0.0, 0.01, 1.0, -1.0, 1e30),
    "beta": (0.0, 0.5, 1.0),
    "epsilon": (0.0, 1e-5, 1.0),
    "momentum": (0.0, 0.9, 1.0),
    "p": (1, 2, 3),
    "noop_with_empty_axes": (0, 1),
    "training_mode": (0,),
    "approximate": ("none", "tanh"),
    "detect_positive": (0, 1),
    "select_last_index": (0, 1),
    "stash_type": (1,),
    "layout": (0, 1),
    "batch_dims": (0, 1),
    "linear_before_reset": (0, 1),
    "storage_order": (0, 1),
    "to": (1, 10, 11, 6, 7, 9, 2, 3),
}


def known_attribute(draft: Draft) -> None:
    """Set an attribute of the operator's schema to one of the values that are usual for it."""
    node = draft.pick([node for node in draft.graph.node if defs.has(node.op_type, draft.opset, node.domain)])
    schema = defs.get_schema(node.op_type, draft.opset, node.domain)
    rank = len(draft.types[node.input[0]].shape) if node.input and node.input[0] in draft.types else 0
    choices = {name: _CHOICES[name] for name in schema.attributes if name in _CHOICES}
    choices |= {name: (0, 1) for name in schema.attributes if name in _FLAGS}
    if "axis" in schema.attributes and rank:
        choices["axis"] = tuple(range(-rank if draft.opset >= 11 else 0, rank))
    name = draft.pick(sorted(choices))
    _set(node, name, draft.draw.choice(choices[name]))
    _keep_valid(draft, node)


def window(draft: Draft) -> None:
    """Change kernel, strides, dilations, pads or output padding of an operator with a window."""
    node = draft.pick([node for node in draft.graph.node if node.op_type in _WINDOWED])
    if node.input[0] not in draft.types:
        raise Unsuited("its rank is unknown")
    spatial = len(draft.types[node.input[0]].shape) - 2
    names = ["strides", "pads"] + (["dilations"] if "Pool" not in node.op_type or draft.opset >= 19 else [])
    names += ["kernel_shape"] if "Pool" in node.op_type else []
    name = draft.draw.choice(names)
    least = 0 if name == "pads" else 1
    values = [draft.draw.choice((least, 1, 1, 2, 3)) for _ in range(2 * spatial if name == "pads" else spatial)]
    if name == "pads":
        _remove(node, "auto_pad")
    _set(node, name, values)
    _keep_valid(draft, node)


def remove(draft: Draft) -> None:
    """Leave an attribute to its default."""
    node = draft.pick([node for node in draft.graph.node if node.attribute and node.op_type != "Constant"])
    _remove(node, draft.pick([item.name for item in node.attribute]))
    _keep_valid(draft, node)


def swap(draft: Draft) -> None:
    """Permute the numbers of an attribute, such as a permutation or axes."""
    node = draft.pick([node for node in draft.graph.node if any(len(item.ints) > 1 for item in node.attribute)])
    item = draft.pick([item for item in node.attribute if len(item.ints) > 1])
    values = list(item.ints)
    draft.draw.shuffle(values)
    item.ints[:] = values
    _keep_valid(draft, node)


def constant_operand(draft: Draft) -> None:
    """Change a small integer constant, such as a target shape, axes or the ends of a slice."""
    tensors = [(one.name, one) for one in draft.graph.initializer]
    tensors += [(node.output[0], node.attribute[0].t) for node in draft.graph.node if node.op_type == "Constant"]
    name, tensor = draft.pick([one for one in tensors if one[1].data_type in (6, 7) and 0 < np.prod(one[1].dims) <= 8])
    array = numpy_helper.to_array(tensor).copy()
    at = draft.draw.randrange(array.size)
    least, most = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
    array.reshape(-1)[at] = min(most, max(least, int(array.reshape(-1)[at]) + draft.draw.choice((-1, 1, 1, 2))))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    readers = [node for node in draft.graph.node if name in node.input]
    _keep_valid(draft, draft.pick(readers))


def absent_operand(draft: Draft) -> None:
    """Leave an optional operand out."""
    node = draft.pick([node for node in draft.graph.node if len(node.input) > 2])
    at = draft.draw.randrange(2, len(node.input))
    if at + 1 == len(node.input):
        del node.input[at]
    else:
        node.input[at] = ""
    _keep_valid(draft, node)


def _keep_valid(draft: Draft, node: NodeProto) -> None:
    """Cut the network behind a node whose results may have changed their types: its results become outputs."""
    name = next(name for name in node.output if name)
    if draft.draw.random() < 0.6:  # what follows often accepts the new type; a check of the whole network decides
        return
    at = next(at for at, other in enumerate(draft.graph.node) if name in other.output)
    behind = [number for number, other in enumerate(draft.graph.node) if number > at and name in other.input]
    draft.output(name)
    if behind:
        draft.drop(behind)


def _remove(node: NodeProto, name: str) -> None:
    kept = [copied(item) for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)


def _set(node: NodeProto, name: str, value: Any) -> None:
    _remove(node, name)
    make: Callable[[str, Any], AttributeProto] = helper.make_attribute
    node.attribute.append(make(name, value))


EDITS: tuple[Edit, ...] = (known_attribute, window, remove, swap, constant_operand, absent_operand)
