"""Places arrays in the memories of a functional machine and runs single commands on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from device_agents.emulated_npu.execution.functional import FunctionalMachine
from device_agents.emulated_npu.execution.memory import Memories
from device_agents.emulated_npu.numpy_types import NUMPY_TYPES, Array
from device_agents.emulated_npu.unit_commands import Command, DataType, Descriptor, Function, Operand, Space
from device_agents.emulated_npu.unit_settings import PLAIN, Settings

DATA_TYPES = {dtype: data_type for data_type, dtype in NUMPY_TYPES.items()}


class Scratchpad:
    """Memories of a mebibyte each, filled from the bottom; operands are dense unless strides are given."""

    def __init__(self, size_bytes: int = 1 << 20) -> None:
        self.machine = FunctionalMachine(Memories(dict.fromkeys(Space, size_bytes)))
        self._free = dict.fromkeys(Space, 0)

    def room(self, shape: tuple[int, ...], dtype: Any = np.float32, space: Space = Space.NB) -> Operand:
        """Return a dense operand in unused memory."""
        data_type = DATA_TYPES[np.dtype(dtype)]
        strides = tuple(int(data_type.bytes * np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        operand = Operand(Descriptor(space, data_type, shape, strides), self._free[space])
        self._free[space] += int(np.prod(shape)) * data_type.bytes
        return operand

    def put(self, array: Array, space: Space = Space.NB) -> Operand:
        """Return a dense operand that holds the array."""
        operand = self.room(array.shape, array.dtype, space)
        self.machine.memories.view(operand)[...] = array
        return operand

    def run(self, command: Command) -> Array:
        """Execute the command and return the content of its target."""
        self.machine.execute(command)
        return self.machine.memories.view(command.target).copy()


def result(
    function: Function,
    shape: tuple[int, ...],
    *sources: Array,
    settings: Settings = PLAIN,
    dtype: Any = np.float32,
) -> Array:
    """Return the values of one command on dense operands in NB."""
    pad = Scratchpad()
    places = [pad.put(source) for source in sources]
    return pad.run(Command(function, pad.room(shape, dtype), *places, settings=settings))


def one_node(operator: str, inputs: Sequence[Array], attributes: Mapping[str, Any], opset: int) -> onnx.ModelProto:
    """Return a model of a single node with inputs x0, x1, … and the output y."""
    names = [f"x{index}" for index in range(len(inputs))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph([node], "one", given, [onnx.ValueInfoProto(name="y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def of_onnx(operator: str, *inputs: Array, attributes: Mapping[str, Any] | None = None, opset: int = 20) -> Array:
    """Return ONNX Runtime's result of a single node."""
    model = one_node(operator, inputs, attributes or {}, opset)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {f"x{index}": array for index, array in enumerate(inputs)})[0])


def rows_are_independent() -> bool:
    """Return whether this processor's BLAS gives a row of a large product the same bits at any position."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((600, 64), np.float32), rng.standard_normal((64, 64), np.float32)
    return all(np.array_equal((a @ b)[start:], a[start:] @ b) for start in (1, 4, 8))


def dense(space: Space, dtype: DataType, *dims: int) -> Descriptor:
    """Return a descriptor without gaps."""
    strides = tuple(int(dtype.bytes * np.prod(dims[axis + 1 :])) for axis in range(len(dims)))
    return Descriptor(space, dtype, dims, strides)
