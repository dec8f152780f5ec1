"""What a fingerprint reports of the memory of layers: the cache of a core, and where activations are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from harness.array_types import Floats, Ints
from harness.text import whole_number

DEFAULT_BYTES = 512 << 10
HELD_CACHES = 12
"""Size of the weights that the next cache holds, as a multiple of a core's cache. On a host with 32 MB for all its
tenants, perceptrons of 7 MB read their weights as fast as small ones, those of 25 MB as slowly as from memory."""
KEPT_S = 5e-3
"""Time after which other tenants have replaced most of what the next cache held."""
MOST_CACHES = 16
"""Size of the weights, as a multiple of a core's cache, up to which a network has windows if sessions share the memory
of activations. In larger networks layers take longer, and windows did not change the estimates on ONNX Runtime."""
_MOST_DIGITS = 15


def core_cache_bytes(clock: str, fingerprint: Mapping[str, str]) -> int | None:
    """Return the size of the cache; None on a device with its own clock, whose latency does not depend on it."""
    if clock == "device":
        return None
    return whole_number(fingerprint.get("core_cache_bytes", ""), _MOST_DIGITS) or DEFAULT_BYTES


def cold_shares(weight_bytes: Ints, warm_s: Floats, cache_bytes: int, *, in_part: bool = True) -> Floats:
    """Return the share of the weights of each network that it reads from memory each time it runs.

    A network reads its weights in the same order each time. A core's own cache loses those that do not fit into it
    (`Network.runs_from_caches`). Each byte beyond the size of the next cache evicts another one that is needed again,
    so twice the excess is lost. Other programs replace the rest as time passes, `warm_s` from one run to the next.
    Without `in_part`, a network is cold or warm as a whole.
    """
    held_bytes = HELD_CACHES * cache_bytes
    lost = np.minimum(1.0, 2.0 - 2.0 * held_bytes / np.maximum(weight_bytes, held_bytes))
    found = np.asarray(1.0 - (1.0 - lost) * np.exp(-np.maximum(warm_s, 0.0) / KEPT_S))
    return found if in_part else np.round(found)


def has_cold_activations(fingerprint: Mapping[str, str]) -> bool:
    """Return whether each loaded probe has separate memory for its activations.

    A single layer in a pool then finds them colder than in its network, whatever the size of its weights.
    """
    return fingerprint.get("activation_memory") == "session"


def most_windowed_bytes(fingerprint: Mapping[str, str], cache_bytes: int) -> float:
    """Return the size of weights up to which networks are measured in windows of neighbours."""
    return math.inf if has_cold_activations(fingerprint) else MOST_CACHES * cache_bytes
