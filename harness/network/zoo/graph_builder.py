"""GraphBuilder: builds ONNX graphs layer by layer, as an exporter writes them.

Every method appends nodes and returns the name of the tensor it produced. A node called `n` produces `n.output`;
its weights are `n.weight`, `n.bias` and so on. Initializers are parameters and running statistics only; every other
constant is a Constant node.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

OPSET: Final = 17
IR_VERSION: Final = 8
SPREAD: Final = 0.05  # standard deviation of scales around 1 and of biases and means around 0
EMBEDDING_SPREAD: Final = 0.02  # published initialisation of token and position embeddings

Activation = Literal["relu", "relu6", "swish"]


@dataclass(frozen=True)
class Convolution:
    """A convolution; a single number holds for both of two dimensions. Without `pads`, odd kernels keep the size."""

    inputs: int
    outputs: int
    kernel: int | tuple[int, ...] = 1
    stride: int | tuple[int, ...] = 1
    groups: int = 1
    dilation: int = 1
    pads: tuple[int, ...] | None = None
    bias: bool = False


class GraphBuilder:
    """One graph under construction, with the random generator that its weights come from."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._random = np.random.default_rng(seed)
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int], element_type: int = TensorProto.FLOAT) -> str:
        """Declare a graph input."""
        self._inputs.append(helper.make_tensor_value_info(name, element_type, shape))
        return name

    def output(self, name: str, tensor: str, shape: Sequence[int]) -> None:
        """Make `tensor` a float32 graph output called `name`, renaming it wherever it occurs."""
        for node in self._nodes:
            for ends in (node.input, node.output):
                ends[:] = [name if end == tensor else end for end in ends]
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def model(self) -> ModelProto:
        """Return the finished network."""
        weights = list(self._initializers.values())
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, weights)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, producer_name="harness", opset_imports=opsets, ir_version=IR_VERSION)

    def node(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Append one node with one output."""
        output = f"{name}.output"
        self._nodes.append(helper.make_node(operator, list(inputs), [output], name, **attributes))
        return output

    def constant(self, name: str, value: float | Sequence[int] | NDArray[np.int64]) -> str:
        """Append a Constant node: a float becomes a float32 scalar; integers, one or many, become int64."""
        array = np.asarray(value, dtype=np.float32 if isinstance(value, float) else np.int64)
        return self.node("Constant", name, value=numpy_helper.from_array(array))

    def unbind(self, name: str, x: str, parts: int) -> list[str]:
        """Cut `x` into its `parts` slices along the first axis, with the Split and Squeeze that exporters write."""
        slices = [f"{name}.output_{index}" for index in range(parts)]
        sizes = self.constant(f"{name}.sizes", [1] * parts)
        self._nodes.append(helper.make_node("Split", [x, sizes], slices, name, axis=0))
        squeezes = [f"{name}.squeeze_{index}" for index in range(parts)]
        return [
            self.node("Squeeze", squeeze, piece, self.constant(f"{squeeze}.axes", [0]))
            for squeeze, piece in zip(squeezes, slices, strict=True)
        ]

    def normal(self, name: str, shape: Sequence[int], mean: float = 0.0, spread: float = SPREAD) -> str:
        """Add an initializer drawn from a normal distribution."""
        draw = self._random.standard_normal(tuple(shape), dtype=np.float32)
        return self._initializer(name, draw * np.float32(spread) + np.float32(mean))

    def he_normal(self, name: str, shape: Sequence[int], fan_in: int) -> str:
        """Add a weight with the standard deviation of He et al. 2015, sqrt(2 / fan_in)."""
        return self.normal(name, shape, spread=math.sqrt(2.0 / fan_in))

    def _initializer(self, name: str, value: NDArray[np.float32]) -> str:
        if name in self._initializers:
            raise ValueError(f"two initializers are called {name!r}; give their layers different names")
        self._initializers[name] = numpy_helper.from_array(value, name)
        return name

    def conv(self, name: str, x: str, conv: Convolution) -> str:
        """Append a Conv."""
        kernel = (conv.kernel,) * 2 if isinstance(conv.kernel, int) else conv.kernel
        shape = (conv.outputs, conv.inputs // conv.groups, *kernel)
        inputs = [x, self.he_normal(f"{name}.weight", shape, fan_in=math.prod(shape[1:]))]
        if conv.bias:
            inputs.append(self.normal(f"{name}.bias", (conv.outputs,)))
        return self.node(
            "Conv",
            name,
            *inputs,
            dilations=[conv.dilation] * len(kernel),
            group=conv.groups,
            kernel_shape=kernel,
            pads=conv.pads or [conv.dilation * (size - 1) // 2 for size in kernel] * 2,
            strides=(conv.stride,) * len(kernel) if isinstance(conv.stride, int) else conv.stride,
        )

    def batch_norm(self, name: str, x: str, channels: int) -> str:
        """Append a BatchNormalization in inference mode, statistics near those of normalised data."""
        variance = self._random.uniform(0.5, 1.5, channels).astype(np.float32)
        inputs = [
            self.normal(f"{name}.weight", (channels,), mean=1.0),
            self.normal(f"{name}.bias", (channels,)),
            self.normal(f"{name}.running_mean", (channels,)),
            self._initializer(f"{name}.running_var", variance),
        ]
        return self.node("BatchNormalization", name, x, *inputs, epsilon=1e-5, momentum=0.9, training_mode=0)

    def conv_bn(self, name: str, x: str, conv: Convolution, activation: Activation | None = None) -> str:
        """Append a Conv called `name`, its BatchNormalization, `name`.bn, and an activation, such as `name`.relu."""
        x = self.batch_norm(f"{name}.bn", self.conv(name, x, conv), conv.outputs)
        name = f"{name}.{activation}"
        if activation == "relu6":
            return self.node("Clip", name, x, self.constant(f"{name}.min", 0.0), self.constant(f"{name}.max", 6.0))
        if activation == "swish":
            return self.swish(name, x)
        return self.node("Relu", name, x) if activation == "relu" else x

    def gemm(self, name: str, x: str, channels: tuple[int, int]) -> str:
        """Append the Gemm that exporters write for a linear layer on a matrix."""
        weight = self.he_normal(f"{name}.weight", channels[::-1], fan_in=channels[0])
        bias = self.normal(f"{name}.bias", channels[1:])
        return self.node("Gemm", name, x, weight, bias, alpha=1.0, beta=1.0, transB=1)

    def linear(self, name: str, x: str, channels: tuple[int, int]) -> str:
        """Append the MatMul and Add that exporters write for a linear layer on a sequence."""
        weight = self.he_normal(f"{name}.weight", channels, fan_in=channels[0])
        bias = self.normal(f"{name}.bias", channels[1:])
        return self.node("Add", f"{name}.add", bias, self.node("MatMul", name, x, weight))

    def layer_norm(self, name: str, x: str, width: int, epsilon: float) -> str:
        """Append the LayerNormalization operator (opset 17) over the last axis."""
        weight = self.normal(f"{name}.weight", (width,), mean=1.0)
        bias = self.normal(f"{name}.bias", (width,))
        return self.node("LayerNormalization", name, x, weight, bias, axis=-1, epsilon=epsilon)

    def layer_norm_decomposed(self, name: str, x: str, width: int, epsilon: float) -> str:
        """Append layer norm over the last axis in the nine operators that exporters wrote before opset 17."""
        mean = self.node("ReduceMean", f"{name}.mean", x, axes=[-1])
        centred = self.node("Sub", f"{name}.sub", x, mean)
        square = self.node("Pow", f"{name}.pow", centred, self.constant(f"{name}.two", 2.0))
        variance = self.node("ReduceMean", f"{name}.variance", square, axes=[-1])
        shifted = self.node("Add", f"{name}.add_epsilon", variance, self.constant(f"{name}.epsilon", epsilon))
        normed = self.node("Div", f"{name}.div", centred, self.node("Sqrt", f"{name}.sqrt", shifted))
        scaled = self.node("Mul", f"{name}.mul", normed, self.normal(f"{name}.weight", (width,), mean=1.0))
        return self.node("Add", f"{name}.add", scaled, self.normal(f"{name}.bias", (width,)))

    def swish(self, name: str, x: str) -> str:
        """Append x * sigmoid(x) as Sigmoid and Mul."""
        return self.node("Mul", f"{name}.mul", x, self.node("Sigmoid", f"{name}.sigmoid", x))

    def gelu(self, name: str, x: str) -> str:
        """Append the exact GELU, x * (1 + erf(x / sqrt(2))) * 0.5, as exporters decompose it below opset 20."""
        ratio = self.node("Div", f"{name}.div", x, self.constant(f"{name}.sqrt_two", math.sqrt(2.0)))
        error = self.node("Erf", f"{name}.erf", ratio)
        shifted = self.node("Add", f"{name}.add", error, self.constant(f"{name}.one", 1.0))
        product = self.node("Mul", f"{name}.mul", x, shifted)
        return self.node("Mul", f"{name}.half_mul", product, self.constant(f"{name}.half", 0.5))

    def reshape(self, name: str, x: str, shape: Sequence[int]) -> str:
        """Append a Reshape to a fixed shape."""
        return self.node("Reshape", name, x, self.constant(f"{name}.shape", shape))
