"""What a fingerprint reports of the memory of layers: the cache of a core, and where activations are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness.text import whole_number

DEFAULT_BYTES = 512 << 10
MOST_CACHES = 16
"""Size of the weights, as a multiple of a core's cache, up to which a network has windows if sessions share the memory
of activations. In larger networks layers take longer, and windows did not change the estimates on ONNX Runtime."""
_MOST_DIGITS = 15


def core_cache_bytes(clock: str, fingerprint: Mapping[str, str]) -> int | None:
    """Return the size of the cache; None on a device with a clock of its own, whose latency does not depend on it."""
    if clock == "device":
        return None
    return whole_number(fingerprint.get("core_cache_bytes", ""), _MOST_DIGITS) or DEFAULT_BYTES


def most_windowed_bytes(fingerprint: Mapping[str, str], cache_bytes: int) -> float:
    """Return the size of weights up to which networks are measured in windows of neighbours.

    If each loaded probe keeps its activations in memory of its own, a single layer finds them colder than in its
    network whatever the size of its weights.
    """
    return math.inf if fingerprint.get("activation_memory") == "session" else MOST_CACHES * cache_bytes
