"""Insert, replace and delete operators: element-wise ones, convolutions, products, pooling, recurrent ones."""

from typing import Any

import numpy as np

from fuzz.edits.draft import Draft, Edit, Kind, Unsuited

_UNARY: dict[str, dict[str, tuple[Any, ...]]] = {
    **{name: {} for name in ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Sqrt", "Floor", "Ceil", "Erf", "Sign")},
    **{name: {} for name in ("Softplus", "Softsign", "Reciprocal", "Identity", "Dropout", "Sin", "Log", "Round")},
    "Elu": {"alpha": (0.5, 1.0)},
    "Selu": {"alpha": (1.0, 1.67), "gamma": (1.05,)},
    "LeakyRelu": {"alpha": (0.01, 0.2, 1.0)},
    "HardSigmoid": {"alpha": (0.2,), "beta": (0.5,)},
    "ThresholdedRelu": {"alpha": (1.0, 0.1)},
}
_SINCE = {"HardSwish": 14, "Mish": 18, "Gelu": 20, "Celu": 12, "Swish": 24}
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Mean")
_COMPARISONS = ("Greater", "Less", "Equal")


def unary(draft: Draft) -> None:
    """Insert an element-wise operator."""
    tensor, _ = draft.choose(lambda kind: kind.is_float)
    newer = [name for name, since in _SINCE.items() if since <= draft.opset]
    operator = draft.draw.choice((*_UNARY, *newer))
    chosen = {name: draft.draw.choice(values) for name, values in _UNARY.get(operator, {}).items()}
    given = {name: value for name, value in chosen.items() if draft.draw.random() < 0.7}
    draft.attach(draft.append(operator, [tensor], **given)[0], tensor)


def softmax(draft: Draft) -> None:
    """Insert an operator along one axis."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and len(kind.shape) > 0)
    rank = len(kind.shape)
    operator = draft.draw.choice(("Softmax", "LogSoftmax", "Hardmax"))
    given: dict[str, Any] = (
        {} if draft.draw.random() < 0.3 else {"axis": draft.draw.randrange(-rank if draft.opset >= 11 else 0, rank)}
    )
    draft.attach(draft.append(operator, [tensor], **given)[0], tensor)


def clip(draft: Draft) -> None:
    """Insert Clip, whose bounds are attributes or inputs."""
    tensor, kind = draft.choose(lambda kind: kind.is_float)
    if draft.opset < 11:
        draft.attach(draft.append("Clip", [tensor], min=0.0, max=6.0)[0], tensor)
        return
    bounds = [draft.constant(np.array(value, kind.dtype)) for value in (0, 6)]
    given = draft.draw.choice(([tensor, *bounds], [tensor, bounds[0]], [tensor, "", bounds[1]], [tensor]))
    draft.attach(draft.append("Clip", given)[0], tensor)


def binary(draft: Draft) -> None:
    """Insert an operator of two inputs: a constant that is broadcast, or another tensor of the same type."""
    tensor, kind = draft.choose(lambda kind: kind.is_float)
    operator = draft.draw.choice(_BINARY)
    others = [name for name in draft.tensors(lambda other: other == kind) if name != tensor]
    if others and draft.draw.random() < 0.5:
        other = draft.draw.choice(others)
    else:
        kept = [size if draft.draw.random() < 0.6 else 1 for size in kind.shape]
        other = draft.numbers(Kind(kind.element, tuple(kept[draft.draw.randrange(len(kept) + 1) :])))
    inputs = [tensor, other] if draft.draw.random() < 0.8 else [other, tensor]
    draft.attach(draft.append(operator, inputs)[0], tensor)


def prelu(draft: Draft) -> None:
    """Insert PRelu with a slope for each channel."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and len(kind.shape) > 1)
    slope = draft.numbers(Kind(kind.element, (kind.shape[1], *(1,) * (len(kind.shape) - 2))))
    draft.attach(draft.append("PRelu", [tensor, slope])[0], tensor)


def choice(draft: Draft) -> None:
    """Insert a comparison, and Where or Cast behind it."""
    tensor, kind = draft.choose(lambda kind: kind.is_float)
    (found,) = draft.append(draft.draw.choice(_COMPARISONS), [tensor, draft.numbers(Kind(kind.element, ()))])
    if draft.draw.random() < 0.3:
        (found,) = draft.append("Not", [found])
    if draft.draw.random() < 0.5:
        draft.attach(draft.append("Where", [found, tensor, draft.numbers(Kind(kind.element, ()))])[0], tensor)
    else:
        draft.attach(draft.append("Cast", [found], to=kind.element)[0], tensor)


def convolution(draft: Draft) -> None:
    """Insert a convolution of any kernel, stride, padding, dilation and grouping."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and len(kind.shape) in (3, 4, 5))
    draw, spatial, channels = draft.draw, len(kind.shape) - 2, kind.shape[1]
    kernel = [draw.choice([size for size in (1, 2, 3) if size <= edge]) for edge in kind.shape[2:]]
    groups = draw.choice([size for size in range(1, channels + 1) if channels % size == 0])
    out_channels = draw.choice((channels, groups, 2 * groups, 4 * groups))
    is_transposed = draw.random() < 0.25
    shape = (channels, out_channels // groups) if is_transposed else (out_channels, channels // groups)
    if 0 in shape or out_channels % groups:
        raise Unsuited("channels do not divide")
    inputs = [tensor, draft.numbers(Kind(kind.element, (*shape, *kernel)))]
    inputs += [draft.numbers(Kind(kind.element, (out_channels,)))] if draw.random() < 0.4 else []
    options: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [draw.choice((1, 1, 2)) for _ in range(spatial)],
        "dilations": [draw.choice((1, 1, 2)) for _ in range(spatial)],
        "pads": draw.choice(([size // 2 for size in kernel] * 2, [0] * 2 * spatial, [1] * 2 * spatial)),
    }
    given = {name: value for name, value in options.items() if draw.random() < 0.6}
    if "pads" not in given and draw.random() < 0.3:
        given["auto_pad"] = draw.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    if groups > 1 or draw.random() < 0.3:
        given["group"] = groups
    draft.attach(draft.append("ConvTranspose" if is_transposed else "Conv", inputs, **given)[0], tensor)


def pooling(draft: Draft) -> None:
    """Insert pooling, with a window or over everything."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and len(kind.shape) in (3, 4, 5))
    draw, spatial = draft.draw, len(kind.shape) - 2
    operator = draw.choice(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"))
    given: dict[str, Any] = {}
    if not operator.startswith("Global"):
        given["kernel_shape"] = [draw.choice([size for size in (1, 2, 3) if size <= edge]) for edge in kind.shape[2:]]
        given |= {"strides": [draw.choice((1, 2))] * spatial} if draw.random() < 0.6 else {}
        given |= {"pads": [size // 2 for size in given["kernel_shape"]] * 2} if draw.random() < 0.5 else {}
        given |= {"ceil_mode": 1} if draft.opset >= 10 and operator != "LpPool" and draw.random() < 0.3 else {}
        given |= {"count_include_pad": 1} if operator == "AveragePool" and draw.random() < 0.3 else {}
    outputs = 2 if operator == "MaxPool" and draft.opset >= 8 and draw.random() < 0.2 else 1
    draft.attach(draft.append(operator, [tensor], outputs, **given)[0], tensor)


def product(draft: Draft) -> None:
    """Insert a matrix product with weights, or of a tensor with itself."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and len(kind.shape) > 1)
    draw, depth = draft.draw, kind.shape[-1]
    columns = draw.choice((depth, depth, 1, 4, 16))
    if len(kind.shape) == 2 and draw.random() < 0.5:
        is_transposed = draw.random() < 0.5
        weight = draft.numbers(Kind(kind.element, (columns, depth) if is_transposed else (depth, columns)))
        bias = [draft.numbers(Kind(kind.element, draw.choice(((columns,), (1, columns), (1,)))))]
        given: dict[str, Any] = {"transB": 1} if is_transposed else {}
        given |= {"alpha": 0.5} if draw.random() < 0.2 else {}
        inputs = [tensor, weight, *(bias if draw.random() < 0.7 or draft.opset < 11 else [])]
        draft.attach(draft.append("Gemm", inputs, **given)[0], tensor)
    elif draw.random() < 0.25:
        rank = len(kind.shape)
        (turned,) = draft.append("Transpose", [tensor], perm=[*range(rank - 2), rank - 1, rank - 2])
        draft.attach(draft.append("MatMul", [tensor, turned])[0], tensor)
    else:
        shape = (depth, columns) if draw.random() < 0.8 else (*kind.shape[:-2], depth, columns)
        draft.attach(draft.append("MatMul", [tensor, draft.numbers(Kind(kind.element, shape))])[0], tensor)


def normalization(draft: Draft) -> None:
    """Insert a normalization with parameters for each channel or for the last axis."""
    tensor, kind = draft.choose(lambda kind: kind.is_float and len(kind.shape) > 1)
    operator = draft.draw.choice(("BatchNormalization", "InstanceNormalization", "LRN", "LayerNormalization", "LpNorm"))
    if operator == "LayerNormalization":
        if draft.opset < 17:
            raise Unsuited("no such operator")
        inputs = [tensor, *(draft.numbers(Kind(kind.element, kind.shape[-1:])) for _ in range(2))]
        draft.attach(draft.append(operator, inputs, axis=-1)[0], tensor)
    elif operator in ("LRN", "LpNorm"):
        given: dict[str, Any] = {"size": 3} if operator == "LRN" else {"axis": 1}
        draft.attach(draft.append(operator.replace("Norm", "Normalization"), [tensor], **given)[0], tensor)
    else:
        count = 4 if operator.startswith("Batch") else 2
        inputs = [tensor, *(draft.numbers(Kind(kind.element, kind.shape[1:2])) for _ in range(count))]
        draft.attach(draft.append(operator, inputs, epsilon=1e-3)[0], tensor)


def recurrent(draft: Draft) -> None:
    """Insert a recurrent operator that reads a tensor of three axes as (time, batch, features)."""
    tensor, kind = draft.choose(lambda kind: kind.element == 1 and len(kind.shape) == 3)
    operator, gates = draft.draw.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    hidden, ways = draft.draw.choice((1, 2, kind.shape[2])), draft.draw.choice((1, 2))
    given: dict[str, Any] = {"hidden_size": hidden}
    given |= {"direction": "bidirectional"} if ways == 2 else {"direction": draft.draw.choice(("forward", "reverse"))}
    weights = [draft.numbers(Kind(kind.element, (ways, gates * hidden, width))) for width in (kind.shape[2], hidden)]
    (found,) = draft.append(operator, [tensor, *weights], **given)
    (found,) = (
        draft.append("Squeeze", [found, draft.constant(np.array([1]))]) if draft.opset >= 13 and ways == 1 else [found]
    )
    draft.attach(found, tensor)


def delete(draft: Draft) -> None:
    """Delete a node: its readers read its input if that has the same type; else they are deleted, too."""
    at = draft.draw.randrange(len(draft.graph.node))
    node = draft.graph.node[at]
    results = [name for name in node.output if name]
    kinds = {name: draft.types.get(name) for name in results}
    same = [name for name in node.input if name in draft.types and draft.types[name] == kinds.get(results[0])]
    if not same or len(results) > 1 or draft.draw.random() < 0.2:
        draft.drop([at])
        return
    if any(value.name == results[0] for value in draft.graph.output):
        raise Unsuited("it writes an output")
    for other in draft.graph.node:
        other.input[:] = [same[0] if name == results[0] else name for name in other.input]
    del draft.graph.node[at]


def replace(draft: Draft) -> None:
    """Put another operator with inputs and results of the same types in the place of one."""
    groups: tuple[tuple[str, ...], ...] = (
        ("Conv", "ConvTranspose"),
        ("MaxPool", "AveragePool", "LpPool"),
        _BINARY[:6],
        tuple(_UNARY)[:18],
    )
    groups += (("GlobalAveragePool", "GlobalMaxPool"), ("Softmax", "LogSoftmax", "Hardmax"), ("LSTM", "GRU", "RNN"))
    groups += (("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"), ("Sum", "Mean", "Max"))
    known = {operator for group in groups for operator in group}
    node = draft.pick([node for node in draft.graph.node if node.op_type in known and not node.domain])
    group = draft.pick([group for group in groups if node.op_type in group])
    node.op_type = draft.draw.choice(group)


EDITS: tuple[Edit, ...] = (
    unary,
    softmax,
    clip,
    binary,
    binary,
    prelu,
    choice,
    convolution,
    convolution,
    pooling,
    product,
    product,
    normalization,
    recurrent,
    delete,
    delete,
    delete,
    replace,
)
