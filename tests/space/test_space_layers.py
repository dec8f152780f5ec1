"""Layers of a space as networks: the same keys as in real networks, the same sizes as in the features."""

import math
from pathlib import Path

import pytest
from load_requests import request_of

from device_agents.backends import Backend
from device_agents.backends.emulated_npu.emulated_npu_backend import EmulatedNpuBackend
from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend
from device_agents.backends.openvino.openvino_backend import OpenVinoBackend
from harness.network.fusion.fusion_rules import DEFAULT_RULES
from harness.network.fusion.rule_learning import learn_rules
from harness.network.input_integers import integer_range
from harness.network.layers import Layer, context_of, cut
from harness.network.model_references import load_network
from harness.network.network import Network
from harness.network.runtime_graph.formats import read_runtime_graph
from harness.predictor.features.key_features import describe
from harness.probe.probe import network_probe
from harness.space.configuration import (
    ACTIVATIONS,
    DYNAMIC,
    INT8,
    PACKED_WEIGHTS,
    UNSIGNED,
    UNSIGNED_WEIGHTS,
    WEIGHTS,
    Configuration,
    Convolution,
    FloatLayer,
    Pooling,
    Product,
    Quantised,
    Recurrent,
    Transposed,
)
from harness.space.data_movement import Elementwise, Joining, Permutation, Picking, Resizing, Rowwise
from harness.space.drawn_layers import even_layers
from harness.space.layer_network import Sources, network_of, own_layers
from harness.space.space import load_space

EVERY_KIND: tuple[FloatLayer, ...] = (
    Convolution(2, 16, 32, (14, 12), 3, 2, 1, "Relu", True, True),
    Convolution(1, 16, 16, (14, 14), 5, 1, 16, "Swish", True, False),
    Convolution(1, 16, 32, (14, 14), 1, 1, 4, "Relu6", False, False),
    Convolution(1, 3, 32, (32, 32), 4, 4, 1, "none", False, False),
    Product("Gemm", 0, 2, 64, 10, "none"),
    Product("MatMul", 0, 9, 64, 32, "Relu"),
    Product("MatMul", 3, 9, 16, 9, "none"),
    Pooling("MaxPool", 1, 16, (15, 15), (3, 3), (2, 2)),
    Pooling("AveragePool", 1, 16, (14, 14), (2, 2), (2, 2)),
    Pooling("GlobalAveragePool", 1, 16, (7, 7), (7, 7), (1, 1)),
    Elementwise("Add", 2, 1, 16, (7, 7)),
    Elementwise("Swish", 1, 1, 16, (7, 7)),
    Rowwise("Softmax", 9, 9),
    Rowwise("LayerNormalization", 9, 32),
    Rowwise("LayerNormalization", 9, 32, residual=True),
    Rowwise("ReduceMean", 9, 32),
    Rowwise("InstanceNormalization", 9, 32),
    *(Rowwise(op, 9, 32) for op in ("TopK", "Trilu", "Hardmax")),
    *(Rowwise(op, 9, 32, axis) for op in ("ReduceMax", "ArgMax", "Expand", "CumSum") for axis in (1, 2)),
    Pooling("MaxPool", 1, 16, (15, 15), (3, 3), (2, 2), context="chip"),
    Convolution(1, 16, 32, (14, 14), 3, 1, 1, "Relu", False, False, 4),
    Transposed(1, 16, 12, (8, 8), 2, 2),
    Transposed(1, 16, 1, (8, 8), 9, 2),
    Elementwise("Mul", 2, 1, 16, (7, 7), broadcast=True),
    Elementwise("PRelu", 1, 1, 16, (7, 7)),
    Elementwise("PRelu", 1, 1, 16, (7, 7), layout="rows"),
    Elementwise("BatchNormalization", 1, 1, 16, (7, 7)),
    Elementwise("Gelu", 1, 1, 16, (7, 7)),
    Elementwise("LRN", 1, 1, 16, (7, 7)),
    Resizing("Resize", 1, 16, (7, 7), 2, "nearest"),
    Resizing("Resize", 1, 16, (7, 7), 4, "linear"),
    Resizing("Resize", 1, 16, (7, 7), 2, "linear", context="chip"),
    Resizing("GridSample", 1, 16, (7, 7), 1, "linear"),
    Joining("Concat", 3, 1, 16, (7, 7)),
    Joining("Split", 2, 1, 16, (7, 7)),
    Joining("Slice", 2, 1, 16, (7, 7)),
    Permutation((1, 9, 32), "matrix"),
    Permutation((1, 9, 7, 7), "channels_last"),
    Permutation((1, 4, 9, 8), "heads"),
    Permutation((1, 2, 8, 7, 7), "shuffle"),
    Permutation((1, 16, 7, 7), ""),
    Convolution(1, 16, 32, (64,), 3, 1, 1, "Relu", False, False, 4),
    Convolution(1, 16, 16, (63,), 4, 1, 16, "none", False, False),
    Convolution(1, 16, 32, (4, 9, 7), 3, 2, 1, "Relu", False, True),
    Pooling("MaxPool", 1, 16, (63,), (3,), (2,)),
    Pooling("AveragePool", 1, 16, (4, 8, 6), (2, 2, 2), (2, 2, 2)),
    Transposed(1, 16, 12, (64,), 16, 8),
    Transposed(1, 16, 12, (2, 4, 6), 2, 2),
    Permutation((1, 9, 3, 4, 8), "qkv"),
    Convolution(1, 16, 32, (14, 14), 3, 1, 1, "Relu", False, False, context="chip"),
    Permutation((1, 3, 2, 2, 5, 6), "pixels"),
    Permutation((1, 3, 5, 2, 6, 2), "patches"),
    Elementwise("Mul", 1, 1, 16, (7, 7), broadcast=True, layout="rows"),
    Elementwise("Add", 1, 1, 16, (7, 7), layout="rows"),
)
SCATTERS = ("ScatterND", "ScatterElements")
PICKS = tuple(Picking(op, 90, 40, 8) for op in ("Gather", "GatherND", "GatherElements", *SCATTERS))
PICKS += tuple(Picking(op, 90, 40, 8, adds=True) for op in SCATTERS)
ONE_BYTE = dict.fromkeys((INT8, ACTIVATIONS, UNSIGNED_WEIGHTS, DYNAMIC, UNSIGNED), 1)
WEIGHT_BYTES = {"float32": 4, **ONE_BYTE, WEIGHTS: 4, PACKED_WEIGHTS: 0.5}
"""Bytes of a weight as it is multiplied."""
ON_INTEGERS: tuple[FloatLayer, ...] = (
    Convolution(1, 16, 32, (14, 14), 3, 1, 1, "Relu", False, False),
    Convolution(1, 17, 33, (14, 14), 1, 1, 1, "none", False, False),
    Convolution(1, 32, 32, (14, 14), 3, 1, 32, "Relu", False, False),
    Convolution(1, 3, 32, (32, 32), 3, 2, 1, "Relu", False, False, context="outside"),
    Product("MatMul", 0, 9, 64, 32, "none"),
    Product("MatMul", 3, 9, 16, 9, "none"),
    Product("Gemm", 0, 1, 64, 10, "none"),
    Elementwise("Add", 2, 1, 16, (7, 7)),
    Elementwise("Sigmoid", 1, 1, 16, (7, 7)),
    Pooling("MaxPool", 1, 16, (15, 15), (3, 3), (2, 2)),
    Pooling("GlobalAveragePool", 1, 16, (7, 7), (7, 7), (1, 1)),
    Joining("Concat", 2, 1, 16, (7, 7)),
    Permutation((1, 9, 32), "matrix"),
    Elementwise("Mul", 2, 1, 16, (7, 7), broadcast=True),
    Elementwise("LeakyRelu", 1, 1, 16, (7, 7)),
    Rowwise("Softmax", 9, 9),
    Pooling("AveragePool", 1, 16, (14, 14), (2, 2), (2, 2)),
    Joining("Split", 2, 1, 16, (7, 7)),
    Joining("Slice", 2, 1, 16, (7, 7)),
    Resizing("Resize", 1, 16, (7, 7), 2, "nearest"),
    Permutation((1, 16, 7, 7), ""),
)


@pytest.mark.parametrize(
    ("network", "layers"),
    [
        (
            "resnet18",
            (
                Convolution(1, 64, 64, (56, 56), 3, 1, 1, "Relu", True, False),
                Convolution(1, 3, 64, (224, 224), 7, 2, 1, "Relu", True, False),
                Convolution(1, 64, 128, (56, 56), 1, 2, 1, "none", True, False),
                Convolution(1, 64, 64, (56, 56), 3, 1, 1, "Relu", True, True),
                Pooling("MaxPool", 1, 64, (112, 112), (3, 3), (2, 2)),
                Pooling("GlobalAveragePool", 1, 512, (7, 7), (7, 7), (1, 1)),
                Product("Gemm", 0, 1, 512, 1000, "none"),
            ),
        ),
        ("mobilenetv2", (Convolution(1, 96, 96, (112, 112), 3, 2, 96, "Relu6", True, False),)),
        (
            "vit_tiny",
            (
                Product("MatMul", 0, 197, 192, 768, "none"),
                Convolution(1, 3, 192, (224, 224), 16, 16, 1, "none", False, False),
            ),
        ),
    ],
)
def test_layers_have_the_keys_of_real_networks(network: str, layers: tuple[Configuration, ...]) -> None:
    """The same layers in a published network, cut by the same rules, have the same keys."""
    real = {found.key for found in cut(load_network(f"builtin:{network}"), DEFAULT_RULES)}
    own = own_layers(cut(network_of(layers, "some"), DEFAULT_RULES))
    assert sorted(own) == list(range(len(layers)))
    assert {part.key for parts in own.values() for part in parts} <= real


def test_every_kind_lies_between_neighbours() -> None:
    """No layer of a space reads an input of its network or writes an output of it."""
    network = network_of(EVERY_KIND, "all")
    own = own_layers(cut(network, DEFAULT_RULES))
    assert sorted(own) == list(range(len(EVERY_KIND)))
    for parts in own.values():
        assert all("outside" not in context_of(network, part).split(",") for part in parts)
        assert not set(parts[-1].graph.outputs) & set(network.outputs)


@pytest.mark.parametrize("space", ["builtin:common", "builtin:int8"])
def test_layers_of_a_space_have_the_sizes_that_limits_count(
    space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer reads, multiplies and writes as much as it says, and a predictor learns from all of its parts."""
    monkeypatch.chdir(tmp_path)
    layers = even_layers(load_space(space), 150, 0)
    network = network_of(layers, "all")
    own = own_layers(_cut_as_reported(OnnxRuntimeBackend({}), network))
    assert len(own) >= 0.97 * len(layers)  # the runtime fuses a few small ones with a neighbour
    for index, parts in own.items():
        layer, described = layers[index], [describe(part.key.text) for part in parts]
        plain = layer.layer if isinstance(layer, Quantised) else layer
        assert None not in described
        work = [found.macs for found in described if found and found.operator.startswith(("mac/", "move/window"))]
        assert work in ([], [layer.macs])
        assert work or not layer.weights
        if len(parts) == 1:
            (graph,) = (part.graph for part in parts)
            inputs = [name for name in graph.inputs if network.types[name].dtype != "int64"]  # places do not count
            for names, shapes in ((inputs, plain.inputs), (graph.outputs, plain.results)):
                assert sorted(network.types[name].shape for name in names) == sorted(shapes)
            passed = sum(network.types[name].bytes for name in (*inputs, *graph.outputs))
            weights = sum(map(math.prod, layer.weights))
            assert layer.bytes == passed + weights * WEIGHT_BYTES[getattr(layer, "precision", "float32")]


@pytest.mark.parametrize("layer", PICKS, ids=lambda layer: layer.op)
def test_places_lie_within_the_table(layer: Picking) -> None:
    """A probe of a layer that picks from a table gives it places of any of its rows, and of nothing else."""
    network = network_of([layer], "picks")
    assert sorted(own_layers(cut(network, DEFAULT_RULES))) == [0]
    assert integer_range(network, "0.layer.places") == (0, layer.table)


@pytest.mark.parametrize(
    ("precision", "size"),
    [
        *((form, 98_304) for form in (INT8, UNSIGNED_WEIGHTS)),
        *((form, 196_608) for form in (DYNAMIC, UNSIGNED)),
        *((WEIGHTS, 393_216), (PACKED_WEIGHTS, 163_840)),
    ],
)
def test_products_on_integers_have_the_bytes_of_their_types(precision: str, size: int) -> None:
    """Inputs, weights and results of a product may have different types; those of floats are 16,384 elements each."""
    assert Quantised(Product("MatMul", 0, 64, 256, 256, "none"), precision).bytes == size


@pytest.mark.parametrize(("context", "dilation"), [("map", 1), ("chip", 1), ("outside", 1), ("map", 2)])
def test_convolutions_read_what_their_context_says(context: str, dilation: int) -> None:
    """The input of a convolution comes from another one, from an operator that keeps no layout, or from outside."""
    layer = Convolution(1, 4, 16, (14, 14), 3, 1, 1, "Relu", False, False, dilation, context=context)
    network = network_of([layer], "one")
    (parts,) = own_layers(cut(network, DEFAULT_RULES)).values()
    assert [context_of(network, part) for part in parts] == [context]


def test_onnxruntime_runs_layers_on_integers_as_one_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer of integers, and each product with weights of integers, is one layer with the work it says."""
    monkeypatch.chdir(tmp_path)
    layers = [
        *(Quantised(layer, INT8) for layer in ON_INTEGERS),
        *(Quantised(ON_INTEGERS[4], form) for form in (DYNAMIC, UNSIGNED)),
    ]
    layers += [Quantised(ON_INTEGERS[place], form) for form in (ACTIVATIONS, UNSIGNED_WEIGHTS) for place in (0, 2, 6)]
    with_weights = [Quantised(ON_INTEGERS[place], WEIGHTS) for place in (0, 2, 6)]
    with_weights.append(Quantised(ON_INTEGERS[4], PACKED_WEIGHTS))
    layers += with_weights
    network = network_of(layers, "integers")
    own = own_layers(_cut_as_reported(OnnxRuntimeBackend({}), network))
    assert sorted(own) == list(range(len(layers)))
    for index, (part,) in own.items():
        found = describe(part.key.text)
        assert found is not None
        assert found.macs == layers[index].macs or "/Slice" in found.operator  # which reads only its part
        assert ("-rounded-int8/" in found.operator) is (layers[index].precision == ACTIVATIONS)
        assert ("-dequantised/" in found.operator) is (layers[index].precision == WEIGHTS)
        assert found.element_bytes == (4 if layers[index] in with_weights else 1)


def test_onnxruntime_runs_recurrent_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent layer of a space is one layer of a runtime, with the work it says."""
    monkeypatch.chdir(tmp_path)
    layers = [Recurrent("LSTM", 9, 16, 8, 2), Recurrent("GRU", 5, 8, 16, 1)]
    own = own_layers(_cut_as_reported(OnnxRuntimeBackend({}), network_of(layers, "recurrent")))
    assert sorted(own) == list(range(len(layers)))
    for index, (part,) in own.items():
        found = describe(part.key.text)
        assert found is not None and (found.macs, found.operator.split("/")[-1]) == (
            layers[index].macs,
            layers[index].op,
        )


@pytest.mark.parametrize(("backend", "sources"), [(OpenVinoBackend, "apart"), (EmulatedNpuBackend, "usual")])
def test_devices_that_fuse_execute_no_layer_together_with_a_neighbour(
    backend: type[OpenVinoBackend | EmulatedNpuBackend],
    sources: Sources,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elementwise, rowwise and recurrent layers of a space stay separate layers with one kind of sources.

    The emulated NPU makes a view of an Expand, which its reader reads.
    """
    monkeypatch.chdir(tmp_path)
    views = {"Expand"} if backend is EmulatedNpuBackend else set()
    kinds = [layer for layer in EVERY_KIND if isinstance(layer, Elementwise | Rowwise)]
    layers: list[Configuration] = [layer for layer in kinds if layer.op not in views]
    layers += [Elementwise("Add", 2, 1, 16, (7, 7), layout="rows"), Elementwise("Erf", 1, 1, 16, (7, 7), layout="rows")]
    layers += [Recurrent("LSTM", 9, 16, 8, 2), Recurrent("GRU", 5, 8, 16, 1)]
    own = own_layers(_cut_as_reported(backend({}), network_of(layers, "some", sources)))
    assert sorted(own) == list(range(len(layers)))


def test_a_device_measures_what_it_executes_as_views() -> None:
    """What only moves elements is a layer of its own on a device that makes a view of it, wherever it can be one."""
    layers: list[Configuration] = [layer for layer in EVERY_KIND if isinstance(layer, Joining | Permutation)]
    layers += [Permutation((1, 4, 4, 9), "channels_first"), Permutation((1, 9, 4, 8), "reversed")]
    layers += [Permutation((1, 9, 32), "")]
    network = network_of(layers, "moved")
    own = own_layers(_cut_as_reported(EmulatedNpuBackend({}), network))
    assert sorted(own) == list(range(len(layers)))
    joined = [index for index, layer in enumerate(layers) if getattr(layer, "order", "") in ("heads", "shuffle")]
    assert [[part.op for part in own[index]] for index in joined] == [["Transpose+Reshape"]] * len(joined)


def _cut_as_reported(backend: Backend, network: Network) -> tuple[Layer, ...]:
    model = network_probe(network).model
    revealed = backend.load(request_of(model, "probe", reveal=True, runs=False))
    assert revealed is not None
    graph = read_runtime_graph(network, model.names, revealed.format, revealed.content)
    return cut(network, learn_rules([(network, graph.groups)], "some"))


def test_a_layer_fused_with_a_neighbour_is_not_measured() -> None:
    """An addition that the rules fuse into the pool before it is left out."""
    from harness.network.fusion.fusion_rules import FusionRule

    pool = Pooling("MaxPool", 1, 16, (15, 15), (3, 3), (2, 2))
    layers: list[Configuration] = [Elementwise("Add", 2, 1, 16, (7, 7)), pool]
    drawn_in = FusionRule("MaxPool(x0);Add(0,x1)", 1, 1, "test")
    network = network_of(layers, "two", "apart")
    assert list(own_layers(cut(network, DEFAULT_RULES))) == [0, 1]
    assert list(own_layers(cut(network, [drawn_in]))) == [1]
