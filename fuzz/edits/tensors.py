"""Change sizes, types and names: dimensions, symbolic ones, element types, opsets, weights in files, metadata."""

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fuzz.edits.draft import FLOATS, Draft, Edit, Kind, Unsuited, all_nodes, copied
from fuzz.mutation import TEXTS

WEIGHTS = "weights.bin"
WEIGHTS_BYTES = 4096
"""A file beside every network that is read, and its size."""


def dimension(draft: Draft) -> None:
    """Give an input another size along one axis."""
    value = draft.pick([value for value in draft.graph.input if value.type.tensor_type.shape.dim])
    dim = draft.draw.choice(value.type.tensor_type.shape.dim)
    old = dim.dim_value or 2
    dim.dim_value = draft.draw.choice((1, 2, 3, 4, old + 1, 2 * old, max(1, old // 2)))
    del draft.graph.value_info[:]


def symbol(draft: Draft) -> None:
    """Give a dimension of an input a name that has a value, or no name."""
    value = draft.pick([value for value in draft.graph.input if value.type.tensor_type.shape.dim])
    dims = value.type.tensor_type.shape.dim
    dim = draft.draw.choice(dims)
    if dim.dim_value in (2, 3) and draft.draw.random() < 0.8:
        dim.dim_param = {2: "N", 3: "M"}[dim.dim_value]
    elif value.name == "x" and dims[0].dim_value == 1:
        dims[0].ClearField("dim_value")
    else:
        dim.dim_param = draft.draw.choice(("N", "M"))
        del draft.graph.value_info[:]


def element_type(draft: Draft) -> None:
    """Turn all floats of one type into another type."""
    old = draft.pick([kind.element for kind in draft.types.values() if kind.is_float])
    new = draft.draw.choice([one for one in FLOATS if one != old])
    for value in (*draft.graph.input, *draft.graph.output):
        if value.type.tensor_type.elem_type == old:
            value.type.tensor_type.elem_type = new
    for tensor in draft.graph.initializer:
        _convert(tensor, old, new)
    for node in all_nodes(draft.graph.node):
        for item in node.attribute:
            if node.op_type == "Cast" and item.name == "to" and item.i == old:
                item.i = new
            if item.HasField("t"):
                _convert(item.t, old, new)
    del draft.graph.value_info[:]


def _convert(tensor: TensorProto, old: int, new: int) -> None:
    if tensor.data_type == old and tensor.data_location != TensorProto.EXTERNAL:
        array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(new))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def cast_around(draft: Draft) -> None:
    """Compute the readers of a tensor in another type: Cast there and back."""
    tensor, kind = draft.choose(lambda kind: kind.is_float)
    other = draft.draw.choice([one for one in (*FLOATS, TensorProto.INT32) if one != kind.element])
    (found,) = draft.append("Cast", [tensor], to=other)
    (found,) = draft.append(draft.draw.choice(("Abs", "Identity", "Neg")), [found])
    draft.attach(draft.append("Cast", [found], to=kind.element)[0], tensor)


def opset(draft: Draft) -> None:
    """State another version of the operators; mostly the operators are those that both versions have."""
    entry = draft.pick([one for one in draft.model.opset_import if one.domain in ("", "ai.onnx")])
    entry.version = draft.draw.choice((7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24))
    for function in draft.model.functions:
        for other in function.opset_import:
            if other.domain in ("", "ai.onnx"):
                other.version = entry.version
    if draft.draw.random() < 0.1:
        entry.domain = draft.draw.choice(("", "ai.onnx"))
    draft.model.ir_version = draft.draw.choice((8, 8, 9, 10, draft.model.ir_version))


def external(draft: Draft) -> None:
    """Move a weight into the file of weights."""
    kept = [one for one in draft.graph.initializer if one.raw_data and len(one.raw_data) <= WEIGHTS_BYTES]
    tensor = draft.pick(kept)
    size = len(tensor.raw_data)
    offset = draft.draw.choice((0, draft.draw.randrange(WEIGHTS_BYTES - size + 1)))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", WEIGHTS), ("offset", offset), ("length", size)):
        tensor.external_data.add(key=key, value=str(text))


def more_inputs(draft: Draft) -> None:
    """Let another input, also one that is a number or an index, take the place of a constant or be added."""
    tensor, kind = draft.choose(lambda kind: kind.is_float)
    names = {name for node in draft.graph.node for name in node.input}
    weights = [one for one in draft.graph.initializer if one.name in names and one.data_type in FLOATS]
    if weights and draft.draw.random() < 0.5:
        weight = copied(draft.draw.choice(weights))
        kept = [copied(one) for one in draft.graph.initializer if one.name != weight.name]
        del draft.graph.initializer[:]
        draft.graph.initializer.extend(kept)
        found = Kind(weight.data_type, tuple(weight.dims))
        draft.graph.input.append(helper.make_tensor_value_info(weight.name, found.element, found.shape))
        return
    name = draft.fresh("x")
    draft.graph.input.append(helper.make_tensor_value_info(name, kind.element, kind.shape))
    draft.types[name] = kind
    draft.attach(draft.append("Add", [tensor, name])[0], tensor)


def default_input(draft: Draft) -> None:
    """Make an initializer the default of an input."""
    tensor = draft.pick(list(draft.graph.initializer))
    if tensor.name in {value.name for value in draft.graph.input}:
        raise Unsuited("it is an input")
    draft.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))


def rename(draft: Draft) -> None:
    """Give a tensor or a node another name, also one that is dangerous to show."""
    text = str(draft.draw.choice((*TEXTS, "t0", "n0", "x0", "w0", "k0", "a/b", "ü" * 40)))
    if draft.draw.random() < 0.4:
        draft.draw.choice(draft.graph.node).name = text
        return
    every = [*draft.types, *(value.name for value in draft.graph.output)]
    old = draft.pick(sorted(set(every)))
    if not text or text in every:
        raise Unsuited("the name is taken")
    for value in (*draft.graph.input, *draft.graph.output, *draft.graph.initializer):
        if value.name == old:
            value.name = text
    for node in draft.graph.node:
        _rename(node, old, text)
    del draft.graph.value_info[:]


def _rename(node: NodeProto, old: str, new: str) -> None:
    for names in (node.input, node.output):
        names[:] = [new if name == old else name for name in names]
    for item in node.attribute:
        for graph in (item.g, *item.graphs):
            for value in graph.output:
                value.name = new if value.name == old else value.name
            for inner in graph.node:
                _rename(inner, old, new)


def raw_or_typed(draft: Draft) -> None:
    """Store the values of a constant in the field of its type, or the other way round."""
    tensor = draft.pick([one for one in draft.graph.initializer if one.data_location != TensorProto.EXTERNAL])
    array = numpy_helper.to_array(tensor)
    if tensor.raw_data and array.dtype != np.float16:
        made = helper.make_tensor(tensor.name, tensor.data_type, list(tensor.dims), array.ravel().tolist())
    else:
        made = numpy_helper.from_array(array, tensor.name)
    tensor.CopyFrom(made)


def metadata(draft: Draft) -> None:
    """Add text, types of inner tensors, a domain that nothing uses, or an unused constant."""
    kind, model = draft.draw.randrange(5), draft.model
    text = str(draft.draw.choice(TEXTS))
    if kind == 0:
        model.producer_name = model.doc_string = model.graph.doc_string = text
    elif kind == 1:
        model.metadata_props.add(key=text, value=text)
    elif kind == 2:
        name, found = draft.choose()
        model.graph.value_info.append(helper.make_tensor_value_info(name, found.element, found.shape))
    elif kind == 3:
        _import(model, draft.draw.choice(("ai.onnx.ml", "com.microsoft", "ours")))
    else:
        draft.numbers(Kind(TensorProto.FLOAT, draft.draw.choice(((), (3,), (0,), (70, 70)))))


def _import(model: ModelProto, domain: str) -> None:
    if domain not in {one.domain for one in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(domain, 1))


EDITS: tuple[Edit, ...] = (
    dimension,
    dimension,
    symbol,
    element_type,
    cast_around,
    opset,
    external,
    more_inputs,
    default_input,
    rename,
    raw_or_typed,
    metadata,
)
