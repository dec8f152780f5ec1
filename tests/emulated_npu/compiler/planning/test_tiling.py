"""A chain is cut into tiles so that every pass has the new, held and kept parts that it needs (S3.2, S3.3)."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, event, given, settings, strategies as st
from networks_on_npu import NetworkCase
from onnx import load_model_from_string
from random_networks import WINDOWS, random_networks
from small_models import model, node, values

from device_agents.emulated_npu.compiler.graph.hardware_graph import Graph, HardwareLayer, View
from device_agents.emulated_npu.compiler.graph.importer import import_model
from device_agents.emulated_npu.compiler.graph.regions import Region
from device_agents.emulated_npu.compiler.planning.chains.chain_cutting import NotTileable, cut_chain
from device_agents.emulated_npu.compiler.planning.chains.tiling import Chain, Cut, Geometry, HaloMode, Tile
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Function

# --- what a layer reads, straight from the definitions ---------------------------------------------------------------


def _window_reads(layer: HardwareLayer, axis: int, outputs: range) -> set[int]:
    """Return the indices along a spatial axis of the input that outputs depend on."""
    place = axis - len(layer.output.axes) + 3
    kernel, stride, dilation, pad = (
        triple[place]
        for triple in (layer.settings.kernel, layer.settings.stride, layer.settings.dilation, layer.settings.pad)
    )
    size = layer.inputs[0].shape[axis]
    touched = (output * stride - pad + tap * dilation for output in outputs for tap in range(kernel))
    return {index for index in touched if 0 <= index < size}


def _reads(layer: HardwareLayer, place: int, region: Region) -> list[set[int]]:
    """Return for every axis of `layer.reads[place]` the indices that a region of the output depends on."""
    view = layer.reads[place]
    found = []
    for axis, interval in enumerate(region):
        outputs = range(*interval)
        windowed = layer.function in (Function.CONVOLVE, Function.DEPTHWISE, Function.POOL_MAX, Function.POOL_AVERAGE)
        if place or not windowed:
            found.append(set(outputs))
        elif axis >= 2:
            found.append(_window_reads(layer, axis, outputs))
        elif axis == 1 and layer.function is Function.CONVOLVE and layer.groups == 1:
            found.append(set(range(view.shape[1])))
        elif axis == 1:
            per_output = layer.output.shape[1] // layer.groups
            per_input = view.shape[1] // layer.groups
            groups = {output // per_output for output in outputs}
            found.append({group * per_input + one for group in groups for one in range(per_input)})
        else:
            found.append(set(outputs))
    return found


def _mask_of_view(view: View, indices: Sequence[set[int]], shape: tuple[int, ...]) -> Array:
    """Return the elements of a value at these indices of a view."""
    along = [{start} for start in view.start]
    for axis, chosen in zip(view.axes, indices, strict=True):
        if axis.base is not None:
            along[axis.base] = {first + axis.step * index for first in along[axis.base] for index in chosen}
    mask = np.zeros(shape, bool)
    mask[np.ix_(*(sorted(each) for each in along))] = True
    return mask


def _mask(region: Region, shape: tuple[int, ...]) -> Array:
    mask = np.zeros(shape, bool)
    if all(low < high for low, high in region):
        assert all(low >= 0 and high <= size for (low, high), size in zip(region, shape, strict=True))
        mask[tuple(slice(low, high) for low, high in region)] = True
    return mask


# --- chains ----------------------------------------------------------------------------------------------------------


def _chain_to(graph: Graph) -> list[HardwareLayer]:
    """Return the layers that the last one depends on."""
    needed = {graph.layers[-1].output.value}
    kept = []
    for layer in reversed(graph.layers):
        if layer.output.value in needed:
            kept.append(layer)
            needed.update(view.value for view in layer.reads)
    return kept[::-1]


@st.composite
def cut_chains(draw: st.DrawFn, modes: Sequence[HaloMode]) -> tuple[Graph, Geometry]:
    """Draw a chain of layers with residuals and parts of concatenations, cut along one or two axes of its output."""
    network: NetworkCase = draw(random_networks(WINDOWS, 6, 24))
    graph = import_model(load_model_from_string(network.model))
    layers = _chain_to(graph)
    made = sorted({layer.output.value for layer in layers})
    last = layers[-1].output
    stored = {last.value, *draw(st.lists(st.sampled_from(made), max_size=2))}
    axes = [axis for axis in (2, 3) if last.shape[axis] > 1 and last.axes[axis].base is not None]
    assume(axes)
    chosen = draw(st.sampled_from([axes, axes[:1], axes[1:]]))
    assume(chosen)
    cuts = [Cut(axis, draw(st.integers(1, last.shape[axis] - 1)), draw(st.sampled_from(modes))) for axis in chosen]
    try:
        geometry = cut_chain(Chain(tuple(layers), frozenset(stored)), cuts)
    except NotTileable:
        event("not tileable")
        assume(False)
    event(f"{min(len(layers), 4)} layers or more, {len(cuts)} cuts")
    return graph, geometry


def _needed(graph: Graph, geometry: Geometry, tile: Tile) -> dict[str, Array]:
    """Return what the layers of a pass read, by value."""
    needed: dict[str, Array] = {}
    for layer in geometry.layers:
        if not geometry.is_active(layer.output.value, tile):
            continue
        region = geometry.output_region(layer, tile)
        for place, view in enumerate(layer.reads):
            shape = graph.values[view.value].shape
            mask = _mask_of_view(view, _reads(layer, place, region), shape)
            needed[view.value] = needed.get(view.value, False) | mask
    return needed


def _repeats(geometry: Geometry, name: str) -> int:
    """Return how often a value is repeated that an inner cut changes and an outer cut does not."""
    tracks = geometry.tracks[name]
    inner = max((place for place, track in enumerate(tracks) if track is not None), default=-1)
    return math.prod(
        count
        for place, (track, count) in enumerate(zip(tracks, geometry.counts, strict=True))
        if track is None and place < inner
    )


@given(cut_chains(("retain",)))
@settings(max_examples=36)
def test_retained_everything_is_new_exactly_once(cut: tuple[Graph, Geometry]) -> None:
    """All passes together compute or load every needed element once, and no element twice."""
    graph, geometry = cut
    counts: dict[str, Array] = {name: np.zeros(graph.values[name].shape, int) for name in geometry.regions}
    wanted: dict[str, Array] = {name: np.zeros(graph.values[name].shape, bool) for name in geometry.regions}
    for tile in geometry.tiles():
        for name, mask in _needed(graph, geometry, tile).items():
            wanted[name] |= mask
        for name, count in counts.items():
            if geometry.is_active(name, tile):
                count += _mask(geometry.new_region(name, tile), count.shape)
    for name, count in counts.items():
        if name in geometry.stored:
            wanted[name] |= _mask(geometry.regions[name], count.shape)  # the chain may write only a part
        assert count.max() <= _repeats(geometry, name), name
        assert (count[wanted[name]] == _repeats(geometry, name)).all(), name


@given(cut_chains(("retain", "recompute")))
@settings(max_examples=36)
def test_a_pass_holds_what_its_layers_read(cut: tuple[Graph, Geometry]) -> None:
    """In every halo mode, a pass holds all that its layers read."""
    graph, geometry = cut
    for tile in geometry.tiles():
        for name, mask in _needed(graph, geometry, tile).items():
            held = _mask(geometry.held_region(name, tile), mask.shape)
            assert not (mask & ~held).any(), (name, tile)


@given(cut_chains(("retain", "recompute")))
@settings(max_examples=36)
def test_what_is_held_is_new_or_was_kept(cut: tuple[Graph, Geometry]) -> None:
    """The held part of a pass is its new part and its halos, without overlap; the pass before has kept each halo."""
    graph, geometry = cut
    for name in geometry.regions:
        shape = graph.values[name].shape
        auxiliary = [np.zeros(shape, bool) for _ in geometry.cuts]
        for tile in geometry.tiles():
            held = _mask(geometry.held_region(name, tile), shape).astype(int)
            parts = _mask(geometry.new_region(name, tile), shape).astype(int)
            for place, region in geometry.halos(name, tile):
                halo = _mask(region, shape)
                assert not (halo & ~auxiliary[place]).any(), (name, tile)
                parts += halo
            if geometry.is_active(name, tile) or not geometry.is_resident(name):
                assert (held == parts).all(), (name, tile)
            for place, region in geometry.kept(name, tile):
                kept = _mask(region, shape)
                assert not (kept & (held == 0)).any(), (name, tile)
                auxiliary[place] |= kept


@given(cut_chains(("recompute",)))
@settings(max_examples=36)
def test_recomputed_nothing_is_kept(cut: tuple[Graph, Geometry]) -> None:
    """Without an auxiliary buffer, a pass holds only what it computes or loads itself."""
    _, geometry = cut
    for name in geometry.regions:
        for tile in geometry.tiles():
            assert not list(geometry.halos(name, tile))
            assert not list(geometry.kept(name, tile))
            assert geometry.held_region(name, tile) == geometry.new_region(name, tile)


@given(cut_chains(("retain", "recompute")))
@settings(max_examples=36)
def test_every_stored_element_is_stored_once(cut: tuple[Graph, Geometry]) -> None:
    """The stored parts of all passes divide a value that leaves the chain, and each pass holds its part."""
    graph, geometry = cut
    for name in geometry.stored:
        shape = graph.values[name].shape
        written, made = np.zeros(shape, int), np.zeros(shape, bool)
        for layer in geometry.layers:
            if layer.output.value != name:
                continue
            every = [set(range(size)) for size in layer.output.shape]
            own = _mask_of_view(layer.output, every, shape)
            made |= own.astype(bool)  # others may write other parts of a joined value
            for tile in geometry.tiles():
                if geometry.is_active(name, tile):
                    part = _mask(geometry.stored_region(name, tile), shape)
                    assert not (part & ~_mask(geometry.new_region(name, tile), shape)).any()
                    written += part & own
        assert (written[made] == np.broadcast_to(_repeats(geometry, name), shape)[made]).all(), name


# --- by hand ---------------------------------------------------------------------------------------------------------


def _convolutions(*kernels: int, height: int, pad: bool = False) -> Graph:
    """Return a chain of convolutions over rows."""
    nodes, constants = [], {}
    for place, kernel in enumerate(kernels):
        pads = [kernel // 2 * pad, 0] * 2
        nodes.append(node("Conv", f"t{place - 1} w{place}" if place else f"x w{place}", f"t{place}", pads=pads))
        constants[f"w{place}"] = values((1, 1, kernel, 1))
    x = {"x": values((1, 1, height, 1))}
    return import_model(model(nodes, x, constants, [f"t{len(kernels) - 1}"]))


def _rows(geometry: Geometry, name: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for tile in geometry.tiles():
        yield geometry.new_region(name, tile)[2], geometry.held_region(name, tile)[2]


def test_two_convolutions_by_hand() -> None:
    """Two 3-row convolutions on 12 rows, with 8 output rows cut by 3, have the tiles computed by hand."""
    graph = _convolutions(3, 3, height=12)
    geometry = cut_chain(Chain(graph.layers, frozenset({"t1"})), [Cut(2, 3)])
    assert list(_rows(geometry, "t1")) == [((0, 3), (0, 3)), ((3, 6), (3, 6)), ((6, 8), (6, 8))]
    assert list(_rows(geometry, "t0")) == [((0, 5), (0, 5)), ((5, 8), (3, 8)), ((8, 10), (6, 10))]
    assert list(_rows(geometry, "x")) == [((0, 7), (0, 7)), ((7, 10), (5, 10)), ((10, 12), (8, 12))]


def test_two_convolutions_recomputed_by_hand() -> None:
    """Two 3-row convolutions without an auxiliary buffer have the tiles computed by hand."""
    graph = _convolutions(3, 3, height=12)
    geometry = cut_chain(Chain(graph.layers, frozenset({"t1"})), [Cut(2, 3, "recompute")])
    assert [new for new, _ in _rows(geometry, "t1")] == [(0, 3), (3, 6), (6, 8)]
    assert [new for new, _ in _rows(geometry, "t0")] == [(0, 5), (3, 8), (6, 10)]
    assert [new for new, _ in _rows(geometry, "x")] == [(0, 7), (3, 10), (6, 12)]


def test_padding_moves_the_boundaries() -> None:
    """With padding, the first pass reads fewer rows, and the last pass ends with the map."""
    graph = _convolutions(3, 3, height=9, pad=True)
    geometry = cut_chain(Chain(graph.layers, frozenset({"t1"})), [Cut(2, 3)])
    assert [new for new, _ in _rows(geometry, "t0")] == [(0, 4), (4, 7), (7, 9)]
    assert [held for _, held in _rows(geometry, "t0")] == [(0, 4), (2, 7), (5, 9)]
    assert [new for new, _ in _rows(geometry, "x")] == [(0, 5), (5, 8), (8, 9)]
    assert [held for _, held in _rows(geometry, "x")] == [(0, 5), (3, 8), (6, 9)]


@pytest.mark.parametrize("size", range(1, 9))
def test_the_last_tile_is_the_ragged_one(size: int) -> None:
    """All tiles have the given size, except the last, which has the rest."""
    graph = _convolutions(3, height=11)
    geometry = cut_chain(Chain(graph.layers, frozenset({"t0"})), [Cut(2, size)])
    rows = [new for new, _ in _rows(geometry, "t0")]
    assert [high - low for low, high in rows[:-1]] == [size] * (len(rows) - 1)
    assert all(before[1] == after[0] for before, after in pairwise(rows))
    assert (rows[0][0], rows[-1][1]) == (0, 9)


def test_a_value_that_the_last_layer_does_not_need_cannot_be_cut() -> None:
    """A chain whose output does not depend on one of its layers is refused."""
    x = {"x": values((1, 2, 8, 8))}
    graph = import_model(model([node("Sigmoid", "x", "a"), node("Relu", "x", "y")], x, outputs=["a", "y"]))
    with pytest.raises(NotTileable):
        cut_chain(Chain(graph.layers, frozenset({"a", "y"})), [Cut(2, 2)])
