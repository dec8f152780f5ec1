"""The limits that no prediction leaves."""

from dataclasses import replace

import numpy as np
import pytest
import tiled_machine
from hypothesis import given, strategies as st

from harness.predictor.bounds import Bounds, bounds_of
from harness.predictor.features.layer_arrays import layer_arrays
from harness.predictor.features.layer_features import LayerFeatures, channelwise, matrix_product

LAYERS = tiled_machine.random_layers(200, seed=1)
LATENCIES = np.array([tiled_machine.latency_s(layer) for layer in LAYERS])


@pytest.fixture(scope="module")
def bounds() -> Bounds:
    """Return the limits that 200 layers of the synthetic machine show."""
    return bounds_of(layer_arrays(LAYERS), LATENCIES, np.zeros(len(LAYERS)))


def test_every_measured_layer_is_within_its_limits(bounds: Bounds) -> None:
    """No layer that the limits come from is outside of them."""
    low, high = bounds.of(layer_arrays(LAYERS))
    assert (low <= LATENCIES).all() and (high >= LATENCIES).all()


@given(
    layer=st.sampled_from(LAYERS),
    size=st.sampled_from(["batch", "out_channels", "extra_operands", "weight_elements", "in_size", "kernel"]),
    factor=st.integers(2, 9),
)
def test_limits_grow_with_every_size(bounds: Bounds, layer: LayerFeatures, size: str, factor: int) -> None:
    """A layer with one larger size has neither a lower least nor a lower greatest latency."""
    value = getattr(layer, size)
    grown = tuple(factor * edge for edge in value) if isinstance(value, tuple) else (value or 1) * factor
    change = {size: grown}
    if layer.groups > 1 and size == "out_channels":
        change |= {"in_channels": layer.in_channels * factor, "groups": layer.groups * factor}
    small, large = np.stack(bounds.of(layer_arrays([layer, replace(layer, **change)]))).T
    assert (large >= small).all()


def test_few_channels_do_not_make_a_class_look_fast() -> None:
    """Layers of one channel, on a machine that pads none, show no rate that layers of many cannot reach."""

    def arg_max(channels: int, rows: int) -> LayerFeatures:
        sizes = {"in_size": (100 * rows, 1), "out_size": (rows, 1), "kernel": (100, 1)}
        return channelwise("move/reduce/places/ArgMax", batch=1, channels=channels, **sizes)

    def latency_s(layer: LayerFeatures) -> float:
        return tiled_machine.LAUNCH_S + layer.macs * 2e-11

    learnt = [arg_max(1, rows) for rows in (20, 400, 3000, 9000)]
    times = np.append(LATENCIES, [latency_s(layer) for layer in learnt])
    found = bounds_of(layer_arrays([*LAYERS, *learnt]), times, np.zeros(times.size))
    asked = [arg_max(channels, 400) for channels in (1, 7, 16, 160)]
    _, high = found.of(layer_arrays(asked))
    assert (high >= [latency_s(layer) for layer in asked]).all()


def test_limits_of_a_view_do_not_depend_on_the_fastest_copy() -> None:
    """A view that takes no time on the device has no least latency, and does not make other layers look fast."""
    view = channelwise("move/view/any/Reshape", batch=1, channels=4096, in_size=(56, 56), out_size=(56, 56))
    copies = [layer for layer in LAYERS if layer.operator == "MaxPool"]
    times = [tiled_machine.latency_s(layer) for layer in copies]
    plain = bounds_of(layer_arrays(copies), np.array(times), np.zeros(len(copies)))
    found = bounds_of(layer_arrays([*copies, view]), np.array([*times, 1e-8]), np.zeros(len(copies) + 1))
    assert found.byte_s == plain.byte_s
    assert found.of(layer_arrays([view]))[0].tolist() == [0.0]


def test_layers_below_resolution_show_that_they_are_fast() -> None:
    """Where most operators take less time than can be measured, a large layer of any of them may be as fast."""
    names = [f"move/map/simple/{name}" for name in ("Add", "Relu", "Mul", "Sub")]
    maps = [
        channelwise(name, batch=1, channels=256, in_size=(edge, edge), out_size=(edge, edge))
        for name in names
        for edge in (30, 40, 50)
    ]
    arrays = layer_arrays([*LAYERS, *maps])
    times, noise = np.append(LATENCIES, np.full(len(maps), 1e-8)), np.append(0 * LATENCIES, np.full(len(maps), 10.0))
    low, _ = bounds_of(arrays, times, noise).of(layer_arrays(maps))
    plain, _ = bounds_of(layer_arrays(LAYERS), LATENCIES, 0 * LATENCIES).of(layer_arrays(maps))
    assert (low <= tiled_machine.LAUNCH_S).all() and (plain > 1.2 * tiled_machine.LAUNCH_S).any()


def test_a_short_layer_may_take_less_than_all_that_are_measured_well() -> None:
    """A layer of a tenth of the launch time, measured with an error of half of it, lowers the least latency of all."""
    short = channelwise("move/map/simple/Add", batch=1, channels=8, in_size=(1, 1), out_size=(1, 1))
    times, noise = np.append(LATENCIES, 0.1 * tiled_machine.LAUNCH_S), np.append(0 * LATENCIES, 0.5)
    low, _ = bounds_of(layer_arrays([*LAYERS, short]), times, noise).of(layer_arrays([short]))
    assert low[0] <= 0.2 * tiled_machine.LAUNCH_S


def test_large_views_below_resolution_limit_others() -> None:
    """One small view of 2 µs and larger ones below resolution: no view takes much longer than the small one."""
    views = [
        channelwise("move/view/any/Reshape", batch=1, channels=channels, in_size=(56, 56), out_size=(56, 56))
        for channels in (4, 64, 256, 1024)
    ]
    times, noise = np.append(LATENCIES, [2e-6, 1e-8, 1e-8, 1e-8]), np.append(0 * LATENCIES, [0.0, 10.0, 10.0, 10.0])
    _, high = bounds_of(layer_arrays([*LAYERS, *views]), times, noise).of(layer_arrays(views))
    assert (high < 5e-6).all()


def test_a_concat_that_moves_nothing_shows_no_rate() -> None:
    """A product with forty times as many weights as any learnt one may take as long as these at their rate."""
    weight_s, mac_s = 6e-11, 1e-12

    def latency_s(layer: LayerFeatures) -> float:
        return max(weight_s * layer.weight_elements * 4, mac_s * layer.macs)

    products = [matrix_product(rows=rows, depth=512, columns=512) for rows in (1, 1, 4, 64, 256, 1024)]
    concats = [
        channelwise("move/map", batch=1, channels=512, in_size=(edge, edge), out_size=(edge, edge)) for edge in (7, 56)
    ]
    copies = [
        channelwise("move/rows", batch=1, channels=512, in_size=(edge, 1), out_size=(edge, 1)) for edge in (99, 999)
    ]
    layers = [*products, *concats, *copies]
    times = [*map(latency_s, products), 1e-8, 1e-8, *(1e-11 * layer.moved_bytes for layer in copies)]
    large = matrix_product(rows=1, depth=4096, columns=2560)
    low, high = bounds_of(layer_arrays(layers), np.array(times), np.zeros(len(layers))).of(layer_arrays([large]))
    assert low[0] <= latency_s(large) <= high[0]


@pytest.mark.parametrize("group", ["move/copy/rows", "move/copy"])
def test_a_single_fast_layer_hides_no_operator_that_moves_nothing(group: str) -> None:
    """Concats of no time are found behind one faster Slice, also where no level is finer than that of the code."""

    def layer(operator: str, edge: int) -> LayerFeatures:
        return channelwise(f"{group}/{operator}", batch=1, channels=64, in_size=(edge, edge), out_size=(edge, edge))

    edges = (7, 14, 28, 56)
    concats = [layer("Concat", edge) for edge in edges]
    adds = [layer(name, edge) for name in ("Add", "Tile", "Pad") for edge in edges]
    times = [*(1e-9 for _ in concats), *(1e-11 * one.moved_bytes for one in adds), 1e-10]
    found = bounds_of(layer_arrays([*concats, *adds, layer("Slice", 56)]), np.array(times), np.zeros(len(times)))
    assert found.moves_nothing(layer_arrays([*concats, *adds])).tolist() == [True] * 4 + [False] * 12
    low, high = found.of(layer_arrays(concats))
    assert (low == 0).all() and (high <= 1e-8).all()


@pytest.mark.parametrize("is_in_place", [True, False])
def test_joining_takes_no_time_on_a_device_that_writes_parts_in_place(is_in_place: bool) -> None:
    """A larger Concat or Transpose than any learnt one takes hardly any time if these took none, else its bytes'."""

    def layer(operator: str, edge: int) -> LayerFeatures:
        path = f"move/copy/{'order' if operator == 'Transpose' else 'rows'}/{operator}"
        return channelwise(path, batch=1, channels=64, in_size=(edge, edge), out_size=(edge, edge))

    def latency_s(layer: LayerFeatures) -> float:
        is_idle = is_in_place and layer.operator.endswith(("Concat", "Transpose"))
        return 1e-8 if is_idle else 1e-11 * layer.moved_bytes

    layers = [layer(name, edge) for name in ("Concat", "Transpose", "Split", "Tile") for edge in (7, 14, 28, 56)]
    times = np.array([latency_s(layer) for layer in layers])
    noise = np.array([0.05 if time > 1e-8 else 10.0 for time in times])
    asked = [layer("Concat", 112), layer("Transpose", 112), layer("Split", 112)]
    found = bounds_of(layer_arrays(layers), times, noise)
    low, high = found.of(layer_arrays(asked))
    assert found.moves_nothing(layer_arrays(asked)).tolist() == [is_in_place, is_in_place, False]
    for least_s, most_s, one in zip(low, high, asked, strict=True):
        assert least_s <= latency_s(one) <= most_s <= 3 * latency_s(one) or most_s < 1e-13 * one.moved_bytes


def test_a_single_output_channel_may_take_as_long_as_a_vector() -> None:
    """On a device that computes 16 output channels at a time, one of them is within the limits of wide layers."""
    products = [matrix_product(rows=rows, depth=1024, columns=64) for rows in range(100, 3000, 100)]
    copies = [channelwise("move/map", batch=1, channels=rows, in_size=(9, 9), out_size=(9, 9)) for rows in (10, 100)]
    times = [1e-9 * layer.macs for layer in products] + [1e-12 * layer.moved_bytes for layer in copies]
    known = layer_arrays([*products, *copies])
    narrow = matrix_product(rows=100_000, depth=1024, columns=1)
    low, high = bounds_of(known, np.array(times), np.zeros(len(known))).of(layer_arrays([narrow]))
    assert low[0] <= 1e-9 * narrow.macs and 16e-9 * narrow.macs <= high[0]
