"""Topology: a GraphBuilder that numbers its nodes and remembers how many channels every tensor has."""

from collections.abc import Sequence
from typing import Any, Final, Literal

from onnx import ModelProto, NodeProto, TensorProto, helper

from harness.network.zoo.graph_builder import OPSET, Convolution, GraphBuilder

IMAGENET_CLASSES: Final = 1000
LEAKY_SLOPE: Final = 0.1

# The three spellings of hard swish: the operator, HardSigmoid and Mul, and the arithmetic that older exporters write.
Act = Literal[
    "none",
    "relu",
    "relu6",
    "leaky",
    "tanh",
    "sigmoid",
    "hard_sigmoid",
    "swish",
    "gelu",
    "hard_swish",
    "hard_swish_gated",
    "hard_swish_arithmetic",
]
OPERATORS: Final[dict[str, tuple[str, dict[str, float]]]] = {
    "relu": ("Relu", {}),
    "leaky": ("LeakyRelu", {"alpha": LEAKY_SLOPE}),
    "tanh": ("Tanh", {}),
    "sigmoid": ("Sigmoid", {}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "hard_swish": ("HardSwish", {}),
}


def rounded(channels: float, divisor: int = 8) -> int:
    """Return a number of channels as a multiple of `divisor`, at least nine tenths of what was asked for."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest


class Topology(GraphBuilder):
    """One network under construction; `fold` leaves batch norms out, as a bias of the convolutions before them."""

    def __init__(self, name: str, seed: int, opset: int = OPSET, fold: bool = True) -> None:
        super().__init__(name, seed)
        self._opset = opset
        self._fold = fold
        self._count = 0
        self._channels: dict[str, int] = {}

    def model(self) -> ModelProto:
        """Return the finished network, under its own opset."""
        model = super().model()
        model.opset_import[0].version = self._opset
        return model

    def image(self, *shape: int) -> str:
        """Declare the input `input` of one sample: channels, then the sizes of the other axes."""
        return self.sized(self.input("input", (1, *shape)), shape[0])

    def sized(self, x: str, channels: int) -> str:
        """Say how many channels `x` has, and return it."""
        self._channels[x] = channels
        return x

    def channels(self, x: str) -> int:
        """Return how many channels `x` has."""
        return self._channels[x]

    def label(self, kind: str) -> str:
        """Return a new node name."""
        self._count += 1
        return f"{kind}_{self._count}"

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append one node; its output has the channels of its first input."""
        output = self.node(operator, self.label(operator), *inputs, **attributes)
        if inputs and inputs[0] in self._channels:
            self._channels[output] = self._channels[inputs[0]]
        return output

    def value(self, value: float | Sequence[int]) -> str:
        """Append a Constant: a float32 scalar, or integers."""
        return self.constant(self.label("Constant"), value)

    def floats(self, *values: float) -> str:
        """Append a Constant of float32 numbers along one axis."""
        tensor = helper.make_tensor("", TensorProto.FLOAT, [len(values)], values)
        return self.node("Constant", self.label("Constant"), value=tensor)

    def add(self, x: str, y: str) -> str:
        """Append the sum of two tensors."""
        return self.op("Add", x, y)

    def mul(self, x: str, y: str) -> str:
        """Append the product of two tensors."""
        return self.op("Mul", x, y)

    def concat(self, *tensors: str) -> str:
        """Append the concatenation of tensors along their channels."""
        return self.sized(self.op("Concat", *tensors, axis=1), sum(self._channels[x] for x in tensors))

    def split(self, x: str, sizes: Sequence[int], axis: int = 1) -> list[str]:
        """Append a Split of `x` into parts of these sizes."""
        name = self.label("Split")
        outputs = [f"{name}.output_{index}" for index in range(len(sizes))]
        node: NodeProto = helper.make_node("Split", [x, self.value(sizes)], outputs, name, axis=axis)
        self._nodes.append(node)
        return [self.sized(output, size) for output, size in zip(outputs, sizes, strict=True)]

    def reshaped(self, x: str, *shape: int) -> str:
        """Append a Reshape; the second axis of `shape` becomes the channels."""
        return self.sized(self.reshape(self.label("Reshape"), x, shape), shape[1])

    def transposed(self, x: str, *perm: int) -> str:
        """Append a Transpose."""
        return self.op("Transpose", x, perm=perm)

    def convolve(
        self,
        x: str,
        outputs: int,
        kernel: int | tuple[int, ...] = 1,
        stride: int | tuple[int, ...] = 1,
        groups: int = 1,
        dilation: int = 1,
        pads: tuple[int, ...] | None = None,
        bias: bool = True,
    ) -> str:
        """Append a Conv, padded to keep the size unless `pads` says otherwise; a kernel (3,) has one dimension."""
        conv = Convolution(self._channels[x], outputs, kernel, stride, groups, dilation, pads, bias)
        return self.sized(self.conv(self.label("Conv"), x, conv), outputs)

    def normed(self, x: str) -> str:
        """Append a BatchNormalization, folded or not."""
        return self.sized(self.batch_norm(self.label("BatchNormalization"), x, self._channels[x]), self._channels[x])

    def unit(
        self,
        x: str,
        outputs: int,
        kernel: int | tuple[int, ...] = 1,
        stride: int | tuple[int, ...] = 1,
        act: Act = "relu",
        groups: int = 1,
        dilation: int = 1,
        pads: tuple[int, ...] | None = None,
    ) -> str:
        """Append a Conv, its batch norm (folded where the network says so) and an activation."""
        x = self.convolve(x, outputs, kernel, stride, groups, dilation, pads, bias=self._fold)
        return self.activate(x if self._fold else self.normed(x), act)

    def depthwise(self, x: str, kernel: int = 3, stride: int = 1, act: Act = "relu", dilation: int = 1) -> str:
        """Append a `unit` with as many groups as channels."""
        channels = self._channels[x]
        return self.unit(x, channels, kernel, stride, act, groups=channels, dilation=dilation)

    def activate(self, x: str, act: Act) -> str:
        """Append an activation in the operators that exporters write for it."""
        if act == "none":
            return x
        if act in OPERATORS:
            operator, attributes = OPERATORS[act]
            return self.op(operator, x, **attributes)
        if act == "relu6":
            return self._clipped(x)
        if act == "gelu":
            return self.sized(self.gelu(self.label("Gelu"), x), self._channels.get(x, 0))
        if act == "swish":
            return self.mul(x, self.op("Sigmoid", x))
        if act == "hard_swish_gated":
            return self.mul(x, self.activate(x, "hard_sigmoid"))
        product = self.mul(x, self._clipped(self.add(x, self.value(3.0))))
        return self.op("Div", product, self.value(6.0))

    def _clipped(self, x: str) -> str:
        return self.op("Clip", x, self.value(0.0), self.value(6.0))

    def prelu(self, x: str) -> str:
        """Append a PRelu with one slope per channel of an image."""
        slope = self.normal(self.label("slope"), (self._channels[x], 1, 1), mean=0.25)
        return self.op("PRelu", x, slope)

    def squeeze_excite(self, x: str, squeezed: int, gate: Act = "sigmoid") -> str:
        """Append squeeze-and-excitation (Hu et al. 2017, arXiv 1709.01507)."""
        y = self.convolve(self.op("GlobalAveragePool", x), squeezed)
        y = self.convolve(self.activate(y, "relu"), self._channels[x])
        return self.mul(x, self.activate(y, gate))

    def max_pool(
        self,
        x: str,
        kernel: int | tuple[int, ...] = 3,
        stride: int | tuple[int, ...] = 2,
        pads: tuple[int, ...] = (1, 1, 1, 1),
    ) -> str:
        """Append a MaxPool."""
        kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        strides = (stride,) * len(kernel) if isinstance(stride, int) else stride
        return self.op("MaxPool", x, ceil_mode=0, kernel_shape=kernel, pads=pads, strides=strides)

    def average_pool(self, x: str) -> str:
        """Append an AveragePool of 2x2 pixels."""
        return self.op("AveragePool", x, ceil_mode=0, kernel_shape=[2, 2], strides=[2, 2])

    def upsampled(self, x: str, factor: float, mode: Literal["nearest", "linear"] = "nearest") -> str:
        """Append the Resize that exporters write for an upsampling by a factor."""
        scales = self.floats(1.0, 1.0, factor, factor)
        if mode == "nearest":
            return self.op(
                "Resize", x, "", scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor"
            )
        return self.op("Resize", x, "", scales, mode=mode, coordinate_transformation_mode="half_pixel")

    def dense(self, x: str, outputs: int, act: Act = "none") -> str:
        """Append the Gemm of a linear layer on a matrix, and an activation."""
        gemm = self.gemm(self.label("Gemm"), x, (self._channels[x], outputs))
        return self.activate(self.sized(gemm, outputs), act)

    def flat(self, x: str, sizes: int = 1) -> str:
        """Append a Flatten of an image of `sizes` pixels."""
        return self.sized(self.op("Flatten", x, axis=1), self._channels[x] * sizes)

    def pooled(self, x: str) -> str:
        """Append the mean over all pixels, as a matrix."""
        return self.flat(self.op("GlobalAveragePool", x))

    def classified(self, x: str, classes: int = IMAGENET_CLASSES) -> ModelProto:
        """Append the last linear layer on a matrix, and return the network."""
        return self.finished(self.dense(x, classes), classes)

    def finished(self, x: str, *shape: int) -> ModelProto:
        """Name the output `output`, of one sample of this shape, and return the network."""
        self.output("output", x, (1, *shape))
        return self.model()
