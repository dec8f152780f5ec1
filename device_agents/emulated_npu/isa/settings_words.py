"""Settings as twelve 64-bit words, which SETTINGS instructions write into a slot."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from device_agents.emulated_npu.emulator_errors import InvalidProgram
from device_agents.emulated_npu.numpy_types import Array
from device_agents.emulated_npu.unit_commands import MAX_RANK
from device_agents.emulated_npu.unit_settings import UNQUANTISED, Activation, Quantisation, Settings, Triple

QUANTISED = ("quantised_target", "quantised_first", "quantised_second", "quantised_third")
WORDS = ("kernel", "stride", "dilation", "pad", "modes", "alpha", "beta", "gamma", *QUANTISED)
"""The words of a slot by index. Triples have 21 bits for each axis, D lowest; pad is signed.

`modes`: activation in bits 0..7, axes in 8..15, mode in 32..62. alpha, beta and gamma are IEEE 754 binary64. The
quantised words have the scale in bits 0..31, as IEEE 754 binary32, and the zero point in bits 32..48, signed.
"""

TRIPLE_BITS = 21
_MASK = (1 << TRIPLE_BITS) - 1
_PAD, _MODES, _QUANTISED = (WORDS.index(name) for name in ("pad", "modes", QUANTISED[0]))
_SCALE_BITS, _ZERO_BITS = 32, 17
_INFINITE = 0x7F80_0000  # bits of the binary32 above all finite positive ones


def settings_words(settings: Settings) -> tuple[int, ...]:
    """Return the words as signed 64-bit integers; raise InvalidProgram if a value does not fit its bits."""
    if not 0 <= settings.axes < 1 << MAX_RANK or not 0 <= settings.mode < 1 << 31:
        raise InvalidProgram(f"axes {settings.axes:#x} or mode {settings.mode} of settings do not fit their bits")
    return (
        _pack_triple("kernel", settings.kernel, 1),
        _pack_triple("stride", settings.stride, 1),
        _pack_triple("dilation", settings.dilation, 1),
        _pack_triple("pad", settings.pad, -(1 << TRIPLE_BITS - 1)),
        settings.activation | settings.axes << 8 | settings.mode << 32,
        float_bits(settings.alpha),
        float_bits(settings.beta),
        float_bits(settings.gamma),
        _pack_quantisation(settings.quantised_target),
        _pack_quantisation(settings.quantised_first),
        _pack_quantisation(settings.quantised_second),
        _pack_quantisation(settings.quantised_third),
    )


def settings_of_words(words: Sequence[int]) -> Settings:
    """Return the settings of valid words: the inverse of settings_words."""
    modes = words[_MODES]
    return Settings(
        kernel=unpack_triple(words[0]),
        stride=unpack_triple(words[1]),
        dilation=unpack_triple(words[2]),
        pad=unpack_signed_triple(words[_PAD]),
        activation=Activation(modes & 0xFF),
        axes=modes >> 8 & 0xFF,
        mode=modes >> 32,
        alpha=bits_float(words[5]),
        beta=bits_float(words[6]),
        gamma=bits_float(words[7]),
        quantised_target=unpack_quantisation(words[8]),
        quantised_first=unpack_quantisation(words[9]),
        quantised_second=unpack_quantisation(words[10]),
        quantised_third=unpack_quantisation(words[11]),
    )


def float_bits(value: float) -> int:
    """Return the bits of a binary64 as a signed integer."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def bits_float(bits: int) -> float:
    """Return the binary64 with these bits (a signed integer)."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def unpack_quantisation(word: int) -> Quantisation:
    """Return the quantisation in a valid word."""
    (scale,) = struct.unpack("<f", struct.pack("<I", word & (1 << _SCALE_BITS) - 1))
    sign = 1 << _ZERO_BITS - 1
    return Quantisation(float(scale), (word >> _SCALE_BITS ^ sign) - sign)


def _pack_quantisation(quantisation: Quantisation) -> int:
    limit = 1 << _ZERO_BITS - 1
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", quantisation.scale))
    except OverflowError:
        bits = _INFINITE
    is_used = quantisation != UNQUANTISED
    if bits >= _INFINITE or (is_used and not bits) or not -limit <= quantisation.zero_point < limit:
        raise InvalidProgram(f"{quantisation} of settings does not fit its bits")
    return int(bits | (quantisation.zero_point & (1 << _ZERO_BITS) - 1) << _SCALE_BITS)


def unpack_triple(word: int) -> Triple:
    """Return three unsigned numbers of 21 bits."""
    return word & _MASK, word >> TRIPLE_BITS & _MASK, word >> 2 * TRIPLE_BITS & _MASK


def unpack_signed_triple(word: int) -> Triple:
    """Return three signed numbers of 21 bits."""
    sign = 1 << TRIPLE_BITS - 1
    depth, height, width = ((part ^ sign) - sign for part in unpack_triple(word))
    return depth, height, width


def invalid_words(indices: Array, words: Array) -> Array:
    """Return the mask of invalid words; `words` (N, int64) are the words at `indices` (N) of a slot."""
    positive = indices < _PAD
    wrong: Array = (indices <= _PAD) & (words < 0)
    for position in range(3):
        wrong |= positive & ((words >> position * TRIPLE_BITS & _MASK) == 0)
    activation, axes, spare = words & 0xFF, words >> 8 & 0xFF, words >> 16 & 0xFFFF
    wrong_modes = (activation > max(Activation)) | (axes >= 1 << MAX_RANK) | (spare != 0) | (words < 0)
    wrong |= (indices == _MODES) & wrong_modes
    scale, spare = words & (1 << _SCALE_BITS) - 1, words >> _SCALE_BITS + _ZERO_BITS
    wrong |= (indices >= _QUANTISED) & ((scale >= _INFINITE) | (spare != 0) | ((scale == 0) & (words != 0)))
    return wrong


def _pack_triple(name: str, triple: Triple, low: int) -> int:
    high = low + (1 << TRIPLE_BITS) - 1 if low < 0 else _MASK
    if not all(low <= value <= high for value in triple):
        raise InvalidProgram(f"{name} {triple} of settings is not in {low}..{high}")
    depth, height, width = triple
    return depth & _MASK | (height & _MASK) << TRIPLE_BITS | (width & _MASK) << 2 * TRIPLE_BITS
