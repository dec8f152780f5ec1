"""The rules of each operator."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.array_types import Array
from harness.errors import InvalidNetwork
from harness.network.network import Node, TensorType
from harness.network.operand_shapes import places, products
from harness.network.operand_shapes.node_operands import (
    NodeOperands,
    Rule,
    any_operator,
    axis_of_input,
    lists,
    positive,
    singles,
)
from harness.network.operator_kinds import GATES


def check_operands(node: Node, types: Iterable[TensorType | None], values: Mapping[int, Array], opset: int) -> None:
    """Raise InvalidNetwork if the operands of a node do not fit each other or its attributes.

    `types` has the operands in order, None for absent ones; `values` those of constants, by their places. `opset` is
    the version of ONNX's operators.
    """
    operands = NodeOperands(node, [None if kind is None else kind.shape for kind in types], values, opset)
    for why in _reasons(operands):
        raise InvalidNetwork(f"Node {node.name[:80]!r} ({node.op}) has impossible shapes", why=why[:300])


def _reasons(operands: NodeOperands) -> Iterator[str]:
    yield from _GROUPS(operands)  # the other rules divide by them
    yield from any_operator(operands)
    rules = _RUNTIME_RULES if operands.node.domain else _RULES
    for rule in rules.get(operands.node.op, ()):
        yield from rule(operands)


_GROUPS = positive("group", "groups", "num_groups", "offset_group")
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_AXES = (lists({1: "axes"}),)
_RULES: Mapping[str, Sequence[Rule]] = {
    "Conv": (products.convolution(1, 2),),
    "ConvInteger": (products.convolution(1, None), singles({2: "input zero point"})),
    "QLinearConv": (
        singles({1: "input scale", 2: "input zero point", 6: "output scale", 7: "output zero point"}),
        products.convolution(3, 8),
        products.scales_of_convolution,
    ),
    "DeformConv": (products.convolution(1, 3, offsets=True),),
    "ConvTranspose": (products.transposed_convolution,),
    "Gemm": (products.gemm,),
    "QLinearMatMul": (products.scales_of_product,),
    "QuantizeLinear": (products.scaled,),
    "DequantizeLinear": (products.scaled,),
    **dict.fromkeys(GATES, (products.recurrent,)),
    "BatchNormalization": (products.per_channel(("scale", "bias", "mean", "variance")),),
    "InstanceNormalization": (products.per_channel(("scale", "bias")),),
    "GroupNormalization": (products.group_normalization,),
    "LayerNormalization": (products.layer_normalization,),
    "RMSNormalization": (products.layer_normalization,),
    "LpNormalization": (axis_of_input(-1),),
    "LRN": (positive("size"),),
    "PRelu": (products.slope,),
    "Attention": (products.attention,),
    "RotaryEmbedding": (products.rotary,),
    "Gather": (places.gather,),
    "GatherElements": (places.elements(None),),
    "GatherND": (places.batches_of_gather,),
    "Scatter": (places.elements(2),),
    "ScatterElements": (places.elements(2),),
    "ScatterND": (places.scatter_nd,),
    "Split": (places.split,),
    "Transpose": (places.transpose,),
    "MaxUnpool": (places.unpool, positive("kernel_shape", "strides")),
    "Col2Im": (places.columns, positive("strides", "dilations")),
    "DFT": (places.complex_numbers,),
    "STFT": (places.signal,),
    "Resize": (places.region,),
    "AffineGrid": (places.affine_grid,),
    "CumSum": (places.cumulative,),
    "CumProd": (places.cumulative,),
    "NegativeLogLikelihoodLoss": (places.classes,),
    "SoftmaxCrossEntropyLoss": (places.classes,),
    "Clip": (singles({1: "minimum", 2: "maximum"}),),
    "Dropout": (singles({1: "ratio", 2: "training mode"}),),
    "Trilu": (singles({1: "k"}),),
    "Pad": (lists({1: "pads"}), singles({2: "value"})),
    "Slice": (lists({1: "starts", 2: "ends", 3: "axes", 4: "steps"}),),
    "Reshape": (lists({1: "shape"}),),
    "Squeeze": _AXES,
    **dict.fromkeys((f"Reduce{name}" for name in _REDUCTIONS), _AXES),
}
"""What is checked of each operator. An operand's number is its place in the operator's specification."""
_RUNTIME_RULES: Mapping[str, Sequence[Rule]] = {
    "FusedConv": (products.convolution(1, 2),),
    "QLinearConv": (products.convolution(3, 8),),
}
"""The same for operators of ONNX Runtime."""
