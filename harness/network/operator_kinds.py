"""Kinds of ONNX operators: facts that keys, weights, fusions and features share."""

from collections.abc import Mapping

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"})
WINDOWED_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
WINDOWED = CONVOLUTIONS | WINDOWED_POOLS
"""Operators with kernel, strides, dilations and pads."""
GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Recurrent operators, and how many products of the state each step takes."""
LEARNT_SLOTS: Mapping[str, tuple[int, ...]] = {
    "ConvInteger": (1,),
    "MatMulInteger": (1,),
    "MatMulIntegerToFloat": (1,),
    "DynamicQuantizeMatMul": (1,),
    "QLinearConv": (3, 8),
    "QLinearMatMul": (3,),
    "QGemm": (3, 6),
    "QAttention": (1, 2),
    "MatMulNBits": (1,),
    "DequantizeLinear": (0,),
    "QuantizeLinear": (0,),
}
"""Operators on integers, whose scales and zero points are not weights, and the inputs that are."""
RESCALING_PRODUCTS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm"})
"""Products of integers that read a scale and a zero point after each operand, and return integers."""
ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Elu", "PRelu")
"""Activations that devices fuse into the layer before them."""
SORTED_IN_KEYS = frozenset({"Add", "Mul", "Sum", "Max", "Min"})
"""Operators whose arguments keys list in alphabetical order. Another member would change the keys of tables."""
COMMUTATIVE = SORTED_IN_KEYS | {"And", "Or", "Equal"}
"""Operators whose inputs a pattern of a fusion may swap."""
SCALING = frozenset({"Resize", "Upsample"})
SIZED_BY_FLOATS = SCALING | {"Range"}
"""Operators whose results' sizes depend on the values of floats."""


def weight_slot(op: str) -> int:
    """Return which input of a convolution or product holds its weights."""
    return LEARNT_SLOTS.get(op, (1,))[0]
