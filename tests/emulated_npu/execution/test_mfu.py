"""The matrix unit and the windows of the vector unit against ONNX Runtime."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scratchpad import Array, Scratchpad, of_onnx, rows_are_independent

from device_agents.emulated_npu.emulator_errors import ExecutionFault
from device_agents.emulated_npu.execution.matrix_unit import product
from device_agents.emulated_npu.unit_commands import Command, Descriptor, Function, Operand, Space
from device_agents.emulated_npu.unit_settings import Activation, Settings


@dataclass(frozen=True)
class Windowing:
    """A window and its input, by spatial axis: D, H, W."""

    size: tuple[int, int, int]
    kernel: tuple[int, int, int]
    stride: tuple[int, int, int]
    dilation: tuple[int, int, int]
    before: tuple[int, int, int]
    after: tuple[int, int, int]

    @property
    def outputs(self) -> tuple[int, ...]:
        """The number of windows along each axis."""
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        padded = [sum(sizes) for sizes in zip(self.size, self.before, self.after, strict=True)]
        return tuple((n - span) // s + 1 for n, span, s in zip(padded, spans, self.stride, strict=True))

    @property
    def settings(self) -> Settings:
        """The window as settings of a unit."""
        return Settings(self.kernel, self.stride, self.dilation, self.before)

    @property
    def attributes(self) -> dict[str, Any]:
        """The window as ONNX attributes."""
        pads = [*self.before, *self.after]
        return {"kernel_shape": self.kernel, "strides": self.stride, "dilations": self.dilation, "pads": pads}


@st.composite
def geometries(draw: st.DrawFn, pooling: bool = False) -> Windowing:
    """Draw small windows with at least one output; for pooling, padding is below the kernel as in ONNX Runtime."""
    kernel = draw(st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4)))
    most = [side - 1 if pooling else 3 for side in kernel]
    before, after = (draw(st.tuples(*[st.integers(0, limit) for limit in most])) for _ in range(2))
    stride = draw(st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.tuples(st.just(1), st.integers(1, 2), st.integers(1, 2)))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    least = [max(1, span - b - a) for span, b, a in zip(spans, before, after, strict=True)]
    size = draw(st.tuples(*[st.integers(low, low + 5) for low in least]))
    return Windowing(size, kernel, stride, dilation, before, after)


same_bits = pytest.mark.skipif(
    not rows_are_independent(), reason="this processor's BLAS sums in an order that depends on a row's place"
)


def normal(seed: int, *shape: int) -> Array:
    """Seeded float32 values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def channels_first(x: Array) -> Array:
    """Return (D, H, W, C) as (1, C, D, H, W)."""
    return np.moveaxis(x, 3, 0)[np.newaxis]


def channels_last(y: Array) -> Array:
    """Return (1, C, D, H, W) as (D, H, W, C)."""
    return np.moveaxis(y[0], 0, 3)


def convolve(x: Array, w: Array, outputs: tuple[int, ...], chosen: Settings, **more: Any) -> Array:
    """Return a CONVOLVE of x (D, H, W, C) with w (kd, kh, kw, C, M)."""
    pad = Scratchpad()
    target = pad.room((*outputs, w.shape[4]))
    third = pad.put(more["third"]) if "third" in more else None
    fourth = pad.put(more["fourth"], Space.SB) if "fourth" in more else None
    if "held" in more:
        pad.machine.memories.view(target)[...] = more["held"]
    return pad.run(
        Command(
            Function.CONVOLVE,
            target,
            pad.put(x),
            pad.put(w, Space.SB),
            third,
            fourth,
            chosen,
            accumulate="held" in more,
        )
    )


@settings(max_examples=48)
@given(geometries(), st.integers(1, 5), st.integers(1, 5), st.integers(0, 1 << 32))
def test_convolution(geometry: Windowing, inputs: int, outputs: int, seed: int) -> None:
    """Every kernel, stride, dilation and padding along three axes gives ONNX Runtime's values."""
    x, w = normal(seed, *geometry.size, inputs), normal(seed + 1, *geometry.kernel, inputs, outputs)
    ours = convolve(x, w, geometry.outputs, geometry.settings)
    theirs = of_onnx("Conv", channels_first(x), w.transpose(4, 3, 0, 1, 2), attributes=geometry.attributes)
    np.testing.assert_allclose(ours, channels_last(theirs), rtol=1e-5, atol=1e-5)


def test_what_follows_the_products() -> None:
    """The epilogue adds the target to the sums, then applies scale and shift, residual and activation."""
    x, w = normal(0, 1, 4, 4, 3), normal(1, 1, 1, 1, 3, 5)
    held, third, fourth = normal(2, 1, 4, 4, 5), normal(3, 1, 4, 4, 5), normal(4, 2, 5)
    relu = Settings(activation=Activation.RELU)
    ours = convolve(x, w, (1, 4, 4), relu, held=held, third=third, fourth=fourth)
    expected = np.maximum((x @ w[0, 0, 0] + held) * fourth[0] + fourth[1] + third, 0)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_strided_operands() -> None:
    """Strides express channels of a wider map, transposed weights, and a target inside a larger tensor."""
    pad = Scratchpad()
    x, w = normal(5, 1, 6, 6, 8), normal(6, 7, 3, 1, 3, 3)
    first, second, room = pad.put(x), pad.put(w, Space.SB), pad.room((1, 4, 4, 20))
    part = Operand(
        Descriptor(Space.NB, first.descriptor.dtype, (1, 6, 6, 3), first.descriptor.strides), first.address + 2 * 4
    )
    turned = Descriptor(
        Space.SB,
        first.descriptor.dtype,
        (1, 3, 3, 3, 7),
        tuple(second.descriptor.strides[axis] for axis in (2, 3, 4, 1, 0)),
    )
    inner = Operand(
        Descriptor(Space.NB, first.descriptor.dtype, (1, 4, 4, 7), room.descriptor.strides), room.address + 5 * 4
    )
    pad.run(Command(Function.CONVOLVE, inner, part, Operand(turned, second.address), settings=Settings((1, 3, 3))))
    whole = pad.machine.memories.view(room)
    theirs = of_onnx("Conv", channels_first(x[..., 2:5])[:, :, 0], w[:, :, 0])
    np.testing.assert_allclose(whole[0, :, :, 5:12], np.moveaxis(theirs[0], 0, 2), rtol=1e-5, atol=1e-5)
    assert not whole[..., :5].any() and not whole[..., 12:].any()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_integer_products_are_exact(dtype: Any) -> None:
    """Sums of products of bytes are exact integers and do not overflow."""
    rng = np.random.default_rng(7)
    x = rng.integers(np.iinfo(np.int8).min if dtype != np.uint8 else 0, 127, (1, 1, 9, 300)).astype(dtype)
    w = rng.integers(0, 127, (1, 1, 1, 300, 4)).astype(dtype)
    pad = Scratchpad()
    wide = np.int64 if dtype == np.int64 else np.int32
    target = pad.room((1, 1, 9, 4), wide)
    ours = pad.run(Command(Function.CONVOLVE, target, pad.put(x), pad.put(w, Space.SB)))
    np.testing.assert_array_equal(ours, x.astype(np.int64) @ w[0, 0, 0].astype(np.int64))


def test_half_precision_sums_in_single() -> None:
    """Sums beyond the resolution of float16 lose nothing until the result is stored."""
    pad = Scratchpad()
    x, w = np.ones((1, 1, 2, 4099), np.float16), np.full((1, 1, 1, 4099, 1), 0.5, np.float16)
    target = pad.room((1, 1, 2, 1), np.float32)
    assert (
        pad.run(Command(Function.CONVOLVE, target, pad.put(x), pad.put(w, Space.SB))).ravel().tolist() == [2049.5] * 2
    )


@same_bits
@settings(max_examples=24)
@given(st.data(), st.sampled_from([1, 3, 27, 64, 147, 576]), st.sampled_from([1, 2, 7, 16, 64, 100]))
def test_rows_do_not_depend_on_each_other(data: st.DataObject, reduced: int, columns: int) -> None:
    """Any block of rows of a product has the same bits as in the whole product."""
    rows = data.draw(st.integers(2, 400))
    low = data.draw(st.integers(0, rows - 1))
    high = data.draw(st.integers(low + 1, rows))
    a, b = normal(8, rows, reduced), normal(9, reduced, columns)
    np.testing.assert_array_equal(product(a[low:high], b), product(a, b)[low:high])


@same_bits
@settings(max_examples=18)
@given(st.integers(1, 11), st.integers(1, 11), st.integers(1, 2))
def test_tiles_have_the_bits_of_the_whole(top: int, left: int, stride: int) -> None:
    """A 3x3 convolution of a map in four tiles equals that of the whole map bit for bit."""
    x, w = normal(10, 1, 26, 26, 5), normal(11, 1, 3, 3, 5, 6)
    chosen = Settings((1, 3, 3), (1, stride, stride))
    size = (26 - 3) // stride + 1
    whole = convolve(x, w, (1, size, size), chosen)
    for rows in (slice(0, top), slice(top, size)):
        for columns in (slice(0, left), slice(left, size)):
            part = x[:, rows.start * stride :, columns.start * stride :]
            outputs = (1, rows.stop - rows.start, columns.stop - columns.start)
            if min(outputs) > 0:
                np.testing.assert_array_equal(convolve(part, w, outputs, chosen), whole[:, rows, columns])


@settings(max_examples=36)
@given(geometries(pooling=True), st.integers(1, 4), st.integers(0, 1 << 32))
def test_maximum_pooling(geometry: Windowing, channels: int, seed: int) -> None:
    """Padding is never the maximum, whatever the window."""
    x = normal(seed, *geometry.size, channels) - 5
    pad = Scratchpad()
    target = pad.room((*geometry.outputs, channels))
    ours = pad.run(Command(Function.POOL_MAX, target, pad.put(x), settings=geometry.settings))
    theirs = of_onnx("MaxPool", channels_first(x), attributes=geometry.attributes)
    # Of a window on padding alone ONNX Runtime says the lowest number, we minus infinity.
    lowest = np.finfo(np.float32).min
    np.testing.assert_array_equal(np.maximum(ours, lowest), channels_last(theirs))


@settings(max_examples=36)
@given(geometries(pooling=True), st.integers(1, 4), st.booleans(), st.integers(0, 1 << 32))
def test_average_pooling(geometry: Windowing, channels: int, counted: bool, seed: int) -> None:
    """The average equals ONNX Runtime's, with and without counting the padding."""
    x = normal(seed, *geometry.size, channels)
    pad = Scratchpad()
    target = pad.room((*geometry.outputs, channels))
    chosen = Settings(geometry.kernel, geometry.stride, geometry.dilation, geometry.before, mode=int(counted))
    ours = pad.run(Command(Function.POOL_AVERAGE, target, pad.put(x), settings=chosen))
    attributes = geometry.attributes | {"count_include_pad": int(counted)}
    theirs = of_onnx("AveragePool", channels_first(x), attributes=attributes)
    np.testing.assert_allclose(ours, channels_last(theirs), rtol=1e-5, atol=1e-6)


def test_windows_that_lie_outside() -> None:
    """A window over padding only has the lowest value as maximum, and 0 as average."""
    pad = Scratchpad()
    first, chosen = pad.put(normal(12, 1, 2, 2, 1)), Settings((1, 2, 2), pad=(0, 0, 2))
    highest = pad.run(Command(Function.POOL_MAX, pad.room((1, 1, 1, 1)), first, settings=chosen))
    average = pad.run(Command(Function.POOL_AVERAGE, pad.room((1, 1, 1, 1)), first, settings=chosen))
    assert highest.item() == -np.inf and average.item() == 0


@settings(max_examples=36)
@given(geometries(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1 << 32))
def test_depthwise_convolution(geometry: Windowing, channels: int, multiplier: int, seed: int) -> None:
    """Every channel is convolved with its own kernels, with scale, shift, residual and activation."""
    x = normal(seed, *geometry.size, channels)
    w = normal(seed + 1, *geometry.kernel, channels, multiplier)
    dims = (*geometry.outputs, channels, multiplier)
    third, fourth = normal(seed + 2, *dims), normal(seed + 3, 2, channels, multiplier)
    pad = Scratchpad()
    dense = pad.put(x)
    strides = (*dense.descriptor.strides, 0)
    first = Operand(Descriptor(Space.NB, dense.descriptor.dtype, (*x.shape, multiplier), strides), dense.address)
    chosen = Settings(geometry.kernel, geometry.stride, geometry.dilation, geometry.before, activation=Activation.RELU)
    command = Command(Function.DEPTHWISE, pad.room(dims), first, pad.put(w), pad.put(third), pad.put(fourth), chosen)
    ours = pad.run(command)
    kernels = w.transpose(3, 4, 0, 1, 2).reshape(channels * multiplier, 1, *geometry.kernel)
    theirs = of_onnx("Conv", channels_first(x), kernels, attributes=geometry.attributes | {"group": channels})
    sums = channels_last(theirs).reshape(dims)
    np.testing.assert_allclose(ours, np.maximum(sums * fourth[0] + fourth[1] + third, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("why", "dims", "chosen"),
    [
        ("kernel", (1, 1, 1, 3, 2), Settings((1, 3, 3))),
        ("channels", (1, 1, 1, 4, 2), Settings()),
        ("channels", (1, 1, 1, 3, 5), Settings()),
        ("stride", (1, 1, 1, 3, 2), Settings(stride=(1, 0, 1))),
        ("elements at a time", (1, 1, 1, 3, 2), Settings(stride=(1, 1 << 40, 1))),
        ("ranks", (1, 3, 2), Settings()),
    ],
)
def test_invalid_convolutions(why: str, dims: tuple[int, ...], chosen: Settings) -> None:
    """Mismatched weights, channels and steps are faults that name the mismatch."""
    pad = Scratchpad()
    command = Command(
        Function.CONVOLVE,
        pad.room((1, 4, 4, 2)),
        pad.put(normal(13, 1, 4, 4, 3)),
        pad.put(normal(14, *dims), Space.SB),
        settings=chosen,
    )
    with pytest.raises(ExecutionFault) as caught:
        pad.run(command)
    assert why in caught.value.why
