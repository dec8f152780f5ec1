"""The features of layers from their keys: convolutions, products, recurrent layers, pools and whole networks."""

import numpy as np
import pytest
from layer_keys import described, window

from harness.network.layers import cut
from harness.network.network_list import load_networks
from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_features import code_of

_NORM = "BatchNormalization(t0,c:float32[8],c:float32[8],c:float32[8],c:float32[8]){}"


def test_a_residual_convolution_by_hand() -> None:
    """A 3x3 convolution of stride 2 with norm, residual addition and activation is one operator with one operand."""
    layer = described(
        f"k1|x0:float32[2,16,10,7]|x1:float32[2,8,5,4]|Conv(x0,c:float32[8,16,3,3]){{{window(3, 1, 2)}}}|{_NORM}"
        "|Sum(t1,x1){}|Relu(t2){}|->t3:float32[2,8,5,4]"
    )
    assert layer.operator == "mac/conv/dense/Relu"
    assert (layer.in_size, layer.out_size, layer.kernel, layer.stride) == ((10, 7), (5, 4), (3, 3), (2, 2))
    assert layer.macs == 2 * 5 * 4 * 8 * 16 * 9
    assert layer.weight_elements == 8 * 16 * 9
    assert layer.extra_operands == 1
    assert layer.moved_bytes == 4 * (2 * 16 * 70 + 8 * 16 * 9 + 2 * (2 * 8 * 20))


def test_kinds_of_convolutions() -> None:
    """Depthwise, grouped and transposed convolutions have their own classes; the last works per input pixel."""
    read = "x0:float32[1,8,6,6]"
    kinds = [(8, 8, "depthwise"), (8, 24, "multiplied-narrow"), (2, 8, "grouped-narrow"), (1, 8, "dense")]
    for group, outputs, kind in kinds:
        weight, written = f"c:float32[{outputs},{8 // group},3,3]", f"t0:float32[1,{outputs},6,6]"
        text = f"k1|{read}|Conv(x0,{weight}){{{window(3, 1, 1, group)}}}|->{written}"
        assert code_of(described(text).operator) == f"mac/conv/{kind}"
    text = f"k1|{read}|ConvTranspose(x0,c:float32[8,4,4,4]){{{window(4, 1, 2)}}}|->t0:float32[1,4,12,12]"
    layer = described(text)
    assert code_of(layer.operator) == "mac/conv/transposed"
    assert layer.macs == 6 * 6 * 8 * 4 * 16
    assert layer.result_elements == 4 * 12 * 12


@pytest.mark.parametrize(("size", "axes"), [((60,), "-1d"), ((4, 5, 3), "-3d")])
def test_convolutions_of_other_than_two_axes_copy_windows(size: tuple[int, ...], axes: str) -> None:
    """They have their own classes, move all their windows, and are products of each group, even of one channel."""
    shape, window = ",".join(map(str, size)), ",".join("1" * len(size))
    taps = ",".join("3" * len(size))
    attributes = f"dilations={window};kernel_shape={taps};pads={window},{window};strides={window}"
    for group, depth, kind in [(8, 1, "depthwise"), (2, 4, "grouped"), (1, 8, "dense")]:
        operator = f"Conv(x0,c:float32[8,{depth},{taps}]){{{attributes};group={group}}}"
        layer = described(f"k1|x0:float32[1,8,{shape}]|{operator}|->t0:float32[1,8,{shape}]")
        assert code_of(layer.operator) == f"mac/conv/{kind}{axes}"
        assert not layer.is_channelwise
        maps, windows = 2 * 8 * 60 * 4, (3 ** len(size) * 8 * 60 + 1024 * group) * 4
        assert layer.moved_bytes == maps + windows + layer.weight_bytes


@pytest.mark.parametrize(("size", "kind"), [("60", "pool-1d"), ("6,10", "pool"), ("4,6,10", "pool-3d")])
def test_pools_of_other_than_two_axes_have_their_own_classes(size: str, kind: str) -> None:
    """Their channels are the second axis, whatever the number of the others."""
    sizes = [int(one) for one in size.split(",")]
    halved, written = (",".join("2" for _ in sizes), ",".join(str(one // 2) for one in sizes))
    pool = f"MaxPool(x0){{kernel_shape={halved};strides={halved}}}"
    layer = described(f"k1|x0:float32[1,8,{size}]|{pool}|->t0:float32[1,8,{written}]")
    assert (layer.operator, layer.out_channels) == (f"move/window/{kind}/MaxPool", 8)


def test_products_by_hand() -> None:
    """A constant right side counts as weights, an activation as an operand; `transB` puts the columns first."""
    read = "x0:float32[1,197,192]"
    dense = described(f"k1|{read}|MatMul(x0,c:float32[192,768]){{}}|Add(c:float32[768],t0){{}}|->t1:float32[1,197,768]")
    assert (dense.operator, dense.macs) == ("mac/product/weights/plain", 197 * 192 * 768)
    assert (dense.weight_elements, dense.extra_operands) == (192 * 768, 0)
    gemm = described(
        "k1|x0:float32[4,512]|Gemm(x0,c:float32[10,512],c:float32[10]){alpha=1;beta=1;transA=0;transB=1}"
        "|Tanh(t0){}|->t1:float32[4,10]"
    )
    assert (gemm.operator, gemm.macs) == ("mac/product/weights/Tanh", 4 * 512 * 10)
    heads = described(
        "k1|x0:float32[1,3,197,64]|x1:float32[1,3,64,197]|Mul(c:float32[],x0){}|MatMul(t0,x1){}|->t1:float32[1,3,197,197]"
    )
    assert (heads.operator, heads.macs, heads.groups) == ("mac/product/activations/plain", 3 * 197 * 64 * 197, 3)
    assert (heads.weight_elements, heads.extra_operands) == (0, 1)


@pytest.mark.parametrize(
    ("operator", "inputs", "kind", "macs"),
    [
        ("Attention(x0,c:float32[64,192],c:float32[192]){num_heads=4}", 1, "weights", 49 * 64 * 192 + 2 * 49 * 49 * 64),
        ("MultiHeadAttention(x0,x1,x2){num_heads=4}", 3, "activations", 2 * 49 * 49 * 64),
    ],
)
def test_attention_is_one_product_of_all_its_multiply_adds(operator: str, inputs: int, kind: str, macs: int) -> None:
    """Its class is its own below that of products."""
    read = "|".join(f"x{at}:float32[1,49,64]" for at in range(inputs))
    found = described(f"k1|{read}|{operator}|->t0:float32[1,49,64]")
    assert (found.operator, found.macs) == (f"mac/product/{kind}/{operator.partition('(')[0]}", macs)


_ROWS, _DENSE = "float32[1,49,64]", "c:float32[64,96]"
_CONV = f"x0,c:float32[8,8,3,3],c:float32[8]){{{window(3, 1)}"


@pytest.mark.parametrize(
    ("runtime", "standard", "read", "written"),
    [
        ("FastGelu(x0){}", "Gelu(x0){}", _ROWS, _ROWS),
        ("QuickGelu(x0){alpha=1.702}", "Sigmoid(x0){}|Mul(t0,x0){}", _ROWS, _ROWS),
        ("SimplifiedLayerNormalization(x0,c:float32[64]){}", "RMSNormalization(x0,c:float32[64]){}", _ROWS, _ROWS),
        (
            "SkipLayerNormalization(x0,x1,c:float32[64],c:float32[64]){}",
            "Add(x0,x1){}|LayerNormalization(t0,c:float32[64],c:float32[64]){}",
            _ROWS,
            _ROWS,
        ),
        (f"FusedMatMul(x0,{_DENSE}){{alpha=0.5}}", f"MatMul(x0,{_DENSE}){{}}", _ROWS, "float32[1,49,96]"),
        (
            f"FusedGemm(x0,{_DENSE}){{activation=Relu}}",
            f"Gemm(x0,{_DENSE}){{}}|Relu(t0){{}}",
            "float32[49,64]",
            "float32[49,96]",
        ),
        (
            f"FusedConv({_CONV};activation=Relu}}",
            f"Conv({_CONV}}}|Relu(t0){{}}",
            "float32[1,8,9,9]",
            "float32[1,8,9,9]",
        ),
        (
            "RotaryEmbedding(x0,c:float32[49,32],c:float32[49,32]){num_heads=1}",
            "Mul(x0,c:float32[1,49,1]){}|Add(t0,c:float32[1,49,1]){}",
            _ROWS,
            _ROWS,
        ),
        (
            "ReverseSequence(x0,c:int64[1]){batch_axis=0;time_axis=1}",
            "GatherND(x0,c:int64[1,49,2]){}",
            _ROWS,
            _ROWS,
        ),
        (
            "ai.onnx.ml.ArrayFeatureExtractor(x0,c:int64[3]){}",
            "Gather(x0,c:int64[3]){axis=2}",
            _ROWS,
            "float32[1,49,3]",
        ),
        ("Einsum(x0){equation=abc->acb}", "Transpose(x0){perm=0,2,1}", _ROWS, "float32[1,64,49]"),
        ("Einsum(x0){equation=a b c -> ac}", "ReduceSum(x0){axes=1}", _ROWS, "float32[1,64]"),
        ("Einsum(x0){equation=cba}", "Transpose(x0){perm=2,1,0}", _ROWS, "float32[64,49,1]"),
    ],
)
def test_operators_of_the_runtime_are_the_standard_ones_that_they_compute(
    runtime: str, standard: str, read: str, written: str
) -> None:
    """What no space has, as ONNX Runtime's own operators, has the features of operators that compute the same."""
    inputs = f"x0:{read}" + (f"|x1:{read}" if "x1" in runtime else "")
    last = standard.count("|")
    found = described(f"k1|{inputs}|{runtime}|->t0:{written}")
    assert found == described(f"k1|{inputs}|{standard}|->t{last}:{written}")


@pytest.mark.parametrize(("ratio", "samples"), [(0, 2), (1, 1), (3, 3)])
def test_regions_read_several_samples_for_each_pixel(ratio: int, samples: int) -> None:
    """They are as many pixels of a GridSample, however large the map is from which they are read."""
    regions = f"RoiAlign(x0,c:float32[5,4],c:int64[5]){{sampling_ratio={ratio}}}|->t0:float32[5,8,7,7]"
    found = described(f"k1|x0:float32[1,8,90,90]|{regions}")
    assert (found.operator, found.macs) == ("move/map/GridSample/GridSample", 5 * 8 * 49 * samples**2)


@pytest.mark.parametrize(
    ("equation", "operands", "sizes"),
    [
        ("bhid,bhjd->bhij", "2,8,49,64 2,8,50,64", (16, 49, 64, 50)),
        ("btd,dhe->bhte", "2,49,512 512,8,64", (1, 98, 512, 512)),
        ("...ij,...jk->...ik", "4,6,64,48 6,48,80", (6, 256, 48, 80)),
        ("bchw,bc->bhw", "4,128,7,9 4,128", (4, 63, 128, 1)),
        ("ij,jk,kl->il", "64,128 128,32 32,96", (1, 64, 128 + 96, 32)),
        ("bihd,hde,bjhe", "1,9,4,8 4,8,8 1,7,4,8", (4, 9, 8 + 7, 8)),
    ],
)
def test_an_einsum_is_a_product(equation: str, operands: str, sizes: tuple[int, int, int, int]) -> None:
    """Its labels are batch, rows, depth and columns; one with a diagonal has no product.

    Several products, one after the other, count as the largest one, with the sums of all.
    """
    shapes = operands.split(" ")
    arrays = [np.zeros([int(size) for size in one.split(",")]) for one in shapes]
    written = ",".join(map(str, np.einsum(equation, *arrays).shape))
    inputs = "|".join(f"x{place}:float32[{shape}]" for place, shape in enumerate(shapes))
    reads = ",".join(f"x{place}" for place in range(len(shapes)))
    found = described(f"k1|{inputs}|Einsum({reads}){{equation={equation}}}|->t0:float32[{written}]")
    depth = found.in_channels // found.groups
    assert (found.groups, found.rows, depth, found.columns) == sizes
    assert found.operator == "mac/product/activations/Einsum"
    diagonal = described("k1|x0:float32[3,3]|x1:float32[3]|Einsum(x0,x1){equation=ii,i->i}|->t0:float32[3]")
    assert diagonal.operator.startswith("move/")


@pytest.mark.parametrize(
    ("left", "right", "products", "rows"),
    [
        ("24,64", "3,64,10", 3, 24),  # a constant of a spectrum times each map
        ("1,288,10,16,64", "1,288,1,64,10", 2880, 16),  # capsules
        ("5,7,16,64", "1,64,10", 1, 5 * 7 * 16),  # all rows in one product
        ("64", "3,64,10", 3, 1),
    ],
)
def test_products_repeat_matrices_as_numpy_does(left: str, right: str, products: int, rows: int) -> None:
    """A matrix that is multiplied by several others has a product with each."""
    written = ",".join(map(str, np.matmul(*(np.zeros([*map(int, one.split(","))]) for one in (left, right))).shape))
    found = described(f"k1|x0:float32[{left}]|x1:float32[{right}]|MatMul(x0,x1){{}}|->t0:float32[{written}]")
    assert (found.groups, found.rows, found.macs) == (products, rows, products * rows * 64 * 10)


def test_narrow_groups_copy_line_by_line() -> None:
    """A map of many short lines takes longer to copy than one of few long ones."""
    copied = []
    for size in ("64,4", "4,64"):
        operator = f"Conv(x0,c:float32[8,4,3,3]){{{window(3, 1, 1, 2)}}}"
        copied.append(described(f"k1|x0:float32[1,8,{size}]|{operator}|->t0:float32[1,8,{size}]").unfolded_bytes)
    assert copied[0] - copied[1] == 60 * 16 * 9 * 8 * 4


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_recurrent_layers_by_hand(op: str, gates: int) -> None:
    """A recurrent layer is a product of all gates for each step and direction, of the inputs and the state.

    Each step reads the weights of the state, and has a start of its own.
    """
    weights = f"c:float32[2,{gates * 64},32],c:float32[2,{gates * 64},64],c:float32[2,{2 * gates * 64}]"
    layer = described(f"k1|x0:float32[9,1,32]|{op}(x0,{weights}){{hidden_size=64}}|->t0:float32[9,2,1,64]")
    assert (layer.operator, layer.rows, layer.groups) == (f"mac/recurrent/steps/{op}", 9, 2)
    assert layer.macs == 2 * 9 * gates * 64 * (32 + 64)
    assert layer.weight_elements == 2 * gates * 64 * (32 + 9 * 64)
    assert layer.parts == 2 * 9


def test_the_batch_of_a_recurrent_layer_may_be_its_first_axis() -> None:
    """The attribute layout only states which axis has the steps."""
    weights = "c:float32[1,64,8],c:float32[1,64,16],c:float32[1,128]"
    first, second = (
        described(f"k1|x0:float32[{read}]|LSTM(x0,{weights}){{hidden_size=16;layout={at}}}|->t0:float32[{written}]")
        for at, read, written in ((1, "2,9,8", "2,9,1,16"), (0, "9,2,8", "9,1,2,16"))
    )
    assert first == second
    assert first.weight_elements == 64 * (8 + 9 * 16)


def test_a_global_pool_may_return_a_matrix() -> None:
    """The batch of a flattened result is not counted twice."""
    text = "k1|x0:float32[2,8,6,6]|GlobalAveragePool(x0){}|Flatten(t0){axis=1}|->t1:float32[2,8]"
    assert (described(text).macs, described(text).moved_bytes) == (576, 4 * (576 + 16))


def test_recurrent_layers_of_other_types_have_a_class_of_their_own() -> None:
    """Products of half precision run other code."""
    weights = "c:float16[1,32,4],c:float16[1,32,8],c:float16[1,64]"
    layer = described(f"k1|x0:float16[9,1,4]|LSTM(x0,{weights}){{hidden_size=8}}|->t0:float16[9,1,1,8]")
    assert (layer.operator, layer.element_bytes) == ("mac/recurrent/steps-float16/LSTM", 2)


@pytest.mark.parametrize(
    ("channels", "group", "kind"),
    [
        (64, 4, "grouped"),
        (64, 16, "grouped-narrow"),
        (36, 1, "dense"),
        (34, 1, "dense-narrow"),
        (14, 1, "dense"),
        (36, 36, "depthwise"),
        (34, 34, "multiplied-narrow"),
    ],
)
def test_channels_that_fill_no_blocks_copy_windows(channels: int, group: int, kind: str) -> None:
    """Only convolutions of narrow groups, or channels that are no words, count the windows that a runtime copies."""
    layer = described(
        f"k1|x0:float32[1,{channels},6,6]|Conv(x0,c:float32[{channels},{channels // group},3,3])"
        f"{{{window(3, 1, 1, group)}}}|->t0:float32[1,{channels},6,6]"
    )
    assert code_of(layer.operator) == f"mac/conv/{kind}"
    assert (layer.unfolded_bytes > 36 * 9 * channels * 4) is ("narrow" in kind)


def test_joined_maps_in_front_of_a_convolution() -> None:
    """A convolution of a concatenation counts the work of all its channels."""
    layer = described(
        "k1|x0:float32[1,8,6,6]|x1:float32[1,24,6,6]|Concat(x0,x1){axis=1}"
        f"|Conv(t0,c:float32[16,32,1,1]){{{window(1, 0)}}}|Relu(t1){{}}|->t2:float32[1,16,6,6]"
    )
    assert layer.operator == "mac/conv/dense/Relu/Concat"
    assert layer.macs == 36 * 16 * 32


def test_a_convolution_behind_a_pad_reads_the_padded_map() -> None:
    """The sizes of a padded map follow from the constant padding, and not from one of other axes."""
    text = "k1|x0:float32[1,8,6,6]|Pad(x0,c:int64[8]={}){{mode=constant}}|Conv(t0,c:float32[16,8,3,3]){{{}}}"
    text += "|->t1:float32[1,16,6,6]"
    layer = described(text.format("0,0,1,1,0,0,1,1", window(3, 0)))
    assert (layer.operator, layer.in_size, layer.macs) == ("mac/conv/dense/plain/Pad", (8, 8), 36 * 16 * 8 * 9)
    assert described(text.replace("]={}", "]={},_").format("0,0,1,1,0,0,1,1", window(3, 0))) == layer
    assert described(text.format("0,1,1", window(3, 0))).operator.startswith("move/")


def test_feature_maps_are_counted() -> None:
    """The context of an entry says how many of a layer's inputs are feature maps."""
    text = "k1|x0:float32[1,8,6,6]|x1:float32[1,8,6,6]|Add(x0,x1){}|->t0:float32[1,8,6,6]"
    contexts = ("chip,outside", "map,chip@0123abcd", "map,map", "")
    described = [describe(text, context) for context in contexts]
    assert [layer.maps if layer else None for layer in described] == [0, 1, 2, 0]


def test_pooling_has_a_window() -> None:
    """Pooling has the kernel and stride of its window."""
    layer = described(
        "k1|x0:float32[1,64,112,112]|MaxPool(x0){ceil_mode=0;dilations=1,1;kernel_shape=3,3;pads=1,1,1,1;strides=2,2}"
        "|->t0:float32[1,64,56,56]"
    )
    assert (layer.operator, layer.kernel, layer.stride) == ("move/window/pool/MaxPool", (3, 3), (2, 2))
    assert (layer.in_size, layer.out_size) == ((112, 112), (56, 56))


def test_a_window_larger_than_its_map_is_clipped() -> None:
    """Of a window of 112 x 112 on a map of 7 x 7, only the map is read."""
    layer = described(
        "k1|x0:float32[1,64,7,7]|AveragePool(x0){ceil_mode=0;count_include_pad=0;dilations=1,1;kernel_shape=112,112;"
        "pads=56,56,56,56;strides=1,1}|->t0:float32[1,64,8,8]"
    )
    assert layer.kernel == (7, 7)


@pytest.mark.parametrize("name", ["mobilenetv2", "shufflenet", "bert_mini"])
def test_every_layer_of_a_network_is_described(name: str) -> None:
    """Every layer of a network has features, and every product is a loop nest."""
    (network,) = load_networks([f"builtin:{name}"], None)
    layers = [described(layer.key.text) for layer in cut(network, ())]
    assert len(layers) == len(network.nodes)
    products = sum(layer.op in ("Conv", "Gemm", "MatMul") for layer in cut(network, ()))
    assert sum(layer.operator.startswith("mac/") for layer in layers) == products


@pytest.mark.parametrize("table", ["c:float32[99,64]", "x1"])
def test_a_product_of_picked_rows_has_their_shape(table: str) -> None:
    """A product behind a Gather multiplies the rows of the table that are picked, not the indices."""
    product = f"Gather({table},x0){{axis=0}}|MatMul(t0,c:float32[64,10]){{}}|->t1:float32[3,10]"
    found = described(f"k1|x0:int64[3]|x1:float32[99,64]|{product}")
    assert (code_of(found.operator), found.macs, found.weight_elements) == ("mac/product/weights", 1920, 640)


@pytest.mark.parametrize(
    "before", ["Transpose(c:float32[10,64]?){perm=1,0}", "Reshape(c:float32[640]?,c:int64[2]?=64,10){}"]
)
def test_weights_that_each_inference_moves_are_weights(before: str) -> None:
    """A product whose replaceable weights go through a Transpose or Reshape is that of constant weights of its size."""
    moved = described(f"k1|x0:float32[3,64]|{before}|MatMul(x0,t0){{}}|->t1:float32[3,10]")
    plain = described("k1|x0:float32[3,64]|MatMul(x0,c:float32[64,10]){}|->t0:float32[3,10]")
    assert code_of(moved.operator) == code_of(plain.operator) == "mac/product/weights"
    assert (moved.macs, moved.weight_elements) == (plain.macs, plain.weight_elements) == (1920, 640)
