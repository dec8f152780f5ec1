"""A network that is being edited: its model, the types of its tensors, and the operations that all edits share."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper, shape_inference

BOUND_DIMS = {"N": 2, "M": 3, "x.0": 1}
"""The values that the reader is given for symbolic dimensions."""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
MAX_ELEMENTS = 1 << 14
LARGE_ELEMENTS = 1 << 18
"""Sizes of the tensors of an edited network; a few are larger than the constants that readers keep."""
MAX_NODES = 48
"""From here on, networks are cut before they are edited."""
INVALID = (
    onnx.checker.ValidationError,
    shape_inference.InferenceError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    RuntimeError,
    OverflowError,
)
"""What the libraries raise for a model that is not valid, and an edit for one that it does not fit."""


@dataclass(frozen=True)
class Kind:
    """Element type, as ONNX numbers it, and shape of a tensor."""

    element: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type in numpy."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.element))

    @property
    def is_float(self) -> bool:
        """Whether operators on floats accept it."""
        return self.element in FLOATS


class Unsuited(ValueError):
    """The network has no place for an edit."""


class Draft:
    """A model under change. Edits read `types` of the top level's tensors; they change `model` in place."""

    def __init__(self, model: ModelProto, draw: random.Random) -> None:
        """Infer the types of a valid model; raises one of INVALID for another."""
        self.model = model
        self.graph = model.graph
        self.draw = draw
        self.types = types_of(model)
        self._used = {name for node in all_nodes(self.graph.node) for name in (*node.input, *node.output)}
        self._used |= {each.name for each in (*self.graph.initializer, *self.graph.input, *self.graph.output)}

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return max((one.version for one in self.model.opset_import if one.domain in ("", "ai.onnx")), default=0)

    def fresh(self, stem: str = "e") -> str:
        """Return a name that nothing has."""
        name = next(name for at in range(len(self._used) + 1) if (name := f"{stem}{at}") not in self._used)
        self._used.add(name)
        return name

    def tensors(self, fits: Callable[[Kind], bool] = lambda _: True) -> list[str]:
        """Return the inputs and results of the graph whose types fit, in topological order."""
        constants = {each.name for each in self.graph.initializer}
        named = [value.name for value in self.graph.input if value.name not in constants]
        named += [name for node in self.graph.node for name in node.output]
        return [name for name in named if name in self.types and fits(self.types[name])]

    def choose(self, fits: Callable[[Kind], bool] = lambda _: True) -> tuple[str, Kind]:
        """Return one of `tensors` and its type; raises Unsuited if there is none."""
        name = self.pick(self.tensors(fits))
        return name, self.types[name]

    def pick(self, items: Sequence[Any]) -> Any:
        """Return one of some items; raises Unsuited if there is none."""
        if not items:
            raise Unsuited("nothing to choose from")
        return self.draw.choice(items)

    def constant(self, array: np.ndarray[Any, Any], node: bool | None = None) -> str:
        """Add a constant, as an initializer or as a node; return its name."""
        name = self.fresh("c")
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        if self.draw.random() < 0.3 if node is None else node:
            self.graph.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.graph.initializer.append(tensor)
        self.types[name] = Kind(tensor.data_type, tuple(array.shape))
        return name

    def numbers(self, kind: Kind) -> str:
        """Add a constant of a type, with values that no operator turns into infinity at once."""
        generator = np.random.default_rng(self.draw.randrange(1 << 16))
        if kind.element == TensorProto.BOOL:
            return self.constant(generator.integers(0, 2, kind.shape).astype(np.bool_))
        values = generator.uniform(0.5, 1.5, kind.shape) if kind.is_float else generator.integers(1, 4, kind.shape)
        return self.constant(np.asarray(values).astype(kind.dtype))

    def after(self, names: Iterable[str]) -> int:
        """Return the first place in the list of nodes at which all these tensors exist."""
        written = {name: at for at, node in enumerate(self.graph.node) for name in node.output}
        return max((written[name] + 1 for name in names if name in written), default=0)

    def append(
        self, operator: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **given: Any
    ) -> list[str]:
        """Insert an operator where its inputs exist; return the names of its results."""
        results = [self.fresh("t") for _ in range(outputs)]
        node = helper.make_node(operator, list(inputs), results, self.node_name(), domain=domain, **given)
        self.graph.node.insert(self.after(inputs), node)
        return results

    def node_name(self) -> str:
        """Return a name for a node: mostly one of its own, which files need not have."""
        return self.fresh("n") if self.draw.random() < 0.8 else ""

    def state(self, name: str, kind: Kind) -> None:
        """State the type of a result that ONNX's inference cannot find."""
        self.graph.value_info.append(helper.make_tensor_value_info(name, kind.element, kind.shape))

    def attach(self, result: str, tensor: str) -> None:
        """Let readers of `tensor` read `result` instead if that stays valid, or make it an output of the graph."""
        kinds = types_of(self.model)
        self.types.update(kinds)
        found, old = kinds.get(result), self.types[tensor]
        if found == old and self.draw.random() < 0.9:
            self.redirect(tensor, result)
        elif found is not None and found.is_float and found.element == old.element and self.draw.random() < 0.5:
            (scalar,) = self.append("ReduceMean", [result], keepdims=0)
            self.redirect(tensor, self.append("Add", [tensor, scalar])[0])
        else:
            self.output(result)

    def redirect(self, tensor: str, result: str) -> None:
        """Let some or all later readers of a tensor read another one; the graph's output follows."""
        start = self.after([result])
        every, moved = self.draw.random() < 0.7, False
        for node in self.graph.node[start:]:
            for at, name in enumerate(node.input):
                if name == tensor and (every or self.draw.random() < 0.5):
                    node.input[at], moved = result, True
        outputs = [value for value in self.graph.output if value.name == tensor]
        if outputs and (every or not moved):
            outputs[0].name, moved = result, True
        if not moved:
            self.output(result)

    def output(self, name: str) -> None:
        """Make a tensor an output of the graph."""
        if name not in {value.name for value in self.graph.output}:
            self.graph.output.append(ValueInfoProto(name=name))
            self.graph.output[-1].type.tensor_type.elem_type = self.types[name].element if name in self.types else 1

    def drop(self, nodes: Iterable[int]) -> None:
        """Remove nodes and everything that depends on them; what is read no more becomes an output."""
        gone = set(nodes)
        lost = {name for at in gone for name in self.graph.node[at].output}
        for at, node in enumerate(self.graph.node):
            if at not in gone and any(name in lost for name in reads(node)):
                gone.add(at)
                lost.update(node.output)
        kept = [node for at, node in enumerate(self.graph.node) if at not in gone]
        if not any(node.op_type != "Constant" for node in kept):
            raise Unsuited("no node is left")
        ends = {name for at in gone for name in reads(self.graph.node[at])} - lost
        copies = [copied(node) for node in kept]
        del self.graph.node[:]
        self.graph.node.extend(copies)
        outputs = [copied(value) for value in self.graph.output if value.name not in lost]
        del self.graph.output[:]
        self.graph.output.extend(outputs)
        read = {name for node in copies for name in reads(node)}
        for name in (name for node in copies for name in node.output):
            if name in ends and name not in read and name in self.types and not self._is_constant(name):
                self.output(name)

    def _is_constant(self, name: str) -> bool:
        return any(node.op_type == "Constant" and name in node.output for node in self.graph.node)


Edit = Callable[[Draft], None]


def types_of(model: ModelProto) -> dict[str, Kind]:
    """Return the types of the graph's tensors, as far as inference knows them; raises one of INVALID."""
    copy = copied(model)
    for value in copy.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                bound = BOUND_DIMS.get(dim.dim_param) or BOUND_DIMS.get(f"{value.name}.{axis}")
                if bound:
                    dim.dim_value = bound
    for value in copy.graph.output:  # stale after an edit
        value.ClearField("type")
    graph = shape_inference.infer_shapes(copy, check_type=True, strict_mode=True, data_prop=True).graph
    found = {tensor.name: Kind(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            found.setdefault(value.name, Kind(kind.elem_type, tuple(dim.dim_value for dim in kind.shape.dim)))
    return found


def edited(model: ModelProto, draw: random.Random, edits: Sequence[Edit], tries: int = 6) -> ModelProto | None:
    """Return a changed copy that still checks as valid; None if none of some edits gives one."""
    for _ in range(tries):
        copy: ModelProto = copied(model)
        try:
            draft = Draft(copy, draw)
            if len(copy.graph.node) > MAX_NODES:
                draft.drop([draw.randrange(len(copy.graph.node))])
            before = dict(draft.types)
            draw.choice(edits)(draft)
            _finish(draft, before)
        except INVALID:
            continue
        return copy
    return None


def _finish(draft: Draft, before: dict[str, Kind]) -> None:
    """State the types of outputs, and check the model; raises one of INVALID."""
    found = types_of(draft.model)
    for value in draft.graph.output:
        kind = found.get(value.name)
        if kind is not None and draft.draw.random() < 0.95:
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind.element, kind.shape))
        value.type.tensor_type.shape.SetInParent()
    largest = max(
        [MAX_ELEMENTS if draft.draw.random() < 0.95 else LARGE_ELEMENTS, *(kind.elements for kind in before.values())]
    )
    if any(kind.elements > largest or 0 in kind.shape for kind in found.values()):
        raise Unsuited("a tensor is too large or empty")
    onnx.checker.check_model(without_files(draft.model))


def without_files(model: ModelProto) -> ModelProto:
    """Return a model with inputs in the place of weights in files, which the checker would look for."""
    external = [one for one in model.graph.initializer if one.data_location == TensorProto.EXTERNAL]
    if not external:
        return model
    copy: ModelProto = copied(model)
    kept = [copied(one) for one in model.graph.initializer if one.data_location != TensorProto.EXTERNAL]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    known = {value.name for value in copy.graph.input}
    new = [one for one in external if one.name not in known]
    copy.graph.input.extend(helper.make_tensor_value_info(one.name, one.data_type, list(one.dims)) for one in new)
    return copy


def reads(node: NodeProto) -> list[str]:
    """Return what a node reads, its subgraphs included."""
    inner = [graph for item in node.attribute for graph in (item.g, *item.graphs)]
    return [*node.input, *(name for graph in inner for each in graph.node for name in reads(each))]


def all_nodes(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Return nodes and those of their subgraphs."""
    found: list[NodeProto] = []
    for node in nodes:
        found.append(node)
        for item in node.attribute:
            for graph in (item.g, *item.graphs):
                found += all_nodes(graph.node)
    return found


def copied(message: Any) -> Any:
    """Return a copy of a message."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
