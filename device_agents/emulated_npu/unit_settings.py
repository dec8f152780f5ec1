"""The settings of a unit: what a command does beside its function, its operands and their shapes.

CONFIG instructions write them into slots; isa/settings_words.py has their words.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Activation(enum.IntEnum):
    """Functions of one variable, for MAP and for epilogues; alpha and beta come from the settings."""

    NONE = 0
    RELU = 1
    LEAKY_RELU = 2  # alpha
    CLIP = 3  # alpha = low, beta = high
    SIGMOID = 4
    TANH = 5
    HARD_SIGMOID = 6  # max(0, min(1, alpha x + beta))
    HARD_SWISH = 7
    SWISH = 8  # x sigmoid(alpha x)
    GELU = 9  # exact, by erf
    GELU_TANH = 10
    ELU = 11  # alpha
    SELU = 12  # alpha, beta = gamma of ONNX
    SOFTPLUS = 13
    ERF = 14
    EXP = 15
    LOG = 16
    SQRT = 17
    RECIPROCAL = 18
    NEGATE = 19
    ABS = 20
    FLOOR = 21
    CEIL = 22
    ROUND = 23  # to even
    SIGN = 24
    NOT = 25
    SOFTSIGN = 26
    MISH = 27
    SIN = 28
    COS = 29
    SCALE = 30  # alpha x + beta
    CELU = 31  # alpha
    THRESHOLDED_RELU = 32  # alpha
    TAN = 33
    ASIN = 34
    ACOS = 35
    ATAN = 36
    SINH = 37
    COSH = 38
    ASINH = 39
    ACOSH = 40
    ATANH = 41


class Binary(enum.IntEnum):
    """Functions of two variables, the `mode` of BINARY."""

    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2
    DIVIDE = 3  # of integers: toward zero
    POWER = 4
    MAXIMUM = 5
    MINIMUM = 6
    EQUAL = 7
    LESS = 8
    LESS_EQUAL = 9
    GREATER = 10
    GREATER_EQUAL = 11
    AND = 12
    OR = 13
    XOR = 14
    MODULO = 15  # of integers: the sign of the divisor; of floats: of the dividend
    PRELU = 16  # a where a >= 0, else a b
    FLOOR_MODULO = 17  # the sign of the divisor
    TRUNCATED_MODULO = 18  # the sign of the dividend


class Reduction(enum.IntEnum):
    """The `mode` of REDUCE."""

    SUM = 0
    MEAN = 1
    MAXIMUM = 2
    MINIMUM = 3
    PRODUCT = 4
    SUM_SQUARE = 5
    L1 = 6
    L2 = 7
    ARGMAX = 8


Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Quantisation:
    """Integers that stand for numbers, as in ONNX: the number is (integer - zero_point) x scale.

    `scale` is a positive float32. With scale 0 the elements are the numbers themselves.
    """

    scale: float = 0.0
    zero_point: int = 0


UNQUANTISED = Quantisation()


@dataclass(frozen=True)
class Settings:
    """The configuration of a unit, which CONFIG instructions write into a slot.

    Windows have three spatial axes. `pad` is the padding before the first element of each axis; the padding after the
    last one follows from the output size. `axes` is a bit mask of the axes of REDUCE, SOFTMAX and NORMALIZE. `mode` is
    a Binary, a Reduction, 1 for log-softmax, the window of LRN, or 1 for average pooling that counts the padding.
    The quantisation of an operand makes the unit convert its integers to float32 where it reads them, and its float32
    results to integers where it writes them.
    """

    kernel: Triple = (1, 1, 1)
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    pad: Triple = (0, 0, 0)
    activation: Activation = Activation.NONE
    axes: int = 0
    mode: int = 0
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    quantised_target: Quantisation = UNQUANTISED
    quantised_first: Quantisation = UNQUANTISED
    quantised_second: Quantisation = UNQUANTISED
    quantised_third: Quantisation = UNQUANTISED

    def __post_init__(self) -> None:
        # Every lookup of a cost needs the hash, and nearly all settings have no quantised operand.
        triples = (self.kernel, self.stride, self.dilation, self.pad)
        numbers = (self.activation, self.axes, self.mode, self.alpha, self.beta, self.gamma)
        codes = (self.quantised_target, self.quantised_first, self.quantised_second, self.quantised_third)
        object.__setattr__(self, "_hash", hash((triples, numbers, codes)))
        object.__setattr__(self, "_quantises", any(code.scale for code in codes))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    @property
    def quantises(self) -> bool:
        """Whether any operand is quantised."""
        return self._quantises  # type: ignore[attr-defined, no-any-return]


PLAIN = Settings()
