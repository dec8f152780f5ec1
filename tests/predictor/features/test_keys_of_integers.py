"""Features of layers on integers, from their keys."""

import pytest
from layer_keys import described, window

from harness.predictor.features.layer_features import code_of, moves_bytes

SCALE = "c:float32[],c:uint8[]"


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        (
            "x0:uint8[1,8,6,6]|ConvInteger(x0,c:int8[8,8,3,3]){" + window(3, 1) + "}|->t0:int32[1,8,6,6]",
            "mac/conv/dense-integer/plain",
        ),
        (
            f"x0:uint8[1,8,6,6]|DequantizeLinear(x0,{SCALE}){{axis=1}}|DequantizeLinear(c:int8[16,8,3,3],c:float32[],"
            f"c:int8[]){{axis=1}}|Conv(t0,t1){{{window(3, 1)}}}|Relu(t2){{}}"
            f"|QuantizeLinear(t3,{SCALE}){{axis=1}}|->t4:uint8[1,16,6,6]",
            "mac/conv/dense-int8/Relu",
        ),
        (
            f"x0:uint8[4,8]|x1:uint8[4,8]|DequantizeLinear(x0,{SCALE}){{axis=1}}|DequantizeLinear(x1,{SCALE})"
            f"{{axis=1}}|Add(t0,t1){{}}|QuantizeLinear(t2,{SCALE}){{axis=1}}|->t3:uint8[4,8]",
            "move/map/simple-int8/Add-int8",
        ),
        (f"x0:float32[4,8]|QuantizeLinear(x0,{SCALE}){{axis=1}}|->t0:uint8[4,8]", "move/map/quantised/QuantizeLinear"),
        ("x0:float16[4,8]|MatMul(x0,c:float16[8,8]){}|->t0:float16[4,8]", "mac/product/weights-float16/plain"),
        (
            "x0:float32[1,8,6,6]|DequantizeLinear(c:int8[16,8,3,3],c:float32[],c:int8[]){axis=1}|Conv(x0,t0){"
            + window(3, 1)
            + "}|Relu(t1){}|->t2:float32[1,16,6,6]",
            "mac/conv/dense-dequantised/Relu",
        ),
        (
            "x0:float32[4,8]|DequantizeLinear(c:int8[8,8],c:float32[]){axis=1}|MatMul(x0,t0){}|->t1:float32[4,8]",
            "mac/product/weights-dequantised/plain",
        ),
        (
            "x0:uint16[4,8]|com.microsoft.DequantizeLinear(x0,c:float32[],c:uint16[]){axis=1}|->t0:float32[4,8]",
            "move/map/quantised-int8/DequantizeLinear-int8",
        ),
        ("x0:uint8[4,8]|MatMulInteger(x0,c:uint8[8,8]){}|->t0:int32[4,8]", "mac/product/weights-unsigned-int8/plain"),
        ("x0:uint8[4,8]|MatMulInteger(x0,c:int8[8,8]){}|->t0:int32[4,8]", "mac/product/weights-int8/plain"),
        ("x0:int64[4,8]|Add(x0,c:int64[8]){}|->t0:int64[4,8]", "move/map/simple/Affine-int64"),
        ("x0:float16[4,8]|Sqrt(x0){}|->t0:float16[4,8]", "move/map/division-float16/Sqrt-float16"),
        ("x0:int64[4,8]|Reshape(x0,c:int64[1]=32){}|->t0:int64[32]", "move/view/any/Reshape"),
    ],
)
def test_other_element_types_are_other_code(text: str, operator: str) -> None:
    """An operator on another type than float32 has a class of its own; views and copies move bytes of any type."""
    assert described(f"k1|{text}").operator == operator


def quantised_convolution(op: str, data: str, weight: str, inputs: int, outputs: int) -> str:
    """Return the key of a 3x3 convolution of a map of 6x6 pixels on integers of these types."""
    read, weights = f"x0:{data}[1,{inputs},6,6]", f"c:{weight}[{outputs},{inputs},3,3]"
    if op == "ConvInteger":
        return f"k1|{read}|ConvInteger(x0,{weights}){{{window(3, 1)}}}|->t0:int32[1,{outputs},6,6]"
    scales = f"c:float32[],c:{data}[]"
    if op == "QLinearConv":
        operator = f"QLinearConv(x0,{scales},{weights},c:float32[],c:{weight}[],{scales}){{{window(3, 1)}}}"
        return f"k1|{read}|{operator}|->t0:{data}[1,{outputs},6,6]"
    return (
        f"k1|{read}|DequantizeLinear(x0,{scales}){{axis=1}}|DequantizeLinear({weights},c:float32[],c:{weight}[]){{axis=1}}"
        f"|Conv(t0,t1){{{window(3, 1)}}}|QuantizeLinear(t2,{scales}){{axis=1}}|->t3:{data}[1,{outputs},6,6]"
    )


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (("Conv", "uint8", "int8", 8, 16), "dense-int8"),
        (("Conv", "int8", "int8", 8, 16), "dense-int8"),
        (("QLinearConv", "uint8", "int8", 8, 16), "dense-int8"),
        (("Conv", "uint8", "int8", 3, 16), "dense-unfolded-int8"),
        (("Conv", "uint8", "int8", 8, 8), "dense-unfolded-int8"),
        (("Conv", "uint8", "uint8", 8, 16), "dense-unfolded-unsigned-int8"),
        (("QLinearConv", "int8", "int8", 8, 16), "dense-signed"),
        (("QLinearConv", "int8", "int8", 3, 16), "dense-unfolded-signed"),
        (("ConvInteger", "uint8", "int8", 8, 16), "dense-integer"),
        (("ConvInteger", "uint8", "uint8", 8, 16), "dense-integer-unsigned"),
    ],
)
def test_convolutions_on_bytes_are_classes_by_their_kernels(layer: tuple[str, str, str, int, int], kind: str) -> None:
    """Types and channels decide whether a convolution on bytes reads windows in place, and which product it runs."""
    found = described(quantised_convolution(*layer))
    assert code_of(found.operator) == f"mac/conv/{kind}"
    assert moves_bytes(f"mac/conv/{kind}")
    windows = 36 * 9 * found.in_channels
    in_place = kind in ("dense-int8", "dense-signed")
    assert found.unfolded_bytes == 0 if in_place else found.unfolded_bytes >= windows
    assert found.out_bytes == 36 * found.out_channels * (4 if "integer" in kind else 1)
    assert found.moved_bytes == found.in_bytes + found.weight_bytes + found.unfolded_bytes + found.out_bytes


def test_groups_on_bytes_are_copied_tap_by_tap() -> None:
    """The windows of more groups have as many bytes and more jumps."""
    ends = "c:float32[],c:uint8[]"
    operators = [
        f"QLinearConv(x0,{ends},c:int8[64,{64 // each},3,3],c:float32[],c:int8[],{ends}){{{window(3, 1, group=each)}}}"
        for each in (4, 32)
    ]
    layers = [described(f"k1|x0:uint8[1,64,6,6]|{one}|->t0:uint8[1,64,6,6]") for one in operators]
    few, many = (layer.unfolded_bytes for layer in layers)
    assert 36 * 9 * 64 < few < many


def dequantised(op: str, reads: list[str], attributes: str, written: str) -> str:
    """Return the key of a layer that dequantises what it reads, runs an operator on floats and quantises its result."""
    inputs = [f"{name}:{kind}" for name, kind in (read.split(":") for read in reads) if name != "c"]
    names = [read if read.startswith("c:") else read.split(":")[0] for read in reads]
    converted = [f"DequantizeLinear({name},{SCALE}){{axis=1}}" for name in names]
    operator = f"{op}({','.join(f't{at}' for at in range(len(names)))}){{{attributes}}}"
    end = f"QuantizeLinear(t{len(names)},{SCALE}){{axis=1}}|->t{len(names) + 1}:uint8[{written}]"
    return "|".join(["k1", *inputs, *converted, operator, end])


def on_integers(op: str, reads: list[str], attributes: str, written: str) -> str:
    """Return the key of an operator of a runtime on integers, with the scales and zero points of what it reads."""
    inputs = [f"{name}:{kind}" for name, kind in (read.split(":") for read in reads) if name != "c"]
    names = [f"{read if read.startswith('c:') else read.split(':')[0]},{SCALE}" for read in reads]
    arguments = ",".join([SCALE, *names] if op == "Concat" else [*names, SCALE])
    operator = f"com.microsoft.QLinear{op}({arguments}){{{attributes}}}"
    return "|".join(["k1", *inputs, operator, f"->t0:uint8[{written}]"])


MAP, ONE_EACH, HALVED = "x0:uint8[1,8,6,6]", "uint8[1,8,1,1]", "kernel_shape=2,2;strides=2,2"


@pytest.mark.parametrize(
    ("layer", "path", "run"),
    [
        (("Add", [MAP, "x1:uint8[1,8,6,6]"], "", "1,8,6,6"), "move/map/simple-int8/Add-int8", 0),
        (("Mul", [MAP, f"x1:{ONE_EACH}"], "", "1,8,6,6"), "move/map/simple-int8/Mul-int8", 8),
        (("Mul", [MAP, f"c:{ONE_EACH}"], "", "1,8,6,6"), "move/map/simple-int8/Affine-int8", 8),
        (("Mul", [MAP, "c:uint8[8,1,1]"], "", "1,8,6,6"), "move/map/simple-int8/Affine-int8", 8),
        (("Mul", [MAP, "c:uint8[1,8,6,6]"], "", "1,8,6,6"), "move/map/simple-int8/Affine-int8", 0),
        (("Concat", [MAP, "x1:uint8[1,4,6,6]"], "axis=1", "1,12,6,6"), "move/copy/rows/Concat-int8", 4),
        (("GlobalAveragePool", [MAP], "", "1,8,1,1"), "move/reduce/axes-int8/GlobalAveragePool-int8", 0),
        (("AveragePool", [MAP], HALVED, "1,8,3,3"), "move/window/average-int8/AveragePool-int8", 0),
        (("ReduceMean", [MAP], "axes=3", "1,8,6"), "move/reduce/axes-int8/ReduceMean-int8", 6),
        (("Sigmoid", [MAP], "", "1,8,6,6"), "move/map/curve-int8/Sigmoid-int8", 0),
    ],
)
def test_operators_on_integers_are_the_layers_between_conversions(
    layer: tuple[str, list[str], str, str], path: str, run: int
) -> None:
    """An operator of a runtime on integers has all features of its float operator between conversions."""
    found = described(on_integers(*layer))
    assert (found.operator, found.run) == (path, run)
    assert found == described(dequantised(*layer))


def test_a_choice_on_integers_reads_its_constant() -> None:
    """QLinearWhere reads its condition, its map and a constant map, and no scales."""
    operator = f"com.microsoft.QLinearWhere(x0,x1,{SCALE},c:uint8[1,8,6,6],{SCALE},{SCALE}){{}}"
    layer = described(f"k1|x0:bool[1,8,6,6]|x1:uint8[1,8,6,6]|{operator}|->t0:uint8[1,8,6,6]")
    assert (layer.extra_operands, layer.weight_elements) == (1, 288)


def test_an_operator_on_integers_behind_a_convolution_is_its_float_operator() -> None:
    """A residual sum on integers behind a QLinearConv is a further operand, as it is between conversions."""
    convolution, written = quantised_convolution("QLinearConv", "uint8", "int8", 8, 16).rsplit("|", 1)
    front, operator = convolution.rsplit("|", 1)
    layer = described(
        f"{front}|x1:uint8[1,16,6,6]|{operator}|com.microsoft.QLinearAdd(t0,{SCALE},x1,{SCALE},{SCALE}){{}}"
        f"|{written.replace('t0', 't1')}"
    )
    assert (layer.operator, layer.extra_operands) == ("mac/conv/dense-int8/plain", 1)


def test_a_product_on_integers_has_its_weights() -> None:
    """QGemm is a product with weights of bytes."""
    weights = f"c:int8[10,64],c:float32[],c:int8[],c:int32[10],{SCALE}"
    layer = described(f"k1|x0:uint8[1,64]|com.microsoft.QGemm(x0,{SCALE},{weights}){{transB=1}}|->t0:uint8[1,10]")
    assert (layer.operator, layer.macs) == ("mac/product/weights-int8/plain", 640)


@pytest.mark.parametrize(
    ("kind", "factor", "run"),
    [
        ("float32", "float32[1,8,1,1]", 36),
        ("float32", "uint8[1,8,1,1]", 36),
        ("uint8", "uint8[1,8,1,1]", 8),
        ("uint8", "float32[1,8,1,1]", 8),
        ("int8", "int8[8,1,1]", 8),
    ],
)
def test_channels_of_byte_maps_lie_together(kind: str, factor: str, run: int) -> None:
    """A factor for each channel is combined with runs of pixels of a float map, and with runs of channels of bytes."""
    layer = described(f"k1|x0:{kind}[1,8,6,6]|Mul(x0,c:{factor}){{}}|->t0:{kind}[1,8,6,6]")
    assert layer.run == run


@pytest.mark.parametrize(("zero_point", "item"), [("", 1), (",c:uint8[]", 1), (",c:int8[]", 1), (",c:uint16[]", 2)])
def test_quantised_tensors_have_the_type_of_the_zero_point(zero_point: str, item: int) -> None:
    """A convolution behind a QuantizeLinear reads integers of the zero point's type, of one byte if there is none."""
    layer = described(
        f"k1|x0:float32[1,8,6,6]|QuantizeLinear(x0,c:float32[]{zero_point}){{axis=1}}"
        f"|DequantizeLinear(t0,c:float32[]{zero_point}){{axis=1}}|Conv(t1,c:float32[16,8,3,3])"
        f"{{{window(3, 1)}}}|->t2:float32[1,16,6,6]"
    )
    assert layer.element_bytes == item
    assert layer.operator == f"mac/conv/dense-rounded-int{8 * item}/plain"
