"""The features of layers that move, reduce and normalise elements, from their keys."""

import math

import pytest
from layer_keys import described

from harness.predictor.features.key_features import describe
from harness.predictor.features.layer_arrays import layer_arrays


def test_a_column_times_a_row_has_the_runs_of_the_row() -> None:
    """Where both operands repeat, an operand changes with every element of the last axis of the result."""
    read = "x0:float32[1,12,128,1]|x1:float32[128,8]"
    assert described(f"k1|{read}|Mul(x0,x1){{}}|->t0:float32[1,12,128,8]").run == 8


@pytest.mark.parametrize(
    ("read", "written", "run"), [("64,1", "64,12", 12), ("64,1,8", "64,12,8", 96), ("1", "9,4", 36)]
)
def test_what_is_repeated_is_written_at_once(read: str, written: str, run: int) -> None:
    """An Expand starts again for each row of what it repeats."""
    sizes = f"c:int64[2]={written}"
    assert described(f"k1|x0:float32[{read}]|Expand(x0,{sizes}){{}}|->t0:float32[{written}]").run == run


def test_normalised_rows_have_their_length() -> None:
    """A normalisation jumps after each row."""
    read, weights = "x0:float32[1,9,32]", "c:float32[32],c:float32[32]"
    assert described(f"k1|{read}|LayerNormalization(x0,{weights}){{axis=2}}|->t0:{read[3:]}").run == 32


@pytest.mark.parametrize(
    ("op", "axis", "rows", "length", "run"),
    [("Softmax", 2, 160, 9, 5), ("Softmax", 3, 72, 20, 10), ("Softmax-12", 1, 2, 720, 720)],
)
def test_a_softmax_has_rows_of_its_axis(op: str, axis: int, rows: int, length: int, run: int) -> None:
    """A Softmax along any axis combines as many values as this axis has, or all axes from it in earlier versions.

    A row with a part of a vector counts as two.
    """
    found = described(f"k1|x0:float32[2,4,9,20]|{op}(x0){{axis={axis}}}|->t0:float32[2,4,9,20]")
    assert (found.rows, found.out_channels, found.run) == (rows, length, run)


@pytest.mark.parametrize("shape", ["1,8,36", "1,8,6,6"])
def test_planes_are_normalised_as_rows(shape: str) -> None:
    """An InstanceNormalization of eight channels normalises eight rows, with any number of axes."""
    operator = "InstanceNormalization(x0,c:float32[8],c:float32[8]){}"
    layer = described(f"k1|x0:float32[{shape}]|{operator}|->t0:float32[{shape}]")
    assert (layer.operator, layer.rows, layer.run) == ("move/norm/moments/InstanceNormalization", 8, 36)


def test_a_reduction_has_the_same_features_with_and_without_the_axes_that_it_reduces() -> None:
    """The attribute keepdims changes no work."""
    whole, less = (f"k1|x0:float32[1,64,64]|ReduceMean(x0){{axes=2}}|->t0:float32[1,64{one}]" for one in (",1", ""))
    assert described(whole) == described(less)


@pytest.mark.parametrize(
    ("axes", "whole", "less"),
    [("0", "1,8,6,6", "8,6,6"), ("0,1", "1,1,6,6", "6,6"), ("2,3", "2,8,1,1", "2,8"), ("0,2,3", "1,8,1,1", "8")],
)
def test_a_reduction_reads_each_element_once_and_writes_each_result_once(axes: str, whole: str, less: str) -> None:
    """Also over the batch, a reduction has one operation for each element that it reads."""
    for shape in (whole, less):
        layer = described(f"k1|x0:float32[2,8,6,6]|ReduceMean(x0){{axes={axes}}}|->t0:float32[{shape}]")
        results = math.prod(map(int, shape.split(",")))
        assert (layer.macs, layer.moved_bytes) == (576, 4 * (576 + results))


@pytest.mark.parametrize(
    ("shape", "axes", "run"),
    [
        ("1,64,64,1", "2", 64),
        ("1,64,64", "2", 64),
        ("2,8,6,6", "2,3", 36),
        ("2,8,36", "2", 36),
        ("2,8,6,6", "3", 6),
        ("2,8,6,6", "1", 36),
        ("2,8,36", "1", 36),
        ("2,8,6,6", "0,3", 6),
        ("2,8,6,6", "0,1,2,3", 576),
        ("1,1", "0", 1),
    ],
)
def test_a_reduction_runs_over_axes_that_lie_together(shape: str, axes: str, run: int) -> None:
    """Axes of one element, and axes that could be one, change no run of a reduction: also where rows are added up."""
    sizes = list(enumerate(shape.split(",")))
    result = ",".join("1" if str(axis) in axes.split(",") else size for axis, size in sizes)
    layer = described(f"k1|x0:float32[{shape}]|ReduceMean(x0){{axes={axes}}}|->t0:float32[{result}]")
    assert layer.run == run


@pytest.mark.parametrize(
    ("operator", "run"),
    [
        ("Gather(x0,c:int64[5]){axis=1}", 8),
        ("GatherND(x0,c:int64[5,1]){batch_dims=0}", 24),
        ("GatherND(x0,c:int64[5,2]){batch_dims=0}", 8),
        ("GatherND(x0,c:int64[9,1]){batch_dims=1}", 8),
        ("GatherElements(x0,c:int64[9,3,4]){axis=2}", 1),
        ("Expand(x0,c:int64[3]=9,3,8){}|GatherElements(t0,c:int64[9,3,4]){axis=2}", 1),
    ],
)
def test_what_an_index_picks_lies_together(operator: str, run: int) -> None:
    """Operators that pick by indices have runs of the elements that one index picks."""
    assert described(f"k1|x0:float32[9,3,8]|{operator}|->t0:float32[5,24]").run == run


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("x0:float32[2,9]|x1:float32[6,9]|x2:float32[1,9]|Concat(x0,x1,x2){axis=0}|->t0:float32[9,9]", 3),
        ("x0:float32[6,8]|Split(x0){axis=0}|->t0:float32[2,8],t0.1:float32[4,8]", 2),
        ("x0:float32[6,8]|x1:float32[6,8]|Add(x0,x1){}|->t0:float32[6,8]", 1),
    ],
)
def test_tensors_that_are_joined_or_divided_are_counted(text: str, parts: int) -> None:
    """Each input of a Concat and each result of a Split is a part."""
    assert described(f"k1|{text}").parts == parts


@pytest.mark.parametrize(
    ("shape", "order", "is_paged"),
    [
        ((64, 4096), "1,0", True),  # reads every 4096th element
        ((1024, 48), "1,0", True),  # writes them so
        ((96, 197), "1,0", False),
        ((1, 24, 32, 32), "0,2,3,1", True),
        ((8, 128, 64), "0,2,1", False),
        ((1, 64, 1024, 8), "0,2,1,3", False),  # moves runs of 8 elements
    ],
)
def test_transpositions_across_whole_pages(shape: tuple[int, ...], order: str, is_paged: bool) -> None:
    """A transposition is paged if it reads or writes single elements a multiple of 4096 bytes apart."""
    result = [shape[int(axis)] for axis in order.split(",")]
    kinds = ["float32[" + ",".join(map(str, sizes)) + "]" for sizes in (shape, result)]
    assert described(f"k1|x0:{kinds[0]}|Transpose(x0){{perm={order}}}|->t0:{kinds[1]}").paged == is_paged


@pytest.mark.parametrize(
    ("text", "operator", "moved"),
    [
        ("x0:float32[1,8,6,6]|x1:float32[1,8,6,6]|Add(x0,x1){}|->t0:float32[1,8,6,6]", "move/map/simple/Add", 3 * 288),
        ("x0:float32[1,8,1,1]|x1:float32[1,8,6,6]|Mul(x0,x1){}|->t0:float32[1,8,6,6]", "move/map/simple/Mul", 2 * 288),
        ("x0:float32[1,8,6,6]|Mul(c:float32[8,1,1],x0){}|->t0:float32[1,8,6,6]", "move/map/simple/Affine", 2 * 288 + 8),
        ("x0:float32[1,8,6,6]|Sigmoid(x0){}|Mul(t0,x0){}|->t1:float32[1,8,6,6]", "move/map/curve/Swish", 2 * 288),
        (
            "x0:float32[1,8,6,6]|GlobalAveragePool(x0){}|->t0:float32[1,8,1,1]",
            "move/reduce/axes/GlobalAveragePool",
            288 + 8,
        ),
        (
            "x0:float32[1,2,9]|x1:float32[1,6,9]|Concat(x0,x1){axis=1}|->t0:float32[1,8,9]",
            "move/copy/rows/Concat",
            2 * 72,
        ),
        ("x0:float32[3,8]|Gather(x0,c:int64[]=1){axis=0}|->t0:float32[8]", "move/copy/rows/Slice", 2 * 8),
        ("x0:int64[4]|Gather(c:float32[999,6],x0){axis=0}|->t0:float32[4,6]", "move/copy/picked/Gather", 2 * 24),
        (
            "x0:float32[9,3,8]|GatherND(x0,c:int64[5,2]){batch_dims=0}|->t0:float32[5,8]",
            "move/copy/picked/GatherND",
            216 + 2 * 40,
        ),
        (
            "x0:float32[5,8]|ScatterND(c:float32[9,8],c:int64[5,1],x0){reduction=add}|->t0:float32[9,8]",
            "move/copy/scattered/Combine",
            2 * 72 + 40,
        ),
        (
            "x0:float32[15,8]|ScatterElements(c:float32[9,8],c:int64[15,8],x0){axis=0;reduction=add}|->t0:float32[9,8]",
            "move/copy/scattered/Combine",
            2 * 72 + 120,
        ),
        (
            "x0:float32[15,8]|Scatter(c:float32[9,8],c:int64[15,8],x0){axis=0}|->t0:float32[9,8]",
            "move/copy/scattered/Scatter",
            2 * 72 + 120,
        ),
        (
            "x0:float32[]|ScatterND(c:float32[90],c:int64[1],x0){reduction=add}|->t0:float32[90]",
            "move/copy/scattered/Combine",
            2 * 90 + 1,
        ),
        (
            "x0:float32[9,8]|x1:float32[4]|Cast(x1){to=7}|Gather(x0,t0){axis=0}|->t1:float32[4,8]",
            "move/copy/picked/Cast+Gather",
            72 + 2 * 32,
        ),
        ("x0:float32[1,8,6]|ReduceMax(x0){axes=2}|->t0:float32[1,8,1]", "move/reduce/axes/ReduceMax", 48 + 8),
        ("x0:float32[1,8,6]|ReduceMax(x0){axes=1}|->t0:float32[1,1,6]", "move/reduce/columns/ReduceMax", 48 + 6),
        ("x0:float32[1,8,8]|ReduceMax(x0){axes=2}|->t0:float32[1,8]", "move/reduce/axes/ReduceMax", 64 + 8),
        ("x0:float32[1,8,8]|ReduceMax(x0){axes=1}|->t0:float32[1,8]", "move/reduce/columns/ReduceMax", 64 + 8),
        ("x0:float32[1,8,6,1]|ReduceMax(x0){axes=2}|->t0:float32[1,8,1]", "move/reduce/axes/ReduceMax", 48 + 8),
        ("x0:float32[1,8,6,6]|ReduceSum(x0){axes=1}|->t0:float32[1,6,6]", "move/reduce/columns/ReduceSum", 288 + 36),
        (
            "x0:float32[1,8,6,6]|DepthToSpace(x0){blocksize=2}|->t0:float32[1,2,12,12]",
            "move/copy/order/Permute",
            2 * 288,
        ),
        ("x0:float32[1,8,6]|Softmax-12(x0){axis=1}|->t0:float32[1,8,6]", "move/norm/softmax/Softmax-12", 2 * 48),
        ("x0:float32[6,8]|Add(c:float32[6,8],x0){}|->t0:float32[6,8]", "move/map/simple/Affine", 3 * 48),
        ("x0:float32[6,8]|Div(x0,c:float32[]=9){}|->t0:float32[6,8]", "move/map/simple/Affine", 2 * 48),
        ("x0:float32[6,8]|Div(x0,c:float32[8]){}|->t0:float32[6,8]", "move/map/division/Div", 2 * 48 + 8),
        ("x0:float32[6,8]|Pow(x0,c:float32[]=2){}|->t0:float32[6,8]", "move/map/simple/Mul", 2 * 48),
        ("x0:float32[6,8]|Pow(x0,c:float32[]=3){}|->t0:float32[6,8]", "move/map/curve/Pow", 2 * 48),
        (
            "x0:float32[6,8]|ReduceLogSumExp(x0){axes=1;keepdims=0}|->t0:float32[6]",
            "move/norm/softmax/LogSoftmax",
            2 * 48,
        ),
        ("x0:float32[1,8,6]|Whatever(x0){}|->t0:float32[1,8,6]", "move/map/Whatever/Whatever", 2 * 48),
        ("x0:float32[6,8]|Split(x0){axis=0}|->t0:float32[2,8],t0.1:float32[4,8]", "move/copy/rows/Split", 2 * 48),
    ],
)
def test_movers_of_bytes_by_hand(text: str, operator: str, moved: int) -> None:
    """A layer without products has a class of movers, and the bytes it reads and writes."""
    layer = described(f"k1|{text}")
    assert layer.operator == operator
    assert layer.moved_bytes == 4 * moved


@pytest.mark.parametrize("view", ["", "|Unsqueeze(t0,c:int64[1]=0){}"])
@pytest.mark.parametrize(("reduction", "rows"), [("none", 9 / 8), ("add", 9)])
def test_places_are_compared_for_rows_or_elements(reduction: str, rows: float, view: str) -> None:
    """A scatter that adds compares places for each element, another for each row; a view behind it changes nothing."""
    read = "x0:float32[9,8]|x1:int64[4,1]|x2:float32[4,8]"
    layer = described(f"k1|{read}|ScatterND(x0,x1,x2){{reduction={reduction}}}{view}|->t0:float32[1,9,8]")
    assert layer_arrays([layer]).scattered_rows.tolist() == [rows]


@pytest.mark.parametrize(
    ("order", "name"),
    [("0,2,1,3", "Rows"), ("0,3,1,2", "Transpose"), ("0,3,2,1", "Permute"), ("2,3,0,1", "Permute")],
)
def test_one_axis_or_several_move(order: str, name: str) -> None:
    """A transposition that moves elements past others has another class than one of rows, or of several axes."""
    layer = described(f"k1|x0:float32[2,3,5,7]|Transpose(x0){{perm={order}}}|->t0:float32[210]")
    assert layer.operator == f"move/copy/order/{name}"


@pytest.mark.parametrize(("context", "channels"), [("", 4), ("map", 4), ("chip", 8)])
def test_only_maps_have_channels_before_their_plane(context: str, channels: int) -> None:
    """A tensor of four axes that no convolution wrote consists of rows."""
    layer = describe("k1|x0:float32[2,4,6,8]|Sin(x0){}|->t0:float32[2,4,6,8]", context)
    assert layer is not None
    assert (layer.out_channels, layer.rows * layer.out_channels) == (channels, 384)


@pytest.mark.parametrize(
    ("mode", "name"),
    [("nearest", "move/copy/scale/Resize"), ("linear", "move/copy/interpolate/Interpolate"), ("cubic", "Cubic")],
)
def test_modes_of_resizing_are_other_code(mode: str, name: str) -> None:
    """A cubic interpolation is learnt only from its own kind, which takes many times as long as a linear one."""
    text = f"k1|x0:float32[1,8,6,6]|Resize(x0,_,c:float32[4]=1,1,2,2){{mode={mode}}}|->t0:float32[1,8,12,12]"
    operator = described(text).operator
    assert operator == (f"move/map/{name}/{name}" if mode == "cubic" else name)
