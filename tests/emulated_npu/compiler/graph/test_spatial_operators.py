"""Operators over the axes of a map compute what ONNX Runtime does: convolutions, pooling and resizing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from onnx import ModelProto
from small_models import Array, functions, imported, model, node, values

from device_agents.emulated_npu.emulator_errors import UnsupportedOperator


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Any], Array, Array]:
    """Draw attributes, input and weights of a convolution with a non-empty result."""
    count = draw(st.integers(1, 3))
    sizes = [draw(st.integers(3, 8)) for _ in range(count)]
    kernel = [draw(st.integers(1, 3)) for _ in range(count)]
    groups, inputs, outputs = draw(st.sampled_from(((1, 3, 4), (2, 4, 6), (4, 4, 4), (3, 3, 6), (1, 1, 2))))
    attributes: dict[str, Any] = {"group": groups, "strides": [draw(st.integers(1, 3)) for _ in range(count)]}
    padding = draw(st.sampled_from(("pads", "VALID", "SAME_UPPER", "SAME_LOWER")))
    if padding == "pads":
        attributes["pads"] = [draw(st.integers(0, 2)) for _ in range(2 * count)]
        attributes["dilations"] = [draw(st.integers(1, 2)) for _ in range(count)]
    else:
        attributes["auto_pad"] = padding
    weights = values((outputs, inputs // groups, *kernel), 1)
    spans = zip(sizes, kernel, attributes.get("dilations", [1] * count), strict=True)
    assume(all((width - 1) * step < size for size, width, step in spans))
    return attributes, values((draw(st.integers(1, 2)), inputs, *sizes)), weights


@given(convolutions(), st.booleans())
@settings(max_examples=36)
def test_convolutions(case: tuple[dict[str, Any], Array, Array], bias: bool) -> None:
    """Groups, strides, dilations and every form of padding over one to three axes; one layer with its bias.

    Only padding that holds whole windows takes layers of its own.
    """
    attributes, x, weights = case
    constants = {"w": weights} | ({"b": values(weights.shape[:1], 2)} if bias else {})
    graph = imported(
        model([node("Conv", " ".join(("x", *constants)), "y", **attributes)], {"x": x}, constants), {"x": x}
    )
    assert functions(graph)[-1] == ("DEPTHWISE" if attributes["group"] == x.shape[1] > 1 else "CONVOLVE")
    reaches = zip(weights.shape[2:] * 2, attributes.get("dilations", [1] * (x.ndim - 2)) * 2, strict=True)
    within = all(
        pad <= (width - 1) * step for pad, (width, step) in zip(attributes.get("pads", []), reaches, strict=False)
    )
    assert len(graph.layers) == 1 or not within


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("constant", [(), ("w",), ("b",)], ids=str)
def test_convolutions_by_computed_weights(groups: int, constant: tuple[str, ...]) -> None:
    """Weights or a bias that the network computes make a matrix product of the windows, with padding and strides."""
    feeds = {"x": values((1, 4, 6, 5)), "w": values((4, 4 // groups, 3, 2), 1), "b": values((4,), 2)}
    attributes = {"group": groups, "strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 0, 2]}
    constants = {name: feeds.pop(name) for name in constant}
    imported(model([node("Conv", "x w b", "y", **attributes)], feeds, constants), feeds)
    if "b" in feeds and "w" in feeds:
        inputs = {name: feeds[name] for name in ("x", "w")}
        imported(model([node("Conv", "x w", "y", **attributes)], inputs), inputs)


@given(st.data(), st.sampled_from(("MaxPool", "AveragePool")), st.integers(1, 3))
@settings(max_examples=48)
def test_pooling(data: st.DataObject, op: str, count: int) -> None:
    """Pooling works with strides, padding counted or not, and partial last windows; the first largest has the index."""
    numbers = st.integers(1, 3)
    kernel, strides = ([data.draw(numbers) for _ in range(count)] for _ in range(2))
    sizes = [data.draw(st.integers(size, 7)) for size in kernel]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if data.draw(st.booleans()):
        attributes["pads"] = [data.draw(st.integers(0, size - 1)) for _ in range(2) for size in kernel]
        ceil = data.draw(st.booleans())
        if op == "AveragePool":
            attributes["count_include_pad"] = data.draw(st.integers(0, 1))
            ceil = ceil and not attributes["count_include_pad"]  # there runtimes disagree on the divisor
        attributes["ceil_mode"] = int(ceil)
    elif data.draw(st.booleans()):
        fits = all(size >= stride for size, stride in zip(kernel, strides, strict=True))  # else ONNX Runtime refuses
        attributes["auto_pad"] = data.draw(
            st.sampled_from(("SAME_UPPER", "SAME_LOWER", "VALID") if fits else ("VALID",))
        )
    x = values((1, 2, *sizes))
    outputs = ["y"]
    if op == "MaxPool" and data.draw(st.booleans()):
        attributes["storage_order"] = data.draw(st.integers(0, 1))
        if "auto_pad" not in attributes and all(size >= 2 * taps for taps, size in zip(kernel, sizes, strict=True)):
            attributes["dilations"] = [data.draw(st.integers(1, 2)) for _ in kernel]
        outputs.append("indices")
        x = np.round(2 * x).astype(data.draw(st.sampled_from((np.float32, np.uint8))))
    imported(model([node(op, "x", " ".join(outputs), **attributes)], {"x": x}, {}, outputs, opset=22), {"x": x})


def test_average_pooling_that_counts_padding_but_not_what_hangs_over() -> None:
    """With ceil_mode the divisor is the part of the window within the padded map."""
    x = values((1, 2, 6, 6))
    attributes = {
        "kernel_shape": [3, 3],
        "strides": [2, 2],
        "pads": [1, 1, 1, 1],
        "ceil_mode": 1,
        "count_include_pad": 1,
    }
    proto = model([node("AveragePool", "x", "y", **attributes)], {"x": x}, opset=19)
    assert "FILL" in functions(imported(proto, {"x": x}))


def test_a_last_window_behind_the_map_is_refused() -> None:
    """A last window behind the map is refused: before opset 22 the standard and runtimes disagree on it."""
    x = values((1, 1, 5, 5))
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    with pytest.raises(UnsupportedOperator, match="'y'"):
        imported(model([node("MaxPool", "x", "y", **attributes)], {"x": x}), {"x": x})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("spatial", [(5,), (4, 3), (2, 3, 4)])
def test_global_pooling(op: str, spatial: tuple[int, ...]) -> None:
    """Global pooling works on maps of one to three axes."""
    x = values((2, 3, *spatial))
    imported(model([node(op, "x", "y")], {"x": x}), {"x": x})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pooling_a_single_element_is_a_slice(op: str) -> None:
    """Pooling with a window of one element and strides is a view between layers."""
    x = values((1, 2, 7, 5))
    nodes = [node(op, "x", "t", kernel_shape=[1, 1], strides=[3, 2]), node("Relu", "t", "y")]
    graph = imported(model(nodes, {"x": x}), {"x": x})
    assert functions(graph) == ["MAP"]
    assert graph.free_nodes == ("t",)


def test_response_normalisation() -> None:
    """LRN works with windows of three and five channels."""
    x = values((1, 7, 3, 2))
    for size in (3, 5):
        imported(model([node("LRN", "x", "y", size=size, alpha=0.3, beta=0.6, bias=1.5)], {"x": x}), {"x": x})


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("DepthToSpace", {"blocksize": 2}),
        ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}),
        ("SpaceToDepth", {"blocksize": 2}),
    ],
)
def test_depth_and_space(op: str, attributes: dict[str, Any]) -> None:
    """DepthToSpace and SpaceToDepth exchange blocks of a map and channels."""
    x = values((1, 8, 4, 6))
    assert functions(imported(model([node(op, "x", "y", **attributes)], {"x": x}), {"x": x})) == ["COPY"]


@given(
    st.sampled_from(("nearest", "linear", "cubic")),
    st.sampled_from(("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")),
    st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
@settings(max_examples=36)
def test_resize(mode: str, coordinates: str, rounding: str, sizes: tuple[int, int]) -> None:
    """Resize works in all modes and coordinates, to any size."""
    assume(not (mode == "cubic" and 1 in sizes))
    x = values((1, 2, 3, 4))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attributes["nearest_mode"] = rounding
    constants = {"sizes": np.array((1, 2, *sizes), np.int64)}
    imported(model([node("Resize", "x - - sizes", "y", **attributes)], {"x": x}, constants), {"x": x})


@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 0.5, 0.5), (1, 1, 1.5, 2.5)])
def test_resize_by_scales(scales: tuple[float, ...]) -> None:
    """Resize and Upsample accept scales; whole factors only move data."""
    x = values((1, 2, 4, 6))
    constants = {"s": np.array(scales, np.float32)}
    nodes = [node("Resize", "x - s", "y", coordinate_transformation_mode="asymmetric", nearest_mode="floor")]
    graph = imported(model(nodes, {"x": x}, constants), {"x": x})
    assert ("CONVOLVE" in functions(graph)) == (1.5 in scales)
    if min(scales) >= 1:
        imported(model([node("Upsample", "x s", "y", mode="linear")], {"x": x}, constants, opset=9), {"x": x})


def test_resize_along_some_axes_keeping_the_aspect() -> None:
    """`axes` and `keep_aspect_ratio_policy` of opset 18."""
    x = values((1, 2, 4, 6))
    constants = {"k": np.array((8, 9), np.int64)}
    attributes = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}
    imported(model([node("Resize", "x - - k", "y", **attributes)], {"x": x}, constants, opset=18), {"x": x})


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("excludes", [0, 1])
@pytest.mark.parametrize("sizes", [(5, 7), (3, 20), (16, 4), (11, 13)])
def test_resize_with_antialiasing(mode: str, excludes: int, sizes: tuple[int, int]) -> None:
    """Every element that a smaller result covers counts, along axes that become smaller."""
    x = values((1, 2, 12, 13))
    attributes: dict[str, Any] = {"mode": mode, "antialias": 1, "exclude_outside": excludes, "cubic_coeff_a": -0.5}
    constants = {"sizes": np.array((1, 2, *sizes), np.int64)}
    imported(model([node("Resize", "x - - sizes", "y", **attributes)], {"x": x}, constants, opset=18), {"x": x})


PICTURE = np.random.default_rng(0).standard_normal((1, 4, 12, 9)).astype(np.float32)


def picking(op: str, *behind: str) -> ModelProto:
    """Return pooling that keeps one element of each row, with elementwise operators after it."""
    names = ["x", *(f"t{place}" for place in range(len(behind))), "y"]
    pool = node(op, "x", names[1], kernel_shape=[1, 1], strides=[1, 9])
    return model(
        [pool, *(node(one, names[place], names[place + 1]) for place, one in enumerate(behind, start=1))],
        {"x": PICTURE},
    )


@pytest.mark.parametrize(("op", "function"), [("AveragePool", "POOL_AVERAGE"), ("MaxPool", "POOL_MAX")])
def test_a_result_of_the_network_is_pooled(op: str, function: str) -> None:
    """Pooling that computes an output is a layer, because it can follow the layer before it row by row."""
    assert functions(imported(picking(op), {"x": PICTURE})) == [function]


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_inside_a_network_picking_is_a_view(op: str) -> None:
    """The readers of picked elements read them from the original value."""
    assert functions(imported(picking(op, "Exp"), {"x": PICTURE})) == ["MAP"]
