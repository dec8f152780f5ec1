"""Auxiliary layers and producers on tensors of every rank, type and opset."""

import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from load_requests import request_of
from onnx import TensorProto, helper, load_model, numpy_helper
from probe_models import executed_by_openvino, graph_of, run_on_onnxruntime

from device_agents.backends.emulated_npu import EmulatedNpuBackend
from harness.errors import UsageError
from harness.network.assemble import ModelBuilder
from harness.network.model_references import load_network
from harness.network.network import TensorType
from harness.probe.auxiliary import (
    MOST_VALUES,
    OUTPUT_CHANNELS,
    AuxiliaryChoice,
    AuxiliaryKind,
    attach,
    chosen_kind,
    slice_leading,
)
from harness.probe.overhead_terms import TERM_NAMES, OverheadTerms
from harness.probe.probe import null_probe
from harness.probe.producer import ProducerKind, produce, producers_of

every_kind = pytest.mark.parametrize("kind", AuxiliaryKind)
OPSETS = (7, 9, 10, 12, 13, 17)


@every_kind
@pytest.mark.parametrize("rank", range(7))
def test_every_rank_has_an_auxiliary_layer(kind: AuxiliaryKind, rank: int) -> None:
    """An auxiliary layer runs on tensors of zero to six dimensions and returns floats."""
    probe = null_probe([TensorType("float32", (2, 3, 4, 5, 2, 3)[:rank])], ["outside"], kind, 13, "auxiliary")
    (output,) = run_on_onnxruntime(probe.model)
    assert output.dtype == np.float32
    assert np.isfinite(output).all()


@given(
    st.sampled_from(AuxiliaryKind),
    st.lists(st.integers(1, 5), max_size=5),
    st.sampled_from(("float32", "float16", "float64", "int64", "int32", "uint8", "int8", "bool")),
    st.sampled_from(OPSETS),
)
@settings(max_examples=80)
def test_every_type_and_opset_has_one_too(kind: AuxiliaryKind, shape: list[int], dtype: str, opset: int) -> None:
    """For every type, shape and opset the auxiliary layer is valid, and its result is small and of known size."""
    builder = ModelBuilder(opset)
    tensor = builder.input(TensorType(dtype, tuple(shape)))
    result, terms = attach(builder, tensor, kind)
    model = builder.build([result])
    (output,) = run_on_onnxruntime(model)
    assert (
        output.nbytes
        == model.output_bytes
        == (terms.stored_bytes if kind.layer.device_memory else terms.auxiliary_output_bytes)
    )
    assert output.dtype == (np.float16 if dtype == "float16" else np.float32)
    if kind.layer.device_memory:
        assert terms.auxiliary_input_bytes == output.nbytes
    elif dtype in ("float32", "float16"):
        assert terms.auxiliary_input_bytes == np.dtype(dtype).itemsize * math.prod(shape)
        assert output.size <= OUTPUT_CHANNELS * math.prod(shape)
    else:
        assert terms.auxiliary_input_bytes == 4


@pytest.mark.parametrize("shape", [(7, 24), (1, 48, 40), (1, 3, 9, 9), (1, 16, 9, 9), (2, 64, 8, 8)])
def test_openvino_pools_plain_tensors_where_they_are(shape: tuple[int, ...]) -> None:
    """Pooling after a layer whose result is in the plain layout reorders nothing, whatever the number of channels."""
    builder = ModelBuilder(13)
    kind = TensorType("float32", shape)
    result, _ = attach(builder, builder.operator("Abs", [builder.input(kind)], kind), AuxiliaryKind.AVGPOOL, "plain")
    assert "Reorder" not in executed_by_openvino(builder.build([result]))


@pytest.mark.parametrize("shape", [(1, 16, 20, 30), (2, 7, 9), (1, 3, 4, 5, 6)])
def test_pooling_leaves_one_value_a_channel(shape: tuple[int, ...]) -> None:
    """The default auxiliary layer returns one value per channel."""
    probe = null_probe([TensorType("float32", shape)], ["outside"], AuxiliaryKind.AVGPOOL, 13, "auxiliary")
    (output,) = run_on_onnxruntime(probe.model)
    assert output.shape == (*shape[:2], *[1] * (len(shape) - 2))


@pytest.mark.parametrize("shape", [(64, 64, 64), (1, 257, 3, 5), (300, 7)])
def test_few_values_of_a_tensor_of_many_channels_are_read(shape: tuple[int, ...]) -> None:
    """Of a plain tensor with many channels, values that lie far apart are misses of the caches: few are read."""
    builder = ModelBuilder(13)
    result, terms = attach(builder, builder.input(TensorType("float32", shape)), AuxiliaryKind.AVGPOOL, "plain")
    (output,) = run_on_onnxruntime(builder.build([result]))
    assert 0.9 * MOST_VALUES <= output.size <= MOST_VALUES
    assert terms.auxiliary_output_bytes == output.nbytes


@pytest.mark.parametrize("shape", [(768, 12, 4, 4), (12, 197, 300), (64, 8)])
@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize("op", ["Reshape", "Transpose"])
def test_few_values_of_half_precision_are_read(shape: tuple[int, ...], opset: int, op: str, tmp_path: Path) -> None:
    """The auxiliary layer of half precision reads few values; the runtime rounds no others, and moves nothing."""
    builder, kind = ModelBuilder(opset), TensorType("float16", shape)
    written = builder.operator("Abs", [builder.input(kind)], kind)
    if op == "Reshape":
        moved = TensorType("float16", (shape[0] * shape[1], *shape[2:]))
        written = builder.operator(op, [written, builder.constant(moved.shape)], moved)
    else:
        moved = TensorType("float16", (*shape[1:], shape[0]))
        written = builder.operator(op, [written], moved, perm=[*range(1, len(shape)), 0])
    result, terms = attach(builder, written, AuxiliaryKind.AVGPOOL, "plain")
    model = builder.build([result])
    (output,) = run_on_onnxruntime(model, path := str(tmp_path / "optimised.onnx"))
    assert output.size <= MOST_VALUES and terms == OverheadTerms(half_reads=1)
    ops = [node.op_type for node in load_model(path).graph.node]
    assert ops.count("Cast") == 2 and ops.index(op) < ops.index("Pad")


@pytest.mark.parametrize(
    ("shape", "left"),
    [
        ((1, 16, 20, 30), (1, 16, 20, 1)),
        ((2, 7, 9), (2, 7, 1)),
        ((1, 3, 4, 5, 6), (1, 3, 4, 1, 1)),
        ((1, 9), (1, 1, 1)),
    ],
)
def test_pooling_by_rows_keeps_every_row(shape: tuple[int, ...], left: tuple[int, ...]) -> None:
    """Pooling by rows reads every row of a layer's result."""
    probe = null_probe([TensorType("float32", shape)], ["outside"], AuxiliaryKind.ROWPOOL, 13, "auxiliary")
    (output,) = run_on_onnxruntime(probe.model)
    assert output.shape == left


@pytest.mark.parametrize(
    ("kind", "operator", "size"),
    [
        (AuxiliaryKind.AVGPOOL, "AveragePool", 1),
        (AuxiliaryKind.ROWPOOL, "AveragePool", 1),
        (AuxiliaryKind.CONV1X1, "Conv", 1),
        (AuxiliaryKind.CONV3X3, "Conv", 3),
    ],
)
@pytest.mark.parametrize("shape", [(1, 16, 20, 30), (2, 7, 9)])
def test_auxiliary_layers_are_the_ones_named(
    kind: AuxiliaryKind, operator: str, size: int, shape: tuple[int, ...]
) -> None:
    """Each kind is the operator that its name says; conv1x1 is a matrix product at rank 3."""
    probe = null_probe([TensorType("float32", shape)], ["outside"], kind, 13, "auxiliary")
    (node,) = graph_of(probe.model).node
    window = next((list(item.ints) for item in node.attribute if item.name == "kernel_shape"), [])
    if kind == AuxiliaryKind.CONV1X1 and len(shape) == 3:
        assert node.op_type == "MatMul"
    else:
        assert (node.op_type, window) == (operator, [size] * (len(shape) - 2))


def test_a_choice_selects_a_kind_or_leaves_it_to_the_device() -> None:
    """The choices of an option are `auto` and the names of all kinds; any other text is refused with the choices."""
    assert [chosen_kind(kind.value) for kind in AuxiliaryKind] == list(AuxiliaryKind)
    assert chosen_kind("auto") is None
    with pytest.raises(UsageError, match="no auxiliary layer 'conv9x9'") as caught:
        chosen_kind("conv9x9")
    assert "auto, avgpool" in caught.value.next_step
    assert get_args(AuxiliaryChoice) == ("auto", *map(str, AuxiliaryKind))


PRODUCERS: list[tuple[ProducerKind, TensorType]] = [
    ("outside", TensorType("float32", (1, 8, 5, 5))),
    ("convolution", TensorType("float32", (1, 8, 5, 5))),
    ("convolution", TensorType("float32", (2, 3, 1, 7))),
    ("narrow convolution", TensorType("float32", (1, 8, 5, 5))),
    ("signed convolution", TensorType("float32", (1, 8, 5, 5))),
    ("pooled convolution", TensorType("float32", (2, 3, 1, 7))),
    ("slice", TensorType("float32", (1, 3, 5))),
    ("slice", TensorType("int64", (1, 1))),
    ("slice", TensorType("bool", (2, 3))),
    ("abs", TensorType("float32", (3, 5))),
    ("sum", TensorType("float32", (3, 5))),
    ("sum", TensorType("float16", (2, 3, 4, 1))),
    ("abs", TensorType("int64", (4,))),
    ("abs", TensorType("bool", (2, 3))),
    ("abs", TensorType("float16", ())),
    ("difference", TensorType("float32", (3, 5))),
    ("difference", TensorType("float16", ())),
]


@pytest.mark.parametrize(("producer", "kind"), PRODUCERS, ids=str)
@pytest.mark.parametrize("opset", [7, 13, 17])
def test_producers_write_the_type_asked_for(producer: ProducerKind, kind: TensorType, opset: int) -> None:
    """A producer's result has the type of the tensor that it replaces."""
    builder = ModelBuilder(opset)
    result = produce(builder, kind, producer)
    assert builder.type_of(result) == kind
    if producer != "outside":
        (output,) = run_on_onnxruntime(builder.build([result]))
        assert (str(output.dtype), output.shape) == (kind.dtype, kind.shape)


@pytest.mark.parametrize("producer", ["slice", "pooled convolution"])
def test_openvino_executes_an_element_wise_layer_apart_from_its_producer(producer: ProducerKind) -> None:
    """The probe with the layer executes one node more than the null probe; after other producers it does not."""

    def executed(producer: ProducerKind, *layer: str) -> int:
        builder, kind = ModelBuilder(13), TensorType("float32", (1, 8, 6, 6))
        tensor = produce(builder, kind, producer)
        for op in layer:
            tensor = builder.operator(op, [tensor], kind)
        result, _ = attach(builder, tensor, AuxiliaryKind.AVGPOOL, "private" if "conv" in producer else "plain")
        return len(executed_by_openvino(builder.build([result])))

    assert executed(producer, "Sigmoid") == executed(producer) + 1
    other: ProducerKind = "abs" if producer == "slice" else "convolution"
    assert executed(other, "Sigmoid") == executed(other)


def test_a_signed_producer_writes_both_signs() -> None:
    """In front of a layer that branches on signs, producers write values of both; others write none below 0."""
    lowest = {}
    producers: tuple[ProducerKind, ...] = ("convolution", "signed convolution", "abs", "difference")
    for producer in producers:
        builder = ModelBuilder(13)
        result = produce(builder, TensorType("float32", (1, 32, 5, 5)), producer)
        (output,) = run_on_onnxruntime(builder.build([result]))
        assert output.max() > 0
        lowest[producer] = output.min()
    assert min(lowest["convolution"], lowest["abs"]) >= 0 > max(lowest["signed convolution"], lowest["difference"])


@pytest.mark.parametrize("producer", ["outside", "abs", "convolution"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bytes_that_layers_read_are_spread(dtype: str, producer: ProducerKind) -> None:
    """Each half of the pixels of a channel spans many values, so that a MaxPool on integers cannot guess the largest.

    ONNX Runtime's branches on each value. Channels differ, and few of their values are at the ends of the type.
    """
    builder = ModelBuilder(13)
    kind = TensorType(dtype, (1, 32, 24, 24))
    copied = builder.operator("Identity", [produce(builder, kind, producer)], kind)
    (output,) = run_on_onnxruntime(builder.build([copied]))
    low, high = np.quantile(output.reshape(32, -1).astype(int), (0.25, 0.75), axis=1)
    assert np.median(high - low) >= 32
    assert np.isin(output, (np.iinfo(dtype).min, np.iinfo(dtype).max)).mean() < 0.25


def test_layers_that_branch_on_signs_read_both() -> None:
    """The producer of a PRelu writes both signs, whatever the layout of its input; that of a Relu need not."""
    kinds = {}
    for op, inputs in (("PRelu", ["x", "s"]), ("Relu", ["x"])):
        nodes = [helper.make_node("Neg", ["i"], ["x"]), helper.make_node(op, inputs, ["y"])]
        graph = helper.make_graph(
            nodes,
            "signs",
            [helper.make_tensor_value_info("i", TensorProto.FLOAT, [1, 8, 5, 5])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 5, 5])],
            [numpy_helper.from_array(np.ones((8, 1, 1), np.float32), "s")] if op == "PRelu" else [],
        )
        network = load_network(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
        for blocked in (frozenset("x"), frozenset[str]()):
            kinds[op, bool(blocked)] = producers_of(network, ["x"], network.nodes[1:], blocked)
    assert kinds["PRelu", True] == ("signed convolution",)
    assert kinds["PRelu", False] == ("difference",)
    assert kinds["Relu", True] == ("convolution",)
    assert kinds["Relu", False] == ("abs",)


@pytest.mark.parametrize("opset", [11, 13])
def test_a_pixel_of_a_quantised_map_is_read_without_the_rest(opset: int) -> None:
    """The auxiliary layer of a byte map in a private layout convolves one pixel on integers, and slices nothing."""
    probe = null_probe(
        [TensorType("uint8", (1, 8, 6, 6))], ["convolution"], AuxiliaryKind.AVGPOOL, opset, "null", layouts=["private"]
    )
    ops = [node.op_type for node in graph_of(probe.model).node]
    assert ops[-3:] == ["Conv", "QuantizeLinear", "DequantizeLinear"] and "Slice" not in ops
    assert run_on_onnxruntime(probe.model)[0].shape == (1, 1, 1, 1)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("plane", [(1, 1), (1, 6), (6, 1), (6, 6)])
def test_openvino_reads_a_quantised_map_by_the_convolution_alone(dtype: str, plane: tuple[int, int]) -> None:
    """OpenVINO adds no node that reads the byte map for the auxiliary layer: nothing converts or pools all of it."""
    builder = ModelBuilder(13)
    tensor = produce(builder, TensorType(dtype, (1, 32, *plane)), "convolution")
    result, _ = attach(builder, tensor, AuxiliaryKind.AVGPOOL, "private")
    executed = executed_by_openvino(builder.build([result]))
    behind = executed[executed.index("Convolution") + 1 :]
    assert "Pooling" not in behind and "Subgraph" not in behind[: behind.index("Convolution")]


@pytest.mark.parametrize("shape", [(1, 300, 33, 33), (1, 16, 260, 260)])
def test_a_small_emulated_machine_reads_a_large_quantised_map(shape: tuple[int, ...]) -> None:
    """The auxiliary layer of a byte map fits the memories of the machine, however large the map is."""
    builder = ModelBuilder(13)
    tensor = produce(builder, TensorType("int8", shape), "narrow convolution")
    result, _ = attach(builder, tensor, AuxiliaryKind.ROWPOOL, "private")
    revealed = EmulatedNpuBackend({"preset": "nvdla-64"}).load(request_of(builder.build([result]), reveal=True))
    assert revealed is not None


@pytest.mark.parametrize("opset", OPSETS)
def test_leading_parts_are_cut_off_in_every_opset(opset: int) -> None:
    """Slices take the same leading part in every opset."""
    builder = ModelBuilder(opset)
    result = slice_leading(builder, builder.input(TensorType("float32", (4, 6, 3))), (2, 6, 1))
    (output,) = run_on_onnxruntime(builder.build([result]))
    assert output.shape == builder.type_of(result).shape == (2, 6, 1)


amounts = st.builds(OverheadTerms, *[st.integers(0, 10**9)] * len(TERM_NAMES))


@given(amounts, amounts, amounts)
def test_terms_add_up(first: OverheadTerms, second: OverheadTerms, third: OverheadTerms) -> None:
    """Terms add up as amounts: the sum is associative and commutative, and empty terms are its zero."""
    assert (first + second) + third == first + (second + third)
    assert first + second == second + first
    assert first + OverheadTerms() == first


def test_the_identity_of_terms_is_that_of_existing_journals() -> None:
    """Probe ids are hashed from this text, so that a campaign begun by an earlier version resumes."""
    others = (
        "auxiliaries",
        "auxiliary_input_bytes",
        "auxiliary_output_bytes",
        "slices",
        "slice_bytes",
        "views",
        "loaded_bytes",
        "stored_bytes",
        "accesses",
        "stacks",
        "stacked_rows",
        "last_bytes",
    )
    text = ", ".join(("input_bytes=1", "output_bytes=2", *(f"{name}=0" for name in others)))
    assert OverheadTerms(input_bytes=1, output_bytes=2).identity == f"Terms({text})"
