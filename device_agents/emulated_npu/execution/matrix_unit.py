"""The matrix unit: convolution and matrix product, as one matrix product per block of windows.

The sums of an output do not depend on the other outputs of the command, so a map computed in tiles has the same bits as
the whole. BLAS adds in a different order for small products, so they are padded to the size from which the order is
fixed. Two exceptions: a single row against a large matrix (a fully connected layer of one sample), for speed; and
processors without AVX-512, where the last bit of OpenBLAS's kernels depends on the position of a row.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.lib.stride_tricks import as_strided

from device_agents.emulated_npu.execution.activations import activate_own
from device_agents.emulated_npu.execution.integer_values import centred, exact_type, multiplies_integers, scaled_sums
from device_agents.emulated_npu.execution.operand_checks import (
    BLOCK_ELEMENTS,
    check_temporary,
    check_window,
    fault,
    reach,
)
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import Command
from device_agents.emulated_npu.unit_settings import Triple

# OpenBLAS uses special kernels for products of up to 100^3 multiply-adds.
_SMALL_PRODUCT = 1_000_000
_ENOUGH_COLUMNS = 128


def convolve(
    command: Command, target: Array, first: Array, second: Array, third: Array | None, fourth: Array | None
) -> Array:
    """Return the values of CONVOLVE. Raises ExecutionFault for operands that do not match."""
    _check(command, target, first, second)
    outputs = cast(Triple, target.shape[:3])
    if multiplies_integers(command, first, second):
        factors = centred(command, first, second, fourth, exact_type(second.size // second.shape[4]))
        weights = factors[1].reshape(-1, second.shape[4])
        sums = _sums(command, _padded(command, factors[0], outputs), weights, outputs)
        return epilogue(command, scaled_sums(command, sums, target, fourth), target, third, None)
    weights = second.reshape(-1, second.shape[4])
    if weights.dtype.itemsize <= 2:
        # float16 sums in float32; bytes are exact in float64.
        weights = weights.astype(np.float32 if weights.dtype.kind == "f" else np.float64)
    source = _padded(command, first, outputs)
    if first.dtype != weights.dtype and weights.dtype.kind == "f":
        source = source.astype(weights.dtype)
    sums = _sums(command, source, weights, outputs)
    if first.dtype.kind in "iu":
        sums = sums.astype(np.int64 if first.dtype.itemsize == 8 else np.int32, copy=False)
    return epilogue(command, sums, target, third, fourth)


def epilogue(command: Command, sums: Array, target: Array, third: Array | None, fourth: Array | None) -> Array:
    """Apply accumulation, scale and shift, residual and activation to the sums of products, possibly in place.

    Raises ExecutionFault for operands of other dims or types.
    """
    channels = (2, *target.shape[3:])
    if sums.dtype.kind == "i" and fourth is not None and fourth.dtype.kind == "f":
        sums = sums.astype(np.float32)
    for name, operand, dims in (("third", third, target.shape), ("fourth", fourth, channels)):
        if operand is not None and operand.shape != dims:
            raise fault(command, f"the operand {name} has the dims {operand.shape} instead of {dims}")
        if operand is not None and (
            operand.dtype.kind == "b" or (operand.dtype.kind == "f") != (sums.dtype.kind == "f")
        ):
            raise fault(command, f"the operand {name} is {operand.dtype.name} and the sums are {sums.dtype.name}")
    if target.dtype.kind == "b" or (command.accumulate and (target.dtype.kind == "f") != (sums.dtype.kind == "f")):
        raise fault(command, f"the target is {target.dtype.name} and the sums are {sums.dtype.name}")
    if command.accumulate:
        np.add(sums, target, out=sums, casting="unsafe")
    if fourth is not None:
        np.multiply(sums, fourth[0], out=sums, casting="unsafe")
        np.add(sums, fourth[1], out=sums, casting="unsafe")
    if third is not None:
        np.add(sums, third, out=sums, casting="unsafe")
    return activate_own(sums, command.settings)


def _check(command: Command, target: Array, first: Array, second: Array) -> None:
    if (target.ndim, first.ndim, second.ndim) != (4, 4, 5):
        raise fault(command, f"ranks {target.ndim}, {first.ndim} and {second.ndim} instead of 4, 4 and 5")
    if second.shape[:3] != command.settings.kernel:
        raise fault(command, f"weights {second.shape} of a kernel {command.settings.kernel}")
    if second.shape[3] != first.shape[3] or second.shape[4] != target.shape[3]:
        raise fault(command, f"channels: {first.shape[3]} to {target.shape[3]} by weights {second.shape}")
    kinds = first.dtype.kind + second.dtype.kind
    are_bytes = first.dtype.itemsize == second.dtype.itemsize == 1
    if "b" in kinds or (first.dtype != second.dtype and not are_bytes):
        raise fault(command, f"{first.dtype.name} by {second.dtype.name}")
    check_window(command, target.size * (second.size // second.shape[4]))


def _padded(command: Command, first: Array, outputs: Triple) -> Array:
    """Return the inputs that the windows span, zeros outside included; without padding, a view of `first`."""
    settings = command.settings
    spans = reach(outputs, settings.kernel, settings.stride, settings.dilation)
    begin = [-pad for pad in settings.pad]
    inside = [(max(0, at), min(size, at + span)) for at, span, size in zip(begin, spans, first.shape[:3], strict=True)]
    # A window entirely outside leaves an empty range, which reads nothing.
    (d0, d1), (h0, h1), (w0, w1) = ((low, max(low, high)) for low, high in inside)
    body = first[d0:d1, h0:h1, w0:w1]
    if body.shape[:3] == spans:
        return body
    check_temporary(command, *spans, first.shape[3])
    padded = np.zeros((*spans, first.shape[3]), first.dtype)
    if body.size:
        d, h, w = d0 - begin[0], h0 - begin[1], w0 - begin[2]
        padded[d : d + d1 - d0, h : h + h1 - h0, w : w + w1 - w0] = body
    return padded


def _sums(command: Command, source: Array, weights: Array, outputs: Triple) -> Array:
    """Return the sums of products of every window, computed block by block; dims (D, H, W, M)."""
    settings = command.settings
    depth, height, width = outputs
    sd, sh, sw = settings.stride
    reduced, columns = weights.shape
    if settings.kernel == (1, 1, 1):
        rows = source[::sd, ::sh, ::sw].reshape(-1, reduced)
        return product(rows, weights).reshape(*outputs, columns)
    check_temporary(command, width, reduced)
    windows = _windows(command, source, outputs)
    sums = np.empty((*outputs, columns), weights.dtype)
    planes = max(1, BLOCK_ELEMENTS // (height * width * reduced))
    lines = height if planes > 1 else max(1, BLOCK_ELEMENTS // (width * reduced))
    for d in range(0, depth, planes):
        for h in range(0, height, lines):
            block = windows[d : d + planes, h : h + lines]
            part = sums[d : d + planes, h : h + lines]
            part[...] = product(block.reshape(-1, reduced), weights).reshape(part.shape)
    return sums


def _windows(command: Command, source: Array, outputs: Triple) -> Array:
    """Return the windows as a view of `source`, dims (D, H, W, kd, kh, kw, C)."""
    settings = command.settings
    d, h, w, channel = source.strides
    (sd, sh, sw), (pd, ph, pw) = settings.stride, settings.dilation
    strides = (d * sd, h * sh, w * sw, d * pd, h * ph, w * pw, channel)
    shape = (*outputs, *settings.kernel, source.shape[3])
    # The stride of an axis with one element is never used, and may be too large for NumPy.
    used = tuple(stride if size > 1 else 0 for size, stride in zip(shape, strides, strict=True))
    return as_strided(source, shape, used, writeable=False)


def product(rows: Array, weights: Array) -> Array:
    """Return the product of (P, K) and (K, M) in the type of `weights`; the module docstring says which bits."""
    count, reduced = rows.shape
    columns = weights.shape[1]
    if weights.dtype.kind != "f":
        return np.asarray(np.matmul(rows, weights))
    work = count * reduced * columns
    if work > _SMALL_PRODUCT and (columns > 1 or count == 1):
        return np.asarray(np.matmul(rows, weights))
    # Pad the rows and the weights with zeros, as few as possible.
    wide = max(columns, min(_ENOUGH_COLUMNS, _SMALL_PRODUCT // (count * reduced) + 1), 2)
    high = max(count, _SMALL_PRODUCT // (wide * reduced) + 1)
    padded_rows = np.zeros((high, reduced), weights.dtype)
    padded_rows[:count] = rows
    padded_weights = np.zeros((reduced, wide), weights.dtype)
    padded_weights[:, :columns] = weights
    return np.asarray(np.matmul(padded_rows, padded_weights)[:count, :columns])
